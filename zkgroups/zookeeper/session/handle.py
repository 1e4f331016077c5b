"""What all objects of one registry share: the session, the access control lists for new nodes, the time limit."""

from __future__ import annotations

from dataclasses import dataclass

from ...deadline import Deadline
from .acl import KazooAcls
from .session import Session


@dataclass(frozen=True, slots=True)
class Handle:
    """One registry's way to ZooKeeper."""

    session: Session
    acls: KazooAcls
    timeout: float

    def deadline(self) -> Deadline:
        """The time limit of one call that begins now."""
        return Deadline(self.timeout)
