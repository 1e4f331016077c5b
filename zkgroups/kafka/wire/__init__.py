"""Kafka's protocol over asyncio: messages, connections, logins, and the brokers of a cluster.

codec       messages to bytes and back, with the classes of kafka-python
connection  one open connection: frames out, and frames in the same order
versions    the versions of requests that a broker supports
security    TLS and the login
sasl        the messages of each login mechanism
link        connections to one address: opened, logged in and opened again
cluster     the brokers of a cluster, found by way of some of their addresses
runner      one event loop on one thread, for callers without one
"""
