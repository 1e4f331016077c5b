"""How much to read at a time, so that `bulk_read.py` is fast, but never reads more than fits into memory.

An answer can be ten thousand times as long as its request, and its length is not known before. So the first request is
sent alone and is small. Then the length of the last answer limits the number of reads in the next request.

    reads in a request    64, then twice as many after each answer, at most 500, and at most an answer of 256 KiB
    requests in flight    1 until the first answer, then 6

Larger values gain nothing, and keep the server's other clients waiting, because it answers requests in order. Smaller
values leave the server idle (`benchmarks/reads.py`, `benchmarks/neighbours.py`). If each node is read by its own
request, the limit is 64 instead of 500.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 64
MOST: Final = 500
MOST_SINGLE: Final = 64
REQUESTS: Final = 6

FEW_READS: Final = 8
"""Up to this number, reads are sent one by one without probing the server for MultiRead."""

MAX_READ_REQUEST_BYTES: Final = 256 * 1024
"""The longest request for many reads. A server drops the connection on a request of 1 MiB."""

ANSWER_BYTES: Final = 256 * 1024
"""The intended maximum length of an answer."""


class BulkReadPace:
    """The size and number of the next requests, learned from the answers so far.

    >>> pace = BulkReadPace()
    >>> pace.size, pace.requests
    (64, 1)
    >>> pace.answered(64, 64 * 90)
    >>> pace.size, pace.requests
    (128, 6)
    >>> pace.answered(128, 128 * 20_000)
    >>> pace.size
    13
    """

    __slots__ = ("_most", "requests", "size")

    def __init__(self) -> None:
        self._most = MOST
        self.size = FIRST
        self.requests = 1

    def answered(self, reads: int, answer_bytes: int) -> None:
        """Learn from an answer."""
        if not reads:
            return
        fitting = ANSWER_BYTES * reads // max(answer_bytes, 1)
        self.size = max(1, min(2 * self.size, fitting, self._most))
        self.requests = REQUESTS

    def set_together(self, together: bool) -> None:
        """Set whether requests contain many reads from now on, or one read each."""
        self._most = MOST if together else MOST_SINGLE
        self.size = min(self.size, self._most)
