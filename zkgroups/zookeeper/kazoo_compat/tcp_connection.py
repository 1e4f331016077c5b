"""The TCP connection of a client: both its addresses, how long it has been silent, and how to close it.

Closing only the connection keeps the session. kazoo then connects to the next server.
"""

from __future__ import annotations

import contextlib
import math
import socket
import sys
from typing import Any, Final, NamedTuple


class Endpoints(NamedTuple):
    """Both ends of a connection. `hostname` is the name that TLS has verified."""

    local: tuple[Any, ...]
    peer: tuple[Any, ...]
    hostname: str | None


def endpoints(client: Any) -> Endpoints | None:
    """Return both ends of the connection. On kazoo's thread, the connection on which it sends the next request."""
    try:
        found = client._connection._socket
        return Endpoints(found.getsockname(), found.getpeername(), getattr(found, "server_hostname", None))
    except (AttributeError, OSError):
        return None


def seconds_without_data(client: Any) -> float:
    """Return for how many seconds no data have arrived on the connection. Infinite if the system does not report it.

    kazoo returns an answer only when it is complete, and a large one can take long. Linux reports the last byte.
    """
    if sys.platform != "linux":
        return math.inf
    try:
        found = client._connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED.stop)
        return int.from_bytes(found[_LAST_RECEIVED], sys.byteorder) / 1000
    except (OSError, AttributeError):
        return math.inf


_LAST_RECEIVED: Final = slice(52, 56)
"""The field `tcpi_last_data_recv` of `struct tcp_info`, in milliseconds."""


def hang_up(client: Any) -> None:
    """Close the connection for both sides. kazoo's thread reads an end of file, even in the middle of TLS."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        socket.socket.shutdown(client._connection._socket, socket.SHUT_RDWR)


def leave_server(client: Any) -> str:
    """Close the connection, and let kazoo try this server last. Return the address of the server."""
    connection, found = client._connection, endpoints(client)
    if found is None:
        return "(none)"
    left = tuple(found.peer[:2])
    expand = connection._expand_client_hosts

    def expand_once() -> list[tuple[str, str, int]]:
        connection._expand_client_hosts = expand
        return sorted(expand(), key=lambda host: (host[1], host[2]) == left)

    connection._expand_client_hosts = expand_once
    hang_up(client)
    return f"{left[0]}:{left[1]}"
