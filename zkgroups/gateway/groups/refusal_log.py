"""The log of requests that a read-only gateway refuses: once for each kind of request and client."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ...kafka.wire import codec
from ...kafka.wire.codec import ReceivedRequest

_log = logging.getLogger("zkgroups.gateway")

_MOST_LOGGED: Final = 1000
"""The most refusals to log. Clients choose their ids, so the number of ids has no limit."""


class RefusalLog:
    """Logs refused requests, and remembers which it has logged."""

    def __init__(self) -> None:
        self._logged: set[tuple[int, str | None, str]] = set()

    def add(self, received: ReceivedRequest, groups: Sequence[str], host: str) -> None:
        """Log a refused request, unless a request of this kind and client was logged before."""
        kind = (received.kind.key, received.client_id, host)
        if kind in self._logged or len(self._logged) >= _MOST_LOGGED:
            return
        self._logged.add(kind)
        name = codec.SERVED[received.kind.key].name
        _log.warning(
            "refused the request %s of client %r at %s for %s: this gateway is read-only; start it without "
            "--read-only, or give the client another address",
            name,
            received.client_id,
            host,
            ", ".join(map(repr, groups)),
        )
