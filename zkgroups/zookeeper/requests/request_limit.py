"""How large the requests of a session may be, as far as is known."""

from __future__ import annotations

from typing import Final

MAX_REQUEST_BYTES: Final = 1_048_575
"""The default of `jute.maxbuffer`. On a larger request a server drops the connection without an answer."""

MAX_BATCH_BYTES: Final = 512 * 1024
"""The size at which to start a new transaction. Larger ones gain nothing, and keep other clients waiting."""

SMALLEST_LIMIT: Final = 4 * 1024
"""No server is configured for less. So a connection lost during a smaller request was lost for another reason."""


class RequestLimit:
    """How large the requests of a session may be, as far as is known.

    A server with a small `jute.maxbuffer` drops the connection on a larger request, without an answer. So if the
    connection was lost twice during the same request, smaller ones are tried. The next session starts from the default.

    >>> limit = RequestLimit()
    >>> limit.lost_twice(40_000, session_id=1)
    >>> limit.bytes(1), limit.bytes(2) == MAX_BATCH_BYTES
    (20000, True)
    >>> limit.accepted(40_000, session_id=1)  # so it was lost for another reason
    >>> limit.bytes(1) == MAX_BATCH_BYTES
    True
    """

    def __init__(self) -> None:
        self._session_id: int | None = None
        self._bytes = MAX_BATCH_BYTES
        self._lost = 0

    def bytes(self, session_id: int | None) -> int:
        """Return the size of the largest request to send in that session."""
        return self._bytes if session_id == self._session_id else MAX_BATCH_BYTES

    def most(self, session_id: int | None) -> int:
        """Return the size of the largest request that the server may accept in that session.

        A smaller one may work better.
        """
        return self._bytes if session_id == self._session_id else MAX_REQUEST_BYTES

    def lost_twice(self, size: int, *, session_id: int | None) -> None:
        """Learn from a request of this size that was sent twice, and lost the connection both times."""
        known = self.bytes(session_id)
        self._session_id, self._bytes, self._lost = session_id, max(min(known, size // 2), SMALLEST_LIMIT), size

    def accepted(self, size: int, *, session_id: int | None) -> None:
        """Learn from a request of this size that was answered."""
        if session_id == self._session_id and size > self._bytes:
            self._bytes = MAX_BATCH_BYTES if size >= self._lost else size
