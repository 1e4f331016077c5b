"""Turn kazoo's errors into the public ones of `zkgroups.exceptions`, with the cause chained. No other module does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kazoo import exceptions as kazoo
from kazoo.handlers.threading import KazooTimeoutError

from ...exceptions import (
    AuthenticationError,
    DamagedAnswerError,
    InvalidOptionError,
    NoPermissionError,
    NotConnectedError,
    ReadOnlyError,
    ReentrantCallError,
    RefusedError,
    SessionLostError,
    UnavailableError,
    ZkgroupsException,
    ZooKeeperTooOldError,
)
from ..kazoo_compat.safe_decoding import DamagedAnswer

# Detect a signal handler that needs a lock of the call it interrupts.
#
# Python runs a signal handler on the main thread, on top of the interrupted call. If the handler waited for a lock of
# that call, both would wait forever. So these locks are reentrant, and a second acquisition raises an error. Locks
# that are held only for a moment are reentrant, too, because a handler may read the fields that they guard.


def not_held(lock: Any, what: str) -> Any:
    """Return this `threading.RLock`. Raise `ReentrantCallError` if the current thread holds it already."""
    if lock._is_owned():  # `threading.Condition` uses this method, too
        raise ReentrantCallError(what)
    return lock


LOSSES = (kazoo.ConnectionLoss, kazoo.OperationTimeoutError, kazoo.SessionMovedError, kazoo.ConnectionDropped)
"""Errors after which the reply is lost, although the request may have been carried out."""


REJECTED = "rejected the credentials, or requires some: check the user and the password"

EXPIRED = "has expired; nothing was changed: register and claim again (a Member does this by itself)"

CLOSED = "the connection to ZooKeeper is closed: connect again"

_SERVER_ERRORS = (
    kazoo.SystemZookeeperError,
    kazoo.RuntimeInconsistency,
    kazoo.DataInconsistency,
    kazoo.MarshallingError,
    kazoo.UnknownSessionError,
    kazoo.APIError,
    kazoo.RequestTimeoutError,
)
"""Errors of the server that have nothing to do with the request."""

_MEANINGS: tuple[tuple[tuple[type[BaseException], ...], Callable[[str], ZkgroupsException]], ...] = (
    ((kazoo.NoAuthError,), NoPermissionError),
    (
        (kazoo.AuthFailedError, kazoo.SessionClosedRequireSaslError),
        lambda _: AuthenticationError(f"the server {REJECTED}"),
    ),
    (
        (kazoo.InvalidACLError,),
        lambda path: InvalidOptionError(
            "acl", path, "the server rejects it: the scheme is unknown or the id is malformed"
        ),
    ),
    (
        (kazoo.NotReadOnlyCallError,),
        lambda _: ReadOnlyError("the server has lost its quorum and answers reads only: try again later"),
    ),
    # a subclass of SessionExpiredError, so it comes first
    ((kazoo.ConnectionClosedError,), lambda _: NotConnectedError(CLOSED)),
    (
        (kazoo.SessionExpiredError,),
        lambda _: SessionLostError(
            "the session has expired with its registrations and claims: register again if needed, and try again"
        ),
    ),
    ((KazooTimeoutError,), lambda path: NotConnectedError(f"no answer in time to a request about {path}")),
    (
        (kazoo.QuotaExceededError,),
        lambda path: RefusedError(f"the quota of {path} is exceeded: raise it, or delete nodes"),
    ),
    (
        (kazoo.ThrottledOpError,),
        lambda _: UnavailableError("the server is overloaded and rejects requests: try again later"),
    ),
    # all other requests are older than transactions
    (
        (kazoo.UnimplementedError,),
        lambda path: ZooKeeperTooOldError(
            f"the server does not know the transaction that would write {path}: writing needs ZooKeeper 3.4 or newer"
        ),
    ),
    (LOSSES, lambda path: NotConnectedError(f"the connection was lost during a request about {path}")),
)


def translate(error: BaseException, path: str) -> ZkgroupsException:
    """Return the public error for an error that kazoo raised about `path`."""
    if isinstance(error, DamagedAnswer):
        return DamagedAnswerError(f"could not read {path}: {error}")
    for kinds, meaning in _MEANINGS:
        if isinstance(error, kinds):
            return meaning(path)
    if isinstance(error, _SERVER_ERRORS):
        return UnavailableError(f"the server could not process a request about {path}: {type(error).__name__}")
    return ZkgroupsException(f"{path}: {type(error).__name__} {error}".rstrip())


def translate_of_read(error: BaseException, path: str) -> ZkgroupsException:
    """Translate kazoo's error for a read of `path`. Errors that only writes can cause mean a damaged answer."""
    public = translate(error, path)
    if type(public) is ZkgroupsException:
        return DamagedAnswerError(f"could not read {path}: the server answered {type(error).__name__} to a read")
    return public


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Translate the errors that kazoo raises in the block."""
    try:
        yield
    except (kazoo.KazooException, KazooTimeoutError) as error:
        raise translate(error, path) from error
