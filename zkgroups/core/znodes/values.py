"""Values decoded from znodes, and the values that stand for znodes which cannot be read or decoded.

All are frozen. Public times are aware datetimes in UTC, None if unknown. They are stored as milliseconds, because a
read can return millions of values. Sessions are ZooKeeper's session ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from ..times import from_ms, utc
from .session_ids import session_hex
from .topic_partition import TopicPartition


class Pattern(StrEnum):
    """How the names in a registration choose topics."""

    STATIC = "static"
    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


class StartAt(StrEnum):
    """Where to start reading a partition without a committed offset: at the log start or at the log end."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Dialect(StrEnum):
    """The client that wrote a registration, judged by its form."""

    ZKGROUPS = "zkgroups"
    SCALA = "scala"
    KAZOO_GO = "kazoo-go"
    PYKAFKA = "pykafka"


@dataclass(frozen=True, slots=True)
class Registration:
    """What an instance subscribes to: each topic (or expression, with a pattern) and its number of streams."""

    streams: Mapping[str, int]
    pattern: Pattern = Pattern.STATIC
    timestamp: datetime | None = None
    """The time that the client wrote into the registration."""
    version: int = 1
    dialect: Dialect = Dialect.ZKGROUPS
    assignors: tuple[str, ...] = ()
    """The assignors that a zkgroups member supports, in order of preference. Empty for an instance without a member."""
    include_internal: bool = False
    """True if a pattern may choose Kafka's internal topics."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "streams", MappingProxyType(dict(self.streams)))

    def __hash__(self) -> int:
        return hash((frozenset(self.streams.items()), *self._rest()))

    def __reduce__(self) -> tuple[object, ...]:
        """A read-only mapping cannot be pickled."""
        return (Registration, (dict(self.streams), *self._rest()))

    def _rest(self) -> tuple[object, ...]:
        return (
            self.pattern,
            self.timestamp,
            self.version,
            self.dialect,
            self.assignors,
            self.include_internal,
        )


@dataclass(frozen=True, slots=True)
class MalformedNode:
    """A znode whose data cannot be decoded: the data as read, and the reason."""

    path: str
    data: bytes
    reason: str
    session: int = 0
    version: int = 0
    _created_ms: int = 0

    @property
    def created_at(self) -> datetime | None:
        """When the partition was claimed, for an owner node; None for other nodes."""
        return from_ms(self._created_ms)

    @property
    def shown(self) -> str:
        """The data, shortened for a message."""
        text = repr(self.data)
        return text if len(text) <= 80 else f"{text[:76]}..., {len(self.data)} bytes"

    @property
    def holder(self) -> str:
        """Describe the owner of a partition whose owner node is malformed."""
        since = f" since {utc(self._created_ms)}" if self._created_ms else ""
        return f"a malformed node, {self.path} of session {session_hex(self.session)}{since} ({self.reason})"


@dataclass(frozen=True, slots=True)
class ForbiddenNode:
    """A znode that the server does not let this client read."""

    path: str
    reason: str = "no permission to read it"
    session: int = 0
    version: int = 0
    _created_ms: int = 0
    persistent: bool = False
    """True if the server reported that the node belongs to no session, and has no nodes below it.

    Only registrations are asked for this. ZooKeeper 3.9 and later do not answer without permission to read.
    """

    @property
    def created_at(self) -> datetime | None:
        """When the node was created, if the server reported it."""
        return from_ms(self._created_ms)

    @property
    def shown(self) -> str:
        """The reason: the data is unknown."""
        return self.reason

    @property
    def holder(self) -> str:
        """Describe the owner of a partition whose owner node is forbidden."""
        return f"a forbidden node, {self.path} ({self.reason})"


UnreadableNode: TypeAlias = MalformedNode | ForbiddenNode
"""A znode that was not read as a value. Reads return it in place of the value, so one bad node never stops the others.

>>> def explain(found: CommittedOffset | UnreadableNode) -> str:
...     match found:
...         case ForbiddenNode():
...             return f"ask for permission to read {found.path}"
...         case MalformedNode():
...             return f"{found.path} holds {found.shown}"
...         case CommittedOffset():
...             return str(found.offset)
>>> explain(MalformedNode("/consumers/billing/offsets/orders/0", b"7 ", "not a plain decimal number"))
"/consumers/billing/offsets/orders/0 holds b'7 '"
"""


@dataclass(frozen=True, slots=True)
class UnevaluableRegistration:
    """A registration whose subscription zkgroups cannot evaluate: the instance may subscribe to any topic, or to none.

    Members ignore it, like a malformed registration. The partitions that its instance owns stay with that instance.
    """

    node: MalformedNode
    """The registration as a malformed node: its path, data and session."""
    registration: Registration
    """The registration, with the expression as written."""
    reason: str


ReadRegistration: TypeAlias = Registration | UnevaluableRegistration | UnreadableNode
"""The result of reading a registration."""


def unreadable_part(registration: ReadRegistration | None) -> UnreadableNode | None:
    """Return the node to report as unreadable, if the registration cannot be read or evaluated."""
    match registration:
        case UnevaluableRegistration():
            return registration.node
        case MalformedNode() | ForbiddenNode():
            return registration
        case Registration() | None:
            return None


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a partition: the id in the owner node, and the session of that node.

    The id alone proves nothing: only an instance with this id and this session owns the partition.
    """

    at: TopicPartition
    id: str
    session: int
    _claimed_ms: int = 0
    version: int = 0
    czxid: int = 0
    path: str = field(default="", repr=False)

    @property
    def claimed_at(self) -> datetime | None:
        """When the partition was claimed."""
        return from_ms(self._claimed_ms)

    def instance(self, ids: Iterable[str]) -> str | None:
        """Return the id in `ids` that this owner has, with or without a stream number; None for an orphan.

        >>> Owner(TopicPartition("t", 0), "billing_h-17-ab12cd34-0", session=1).instance({"billing_h-17-ab12cd34"})
        'billing_h-17-ab12cd34'
        """
        known = ids if isinstance(ids, set | frozenset | Mapping) else set(ids)
        if self.id in known:
            return self.id
        stem, dash, stream = self.id.rpartition("-")
        return stem if dash and stream.isascii() and stream.isdigit() and stem in known else None

    @property
    def holder(self) -> str:
        """Describe the owner for a message."""
        return f"{self.id!r} of session {session_hex(self.session)} since {utc(self._claimed_ms)}"


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next message to read of one partition, with the version and the times of its znode."""

    group: str
    at: TopicPartition
    offset: int
    version: int = 0
    _committed_ms: int = 0
    _created_ms: int = 0
    zxid: int = 0

    @property
    def committed_at(self) -> datetime | None:
        """When the offset was last written."""
        return from_ms(self._committed_ms)

    @property
    def created_at(self) -> datetime | None:
        """When an offset of this partition was first written."""
        return from_ms(self._created_ms)

    @property
    def shown(self) -> str:
        """The offset as text, for a message."""
        return str(self.offset)


CurrentOffset: TypeAlias = CommittedOffset | UnreadableNode | None
"""The result of reading an offset node. None if it does not exist."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as registered by Kafka, with its partition numbers. The numbers may have gaps."""

    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker as it registered itself. `host` is None if only `endpoints` has its addresses."""

    id: int
    host: str | None
    port: int | None
    endpoints: tuple[str, ...] = ()
