"""Asking a server how it is, with ZooKeeper's four-letter words: no session, no client library."""

from __future__ import annotations

import socket

_NOT_SERVING = "not currently serving requests"


def ask(host: str, port: int, word: str = "srvr", *, timeout: float = 1.0) -> str:
    """The whole answer to a four-letter word; OSError where there is none."""
    answer = ""
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(word.encode())
        # A server asked while it starts says that it does not serve, and then fails to close the connection.
        while _NOT_SERVING not in answer and (received := connection.recv(4096)):
            answer += received.decode(errors="replace")
    return answer


def mode(host: str, port: int) -> str | None:
    """`standalone`, `leader`, `follower`, `observer` or `read-only`; None where nothing serves."""
    try:
        answer = ask(host, port)
    except OSError:
        return None
    # A member of an ensemble without a quorum answers, too: that an answer came proves nothing.
    if _NOT_SERVING in answer:
        return None
    found = (line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: "))
    return next(found, None)


def accepts(host: str, port: int, *, timeout: float = 1.0) -> bool:
    """Whether something listens on this port."""
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError:
        return False
    return True
