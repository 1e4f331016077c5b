"""`zkgroups gateway`: a group coordinator that speaks Kafka's protocol, in front of the brokers."""
