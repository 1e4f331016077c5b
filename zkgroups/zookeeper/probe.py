"""Whether a server answers many reads in one request, found out without harm.

One that does not, before ZooKeeper 3.6, closes the connection that asked; every holder of a claim on it would hear that
the connection is lost. So another connection asks, as the same user, and the answer is kept with the session.
"""

from __future__ import annotations

from typing import Any, Final

from kazoo.exceptions import KazooException, UnimplementedError
from kazoo.handlers.threading import KazooTimeoutError

from ..exceptions import ZkgroupsException
from .corrections import close
from .deadline import Deadline
from .multiread import Kind, MultiRead, operations
from .session import Session
from .twin import twin

PATIENCE: Final = 5.0
"""As long as this a walk may be held up; then it reads in the way that every server knows."""


def knows_multiread(session: Session, timeout: float) -> bool:
    """Whether this session's servers do; asked once, unless there was no answer."""
    if session.reads_many is None:
        session.reads_many = _ask(session.client, Deadline(min(timeout, PATIENCE)))
    return bool(session.reads_many)


def _ask(client: Any, deadline: Deadline) -> bool | None:
    second = twin(client, deadline.seconds)
    session = Session.of(second)
    second.start_async()
    try:
        if not session.wait_connected(deadline):
            return None
        answer = second.handler.async_result()
        second._call(MultiRead(operations(Kind.NODE, b"", [b"zookeeper"])), answer)
        answer.get(timeout=deadline.remaining)
    except UnimplementedError:
        return False
    except (KazooException, KazooTimeoutError, ZkgroupsException):
        return None
    finally:
        close(second)
    return True
