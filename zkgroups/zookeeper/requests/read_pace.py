"""How much to read at a time: pure arithmetic, so that `bulk_read.py` reads quickly, but never more than memory holds.

An answer can be ten thousand times as long as its question, and nobody knows before. So the first request goes alone
and is small; from then on the length of the last answer says how many reads the next request may have.

    reads in a request    64, then twice as many after each answer, at most 500, and what fills an answer of 256 KiB
    requests under way    1 until the first answer, then 6: some are being answered while others are on their way

More gains nothing and keeps a server's other clients waiting, because it answers in the order of asking; fewer leave it
waiting for us (`benchmarks/reads.py`, `benchmarks/neighbours.py`). Where nodes are asked for one by one, the same rule
holds with at most 64 for 500.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 64
MOST: Final = 500
MOST_SINGLE: Final = 64
REQUESTS: Final = 6

HANDFUL: Final = 8
"""So few reads are not worth finding out whether the server takes them together."""

MAX_REQUEST_BYTES: Final = 256 * 1024
"""A server drops the connection over a request of a megabyte."""

ANSWER_BYTES: Final = 256 * 1024
"""What an answer should not be much longer than."""


class Pace:
    """The size and number of the next requests, learned from the answers so far.

    >>> pace = Pace()
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
        """Learn from an answer, unless it is about nothing."""
        if not reads:
            return
        fitting = ANSWER_BYTES * reads // max(answer_bytes, 1)
        self.size = max(1, min(2 * self.size, fitting, self._most))
        self.requests = REQUESTS

    def together(self, together: bool) -> None:
        """Whether reads are asked for together from now on, or each is a request of its own."""
        self._most = MOST if together else MOST_SINGLE
        self.size = min(self.size, self._most)
