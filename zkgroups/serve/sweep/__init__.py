"""Sweeps in the background: read ZooKeeper and the brokers, and publish a picture."""
