"""The changes of nodes below `/consumers`, as a transaction log has them: what their paths mean, and their period."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, Self

from ...exceptions import InvalidOptionError
from ..time_formats import parse_time
from ..znodes.codecs import decode_offset_path, decode_owner_path
from ..znodes.paths import Part

# The changes of nodes below `/consumers`, as a transaction log has them.


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


# The meaning of a path below `/consumers/`: a group, a registration, an offset or an owner node.


class PlaceKind(Enum):
    """What a node is."""

    GROUP = 1
    REGISTRATION = 2
    OFFSET = 3
    OWNER = 4
    OTHER = 5


class Place(NamedTuple):
    """What a node is, and the names in its path that apply.

    - `id`: of a registration.
    - `topic`, `number`: the partition of an offset or of an owner node.
    """

    kind: PlaceKind
    group: str
    id: str = ""
    topic: str = ""
    number: int = 0


@lru_cache(maxsize=2**16)  # nodes are created and deleted again and again
def place_of(path: bytes) -> Place:
    """Return the meaning of a path.

    >>> place_of(b"billing/owners/b'orders'/1001-3")
    Place(kind=<PlaceKind.OWNER: 4>, group='billing', id='', topic='orders', number=3)
    """
    group, *names = path.decode(errors="backslashreplace").split("/")
    match names:
        case []:
            return Place(PlaceKind.GROUP, group)
        case [Part.IDS, id]:
            return Place(PlaceKind.REGISTRATION, group, id)
        case [Part.OFFSETS, topic, name] if at := decode_offset_path(topic, name):
            return Place(PlaceKind.OFFSET, group, topic=at.topic, number=at.partition)
        case [Part.OWNERS, topic, name] if at := decode_owner_path(topic, name):
            return Place(PlaceKind.OWNER, group, topic=at.topic, number=at.partition)
    return Place(PlaceKind.OTHER, group)


# The period of a history: from one moment to another, each of which is a time or a transaction.


_ZXID: Final = re.compile("0x[0-9a-f]{1,16}", re.IGNORECASE)


class Moment(NamedTuple):
    """A transaction, or a time in milliseconds."""

    zxid: int | None = None
    time_ms: int | None = None

    @classmethod
    def parse(cls, text: str, option: str, *, now_ms: int | None = None) -> Self:
        """Parse a transaction such as 0x1a2b, or a time as `parse_time` does. Errors name the option.

        >>> Moment.parse("0x1F", "since"), Moment.parse("2026-01-31T12:00:00", "since")
        (Moment(zxid=31, time_ms=None), Moment(zxid=None, time_ms=1769860800000))
        """
        if _ZXID.fullmatch(text):
            return cls(zxid=int(text, 16))
        try:
            return cls(time_ms=parse_time(text, now_ms=now_ms))
        except InvalidOptionError as error:
            others = "" if now_ms is None else ", yesterday, 2h (ago)"
            reason = f"it must be a time like 2026-01-31T12:00{others}, or a transaction like 0x1f"
            raise InvalidOptionError(option, text, reason) from error

    def is_before(self, zxid: int, time_ms: int) -> bool:
        """Return whether the moment is earlier than a transaction."""
        return self.zxid < zxid if self.zxid is not None else (self.time_ms or 0) < time_ms

    def is_after(self, zxid: int, time_ms: int) -> bool:
        """Return whether the moment is later than a transaction."""
        return self.zxid > zxid if self.zxid is not None else (self.time_ms or 0) > time_ms


@dataclass(frozen=True, slots=True)
class Period:
    """The transactions from one moment to another, which both belong to it. None stands for no limit."""

    since: Moment | None = None
    until: Moment | None = None

    def has(self, zxid: int, time_ms: int) -> bool:
        """Return whether a transaction belongs to the period.

        >>> Period(since=Moment(zxid=7)).has(7, 0), Period(until=Moment(time_ms=1000)).has(7, 1001)
        (True, False)
        """
        if self.since is not None and self.since.is_after(zxid, time_ms):
            return False
        return self.until is None or not self.until.is_before(zxid, time_ms)


ALWAYS: Final = Period()
"""All transactions."""
