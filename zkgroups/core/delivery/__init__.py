"""Which message a handler gets next, and up to where a partition may be committed. No threads, no clock, no Kafka."""
