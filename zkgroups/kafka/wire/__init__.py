"""Kafka's protocol over asyncio: messages, connections, logins, and the brokers of a cluster.

codec       messages to bytes and back, with the classes of kafka-python
connection  one open connection: sends requests, and returns the answers in order; the versions that a broker supports
security    TLS
login       the messages of each login mechanism
link        connections to one address: opened, logged in and opened again
cluster     the brokers of a cluster, found by way of some of their addresses; one event loop for callers without one
"""
