"""Thousands of groups moved to Kafka's own offsets: a plan in a folder, and everything that is done with one."""
