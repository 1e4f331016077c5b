"""The requests and answers of Kafka's group APIs, and the formats inside them."""
