"""ZooKeeper's four-letter words: ask for the state of a server without a session or a client library."""

from __future__ import annotations

import socket

_NOT_SERVING = "not currently serving requests"


def ask(host: str, port: int, word: str = "srvr", *, timeout: float = 1.0) -> str:
    """Return the whole answer to a four-letter word. Raise OSError if there is none."""
    answer = ""
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(word.encode())
        # A starting server answers that it does not serve, and then does not close the connection.
        while _NOT_SERVING not in answer and (received := connection.recv(4096)):
            answer += received.decode(errors="replace")
    return answer


def mode(host: str, port: int) -> str | None:
    """Return `standalone`, `leader`, `follower`, `observer` or `read-only`; None if no server serves."""
    try:
        answer = ask(host, port)
    except OSError:
        return None
    # A server without a quorum answers, too, so the answer must be read.
    if _NOT_SERVING in answer:
        return None
    found = (line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: "))
    return next(found, None)


def accepts(host: str, port: int, *, timeout: float = 1.0) -> bool:
    """Return True if a server accepts connections on this port."""
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError:
        return False
    return True
