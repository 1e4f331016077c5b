"""The session, access control lists and timeout that all objects of one registry share."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from kazoo.security import OPEN_ACL_UNSAFE

from ...deadline import Deadline
from .session import Session

_OPEN: Final = tuple(OPEN_ACL_UNSAFE)


class KazooAcls(NamedTuple):
    """The access control lists of an `AclPolicy` in the form that kazoo accepts. By default, all are open."""

    directories: tuple[Any, ...] = _OPEN
    ephemerals: tuple[Any, ...] = _OPEN
    offsets: tuple[Any, ...] = _OPEN


class RegistryContext(NamedTuple):
    """The session, the access control lists and the timeout with which an object of a registry sends requests."""

    session: Session
    acls: KazooAcls
    timeout: float

    def deadline(self) -> Deadline:
        """Start the timeout of one call."""
        return Deadline(self.timeout)


class _HasContext(Protocol):
    _context: RegistryContext


def context_of(owner: _HasContext) -> RegistryContext:
    """Return the context of a `Registry` or `Consumergroup`. For use inside zkgroups only."""
    return owner._context
