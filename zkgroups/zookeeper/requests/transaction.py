"""The operations of a transaction, and how large a request may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from kazoo.exceptions import RolledBackError, RuntimeInconsistency, ZookeeperError
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, OPEN_ACL_UNSAFE

# The operations of a transaction, and the error of a transaction that the server refused.


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. Fails if it exists."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    acl: tuple[ACL, ...] = field(default=tuple(OPEN_ACL_UNSAFE), repr=False)


@dataclass(frozen=True, slots=True)
class Set:
    """Write a node. Fails if it does not exist or has another version."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node. Fails if it does not exist, has children, or has another version than the one given."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Fail unless the node exists and has the version, if one is given."""

    path: str
    version: int = -1


Operation = Create | Set | Delete | Check
AnOperation = TypeVar("AnOperation", bound=Operation)


class SessionFence(NamedTuple):
    """Lets a transaction succeed only in this session, and only if the checks succeed."""

    session_id: int
    checks: tuple[Check, ...]


class TransactionFailed(Exception):
    """Strictly private to `zookeeper`: the first operation that failed. The caller raises a public error for it."""

    def __init__(self, index: int, operation: Operation, error: Exception) -> None:
        super().__init__(f"operation {index}, {operation}: {type(error).__name__}")
        self.index = index
        self.operation = operation
        self.error = error


def first_failure(operations: Sequence[Operation], results: Sequence[object]) -> TransactionFailed | None:
    """Return the failure in a server's answer, None if there was none.

    The results before the failed operation are `RolledBackError`, those after it `RuntimeInconsistency`.
    """
    for index, result in enumerate(results):
        if isinstance(result, ZookeeperError) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            return TransactionFailed(index, operations[index], result)
    return None


def stats(results: Sequence[object]) -> list[ZnodeStat]:
    """Return the stats of the nodes that the `Set` operations wrote, in order."""
    return [result for result in results if isinstance(result, ZnodeStat)]


def last_write(operations: Sequence[Operation]) -> Operation:
    """Return the last operation that changes a node. If all are checks, return the last one."""
    changes = (operation for operation in reversed(operations) if not isinstance(operation, Check))
    return next(changes, operations[-1])


def is_divisible(operations: Sequence[Operation]) -> bool:
    """Return True if more than one operation changes a node. If so, the caller may try smaller transactions."""
    return sum(not isinstance(operation, Check) for operation in operations) > 1


# How large the requests of a session may be, as far as is known.


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


# Compute the size of transactions, and divide operations into transactions that fit into a request.


MAX_BATCH_OPERATIONS: Final = 2_000
"""The number of operations at which to start a new transaction."""

ENVELOPE_BYTES: Final = 32
"""An upper bound for the bytes of a request besides its operations."""
_HEADER_BYTES: Final = 9
"""The bytes before each operation."""


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
