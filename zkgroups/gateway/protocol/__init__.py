"""The rules by which the gateway routes, converts and changes Kafka's messages. No I/O."""
