"""Decode the answer to a transaction, and leave a server that the session has left.

A session belongs to the server to which its client has connected last. If a slow server passes on an earlier attempt to
connect later, the leader takes that server for the current one, and refuses all writes over the connection in use
(ZOOKEEPER-710). For a single write, the server then closes the connection. For a transaction, ZooKeeper 3.4 does not
(ZOOKEEPER-2886): each one fails, while reads and pings succeed, and the session never ends.
"""

from __future__ import annotations

from typing import Any

from kazoo.exceptions import ConnectionDropped, SessionMovedError
from kazoo.protocol.serialization import Transaction


def transaction_results(answer: bytes, offset: int) -> list[Any]:
    """Return the results. Raise `ConnectionDropped` if the session belongs to another server; kazoo then reconnects."""
    results: list[Any] = Transaction.deserialize(answer, offset)
    if any(isinstance(result, SessionMovedError) for result in results):
        raise ConnectionDropped("the server has refused a transaction because the session belongs to another server")
    return results
