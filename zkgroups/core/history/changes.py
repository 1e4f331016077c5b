"""The changes of nodes below `/consumers`, as a transaction log has them."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple


class ChangeKind(Enum):
    """What happened to a node; or a session has ended, which deleted its ephemeral nodes."""

    CREATED = 1
    WRITTEN = 2
    DELETED = 3
    SESSION_ENDED = 4


class SessionEnd(StrEnum):
    """Why a session has ended: its client closed it, or the server heard nothing from the client for too long."""

    CLOSED = "closed"
    EXPIRED = "expired"


class KnownNode(NamedTuple):
    """A node that existed before the first change.

    - `session`: the session of an ephemeral node; 0 for other nodes.
    - `czxid`, `created_ms`: the transaction that created it, and its time.
    """

    path: bytes
    data: bytes
    session: int
    version: int
    czxid: int
    created_ms: int


class NodeChange(NamedTuple):
    """A change of one node.

    - `session`: the session that made the change; 0 for the server. For a session that has ended, that session.
    - `path`: below `/consumers/`, for example `billing/offsets/orders/0`. Empty for the end of a session.
    - `data`, `version`: the new data and version of the node. Empty and 0 for a deleted node.
    - `writes`: how often the transaction wrote the node, which increases its version; its creation counts.
    - `is_ephemeral`: True for a created node that is deleted when the session ends.
    - `end`, `ended`: for the end of a session, its reason, and the paths of its nodes as far as the transaction lists
      them (since ZooKeeper 3.6).
    """

    zxid: int
    time_ms: int
    session: int
    kind: ChangeKind
    path: bytes
    data: bytes = b""
    version: int = 0
    writes: int = 1
    is_ephemeral: bool = False
    end: SessionEnd | None = None
    ended: tuple[bytes, ...] = ()

    @property
    def node(self) -> KnownNode:
        """A created node."""
        session = self.session if self.is_ephemeral else 0
        return KnownNode(self.path, self.data, session, self.version, self.zxid, self.time_ms)
