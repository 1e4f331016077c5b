"""How large transactions are, how many operations fit into one, and what a session has learned about the limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from .transaction import AnOperation, Create, Operation, Set

MAX_REQUEST_BYTES: Final = 1_048_575
"""The default of `jute.maxbuffer`. On a larger request a server drops the connection without an answer."""

MAX_BATCH_BYTES: Final = 512 * 1024
MAX_BATCH_OPERATIONS: Final = 2_000
"""The size at which to start a new transaction. Larger ones gain nothing, and keep other clients waiting."""

SMALLEST_LIMIT: Final = 4 * 1024
"""No server is configured for less. So a connection lost during a smaller request was lost for another reason."""

ENVELOPE_BYTES: Final = 32
_HEADER_BYTES: Final = 9


def size(operation: Operation) -> int:
    """Return the bytes that an operation adds to a request, without the chroot."""
    length = _HEADER_BYTES + 4 + len(operation.path.encode()) + 4
    match operation:
        case Create():
            acl = sum(12 + len(entry.id.scheme) + len(entry.id.id) for entry in operation.acl)
            return length + len(operation.data) + 4 + acl + 4
        case Set():
            return length + len(operation.data) + 4
    return length


def fits(operations: Iterable[Operation], *, chroot: str = "", limit: int = MAX_REQUEST_BYTES) -> bool:
    """Return True if all operations fit into one request of at most `limit` bytes."""
    prefix = len(chroot.encode())
    return sum(size(operation) + prefix for operation in operations) + ENVELOPE_BYTES <= limit


def batches(
    units: Iterable[Sequence[AnOperation]],
    *,
    overhead: Sequence[Operation] = (),
    chroot: str = "",
    limit: int = MAX_BATCH_BYTES,
) -> Iterator[list[Sequence[AnOperation]]]:
    """Group units of operations into transactions of at most `limit` bytes.

    A unit is never split, so a single large unit can exceed the limit. `overhead` is part of each transaction.
    """
    prefix = len(chroot.encode())

    def cost(unit: Sequence[Operation]) -> int:
        return sum(size(operation) + prefix for operation in unit)

    start = ENVELOPE_BYTES + cost(overhead)
    batch: list[Sequence[AnOperation]] = []
    weight, count = start, 0
    for unit in units:
        if batch and (weight + cost(unit) > limit or count + len(unit) > MAX_BATCH_OPERATIONS):
            yield batch
            batch, weight, count = [], start, 0
        batch.append(unit)
        weight += cost(unit)
        count += len(unit)
    if batch:
        yield batch


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
