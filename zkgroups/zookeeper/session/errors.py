"""The one seam where kazoo's errors become ours, with the cause chained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kazoo import exceptions as kazoo
from kazoo.handlers.threading import KazooTimeoutError

from ...exceptions import (
    AuthenticationError,
    DamagedAnswerError,
    InvalidOptionError,
    NoPermissionError,
    NotConnectedError,
    ReadOnlyError,
    RefusedError,
    SessionLostError,
    UnavailableError,
    ZkgroupsException,
)
from ..requests.safe_decoding import DamagedAnswer

LOSSES = (kazoo.ConnectionLoss, kazoo.OperationTimeoutError, kazoo.SessionMovedError, kazoo.ConnectionDropped)
"""The answer may be lost although the request was carried out."""


_SERVER_ERRORS = (
    kazoo.SystemZookeeperError,
    kazoo.RuntimeInconsistency,
    kazoo.DataInconsistency,
    kazoo.MarshallingError,
    kazoo.UnimplementedError,
    kazoo.UnknownSessionError,
    kazoo.APIError,
    kazoo.RequestTimeoutError,
)
"""The server failed for reasons that have nothing to do with the request."""

_MEANINGS: tuple[tuple[tuple[type[BaseException], ...], Callable[[str], ZkgroupsException]], ...] = (
    ((kazoo.NoAuthError,), NoPermissionError),
    (
        (kazoo.AuthFailedError, kazoo.SessionClosedRequireSaslError),
        lambda _: AuthenticationError("the server did not accept the credentials, or insists on some"),
    ),
    (
        (kazoo.InvalidACLError,),
        lambda path: InvalidOptionError(
            "acl", path, "the server does not accept it: no such scheme, or a malformed id"
        ),
    ),
    (
        (kazoo.NotReadOnlyCallError,),
        lambda _: ReadOnlyError("the server has lost its quorum and answers reads only"),
    ),
    # a child of SessionExpiredError, so it comes first
    ((kazoo.ConnectionClosedError,), lambda _: NotConnectedError("the connection is closed")),
    ((kazoo.SessionExpiredError,), lambda _: SessionLostError("the session has ended")),
    ((KazooTimeoutError,), lambda path: NotConnectedError(f"no answer in time about {path}")),
    ((kazoo.QuotaExceededError,), lambda path: RefusedError(f"the quota on {path} is used up")),
    ((kazoo.ThrottledOpError,), lambda _: UnavailableError("the server is overloaded and turns requests away")),
    (LOSSES, lambda path: NotConnectedError(f"the connection was lost while asking for {path}")),
)


def translate(error: BaseException, path: str) -> ZkgroupsException:
    """Our error for one of kazoo's, met on `path`."""
    if isinstance(error, DamagedAnswer):
        return DamagedAnswerError(f"{path} could not be read: {error}")
    for kinds, meaning in _MEANINGS:
        if isinstance(error, kinds):
            return meaning(path)
    if isinstance(error, _SERVER_ERRORS):
        return UnavailableError(f"the server failed to answer about {path}: {type(error).__name__}")
    return ZkgroupsException(f"{path}: {type(error).__name__} {error}".rstrip())


def translate_of_read(error: BaseException, path: str) -> ZkgroupsException:
    """Translate kazoo's error for a read of `path`. Errors that only writes can cause mean a damaged answer."""
    found = translate(error, path)
    if type(found) is ZkgroupsException:
        return DamagedAnswerError(f"{path} could not be read: {type(error).__name__} is not an answer to a read")
    return found


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn kazoo's errors that pass through into ours."""
    try:
        yield
    except (kazoo.KazooException, KazooTimeoutError) as error:
        raise translate(error, path) from error
