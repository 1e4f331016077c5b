"""Send a transaction until its outcome is known, and turn kazoo's errors into public ones.

A request whose reply was lost is never repeated blindly: `lost_replies.py` first finds out whether it was carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kazoo.exceptions import ConnectionClosedError, KazooException, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError

from ...core.znodes.session_ids import session_hex
from ...deadline import Deadline, uptime
from ...exceptions import NotConnectedError, OutcomeUnknownError, SessionLostError, TooLargeError
from ..kazoo_compat import internals
from ..session.errors import EXPIRED, LOSSES, translate
from .lost_replies import CHECK_FIRST, was_carried_out
from .pinned_request import PinnedRequest
from .request_limit import SMALLEST_LIMIT
from .transaction import Operation, first_failure, is_divisible, last_write

if TYPE_CHECKING:
    from ..session.session import Session

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
    """Return the server's answer. None if it was lost, or if the session is no longer the given one."""
    answer = session.client.handler.async_result()
    path = last_write(operations).path
    try:
        internals.send(session.client, request, answer)
        results: list[Any] = answer.get(timeout=deadline.remaining)
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
