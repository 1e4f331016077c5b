"""What the gateway changes in Kafka's messages, as rules without I/O."""
