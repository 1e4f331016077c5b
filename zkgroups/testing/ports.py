"""Loopback ports for servers that are about to start.

A free port can be taken before the server binds it. If another temporary ZooKeeper takes it, its answers look like
those of the server that failed to start. Three measures prevent this:

- ports come in pairs: the even one is for the server, the odd one is kept bound by this process for as long as the
  reservation lasts, so that no other process that asks here gets the same pair;
- they are lower than the ports that systems give to outgoing connections, which could take any free port
  (a client that keeps trying a closed port of that range can even connect to itself);
- a server that still finds its port taken is started again on another one: see `local_server.py`.
"""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

from zkgroups.exceptions import ServerStartError

HOST = "127.0.0.1"
_PAIRS = range(12_000, 32_000, 2)
_ATTEMPTS = 1_000
# Its own generator: tests that seed the global one would all try the same ports.
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class ReservedPort:
    """A port that no other reservation has, in any process, until `release`."""

    number: int
    _guard: socket.socket

    def release(self) -> None:
        """Let other reservations have the port."""
        self._guard.close()


def reserve() -> ReservedPort:
    """Reserve a free loopback port."""
    for _ in range(_ATTEMPTS):
        number = _random.choice(_PAIRS)
        guard = _bind(number + 1)
        if guard is None:
            continue
        if is_free(number):
            return ReservedPort(number, guard)
        guard.close()
    raise ServerStartError(f"no free port was found on {HOST} between {_PAIRS.start} and {_PAIRS.stop}")


def is_free(number: int) -> bool:
    """Return True if a server could listen on this port now."""
    bound = _bind(number, reuse=True)
    if bound is not None:
        bound.close()
    return bound is not None


def _bind(number: int, *, reuse: bool = False) -> socket.socket | None:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Servers set this, too. Without it, recently closed connections still block the port.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    try:
        bound.bind((HOST, number))
    except OSError:
        bound.close()
        return None
    return bound
