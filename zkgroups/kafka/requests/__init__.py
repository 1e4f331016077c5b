"""Bulk requests: each is about many partitions or groups, is sent to the right brokers, and is retried."""
