"""Requests to ZooKeeper: bulk reads, transactions in one session, and watches."""
