"""Whole groups moved to Kafka's own offsets, and back: in bulk, and without Spark."""
