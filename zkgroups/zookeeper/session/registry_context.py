"""The session, access control lists and timeout that all objects of one registry share."""

from __future__ import annotations

from dataclasses import dataclass

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
