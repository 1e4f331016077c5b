"""The session, access control lists and timeout that all objects of one registry share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...deadline import Deadline
from .acl import KazooAcls
from .session import Session


@dataclass(frozen=True, slots=True)
class RegistryContext:
    """What an object of a registry needs for its requests."""

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
