"""The coordinator served to Kafka's clients, with groups in ZooKeeper behind it."""
