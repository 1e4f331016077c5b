"""Carry out many units of operations in as few transactions as the server accepts. A unit is never split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from ...exceptions import TooLargeError
from ..session.session import Session
from .request_size import batches
from .transaction import AnOperation, Operation

Batch: TypeAlias = list[Sequence[AnOperation]]


def first_batch(
    session: Session, units: Iterable[Sequence[AnOperation]], *, overhead: Sequence[Operation] = ()
) -> Batch[AnOperation]:
    """Return as many of the first units as fit into one transaction together with `overhead`."""
    return next(batches(units, overhead=overhead, chroot=session.chroot, limit=session.request_limit))


def in_batches(
    session: Session,
    units: Sequence[Sequence[AnOperation]],
    transact: Callable[[Batch[AnOperation]], object],
    *,
    overhead: Sequence[Operation] = (),
) -> None:
    """Carry out all units in order, each batch by one call of `transact`.

    A batch that is larger than the server accepts is split. Raise `TooLargeError` if a single unit is too large.
    """
    done = 0
    while done < len(units):
        batch = first_batch(session, (units[n] for n in range(done, len(units))), overhead=overhead)
        if try_batch(partial(transact, batch), batch):
            done += len(batch)


def try_batch(transact: Callable[[], object], batch: Sequence[object]) -> bool:
    """Carry out a batch. Return False if nothing was changed because the server accepts only smaller ones."""
    try:
        transact()
    except TooLargeError:
        if len(batch) == 1:
            raise
        return False
    return True
