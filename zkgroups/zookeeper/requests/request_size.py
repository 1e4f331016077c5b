"""Compute the size of transactions, and divide operations into transactions that fit into a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from .request_limit import MAX_BATCH_BYTES, MAX_REQUEST_BYTES
from .transaction import AnOperation, Create, Operation, Set

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
