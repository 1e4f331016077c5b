"""How to connect to brokers: properties of Kafka clients, and their conversion to settings of our links."""
