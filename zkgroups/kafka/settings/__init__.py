"""How to connect to brokers: options, and the properties of Kafka clients."""
