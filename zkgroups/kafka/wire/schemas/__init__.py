"""Kafka's definitions of messages that kafka-python does not have."""
