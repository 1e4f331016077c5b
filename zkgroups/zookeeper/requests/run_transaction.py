"""Send a transaction until its outcome is known, and turn kazoo's errors into public ones.

A request whose reply was lost is never repeated blindly: `pinned_request.py` first finds out whether it was carried
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from kazoo.exceptions import ConnectionClosedError, KazooException, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError

from ...core.session_lifetime import session_hex
from ...core.znodes.paths import parent
from ...deadline import Deadline, uptime
from ...exceptions import NotConnectedError, OutcomeUnknownError, SessionLostError, TooLargeError
from ..kazoo_compat import internals
from ..session.errors import EXPIRED, LOSSES, translate
from ..session.session import RegistryContext, Session
from . import bulk_read
from .pinned_request import CHECK_FIRST, PinnedRequest, was_carried_out
from .transaction import (
    SMALLEST_LIMIT,
    AnOperation,
    Create,
    Operation,
    TransactionFailed,
    batches,
    first_failure,
    is_divisible,
    last_write,
)

_SOON: Final = 2.0
"""In seconds. A server drops the connection as soon as it has read the length of a request that is too large."""


def run_transaction(
    session: Session, operations: Sequence[Operation], *, session_id: int | None, deadline: Deadline
) -> list[Any]:
    """Carry out all operations or none, and return their results. See `Session.transact`.

    The results are empty if the reply was lost.
    """
    losses = 0
    while True:
        pinned = session.require_id(deadline) if session_id is None else session_id
        if not session.client.last_zxid:  # a new session; if the reply is lost, nodes must be known to be older
            session.exists("/", deadline=deadline)
        request = PinnedRequest(session.client, pinned, operations)
        results = _send(session, request, operations, deadline)
        lost_soon = request.sent and (deadline.passed or uptime() - request.sent_at < _SOON)
        if results is not None:
            session.limit.accepted(request.size, session_id=pinned)
            if (failure := first_failure(operations, results)) is not None:
                raise failure
            return results
        if request.sent and was_carried_out(session, request, operations, pinned, deadline):
            return []
        if session_id is not None and session.id != session_id:
            raise SessionLostError(f"session {session_hex(session_id)} {EXPIRED}")
        losses += lost_soon
        if losses >= (2 if is_divisible(operations) else 3) and request.size > SMALLEST_LIMIT:
            session.limit.lost_twice(request.size, session_id=pinned)
            raise TooLargeError(
                f"the connection was lost {losses} times during a request of {request.size} bytes about "
                f"{last_write(operations).path}: the server's jute.maxbuffer is probably smaller, and must be raised",
                size=request.size,
            )
        if not session.wait_connected(deadline):
            raise _not_changed(session, operations, deadline)


def _send(
    session: Session, request: PinnedRequest, operations: Sequence[Operation], deadline: Deadline
) -> list[Any] | None:
    """Return the server's answer, or None if it was lost, or if the session is no longer the given one."""
    answer = session.client.handler.async_result()
    path = last_write(operations).path
    try:
        internals.send(session.client, request, answer)
        results: list[Any] = internals.wait(answer.get, deadline)
    except KazooTimeoutError as error:
        if request.withdraw():
            raise _not_changed(session, operations, deadline) from error
        raise OutcomeUnknownError(
            f"no reply to a write of {path} within {deadline.seconds:g} s{CHECK_FIRST}"
        ) from error
    except ConnectionClosedError as error:
        if not request.withdraw():
            raise OutcomeUnknownError(
                f"the connection was closed before the reply to a write of {path}{CHECK_FIRST}"
            ) from error
        raise session.closed_error() from error
    except (*LOSSES, SessionExpiredError):
        return None
    except KazooException as error:
        raise translate(error, path) from error
    except BaseException:  # after a Ctrl-C, a queued request must not be sent later
        request.withdraw()
        raise
    return None if request.refused else results


def _not_changed(session: Session, operations: Sequence[Operation], deadline: Deadline) -> NotConnectedError:
    return NotConnectedError(
        f"could not connect to {session.servers} within {deadline.seconds:g} s; "
        f"{last_write(operations).path} was not changed"
    )


# Carry out many units of operations in as few transactions as the server accepts. A unit is never split.


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


# Create many directories in few requests, for example those of all topics of a claim.


def ensure_paths(context: RegistryContext, directories: Iterable[str], *, session_id: int | None = None) -> None:
    """Create the directories and their parents if they are missing. With `session_id`, only in that session."""
    wanted = list(dict.fromkeys(directories))
    for directory in dict.fromkeys(map(parent, wanted)):
        _ensure(context, directory, session_id)
    missing = [path for path, node in zip(wanted, bulk_read.nodes(context, wanted), strict=True) if node is None]
    units = [[Create(path, acl=context.acls.directories)] for path in missing]

    def create_all(batch: Batch[Create]) -> None:
        creates = [create for [create] in batch]
        try:
            context.session.transact(creates, session_id=session_id, deadline=context.deadline())
        except TransactionFailed:  # another client creates or deletes some of them at the same time
            for create in creates:
                _ensure(context, create.path, session_id)

    in_batches(context.session, units, create_all)


def _ensure(context: RegistryContext, path: str, session_id: int | None) -> None:
    context.session.ensure_path(path, acl=context.acls.directories, session_id=session_id, deadline=context.deadline())
