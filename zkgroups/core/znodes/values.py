"""The values everything else speaks in: partitions, registrations, owners, offsets, and nodes that cannot be read.

All are frozen. Times are milliseconds since the epoch, as ZooKeeper keeps them; sessions are ZooKeeper's session ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Self, TypeAlias

from ...exceptions import InvalidNameError
from .paths import check_partition, check_topic


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic, e.g. `TopicPartition("orders", 0)`; names are checked when it is made.

    >>> sorted([TopicPartition("b", 2), TopicPartition("a", 10), TopicPartition("a", 9)])[-1]
    TopicPartition(topic='b', partition=2)
    >>> print(TopicPartition("orders", 0))
    orders/0
    """

    topic: str
    partition: int

    def __post_init__(self) -> None:
        check_topic(self.topic)
        check_partition(self.partition)

    @classmethod
    def checked(cls, topic: str, partition: int) -> Self:
        """Make one of names that have been checked already, for where there are millions."""
        made = object.__new__(cls)
        object.__setattr__(made, "topic", topic)
        object.__setattr__(made, "partition", partition)
        return made

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def check_at(at: object) -> TopicPartition:
    """Return what is a partition of a topic, or refuse it."""
    if not isinstance(at, TopicPartition):
        raise InvalidNameError("partition", at, "is no TopicPartition")
    return at


class Pattern(StrEnum):
    """How the names in a registration choose topics."""

    STATIC = "static"
    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


class StartAt(StrEnum):
    """Where to begin with a partition of which nothing is committed: where its log begins, or where it ends."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Dialect(StrEnum):
    """Which client wrote a registration, as far as its form tells."""

    ZKGROUPS = "zkgroups"
    SCALA = "scala"
    KAZOO_GO = "kazoo-go"
    PYKAFKA = "pykafka"


@dataclass(frozen=True, slots=True)
class Registration:
    """What an instance subscribes to: each topic (or expression, with a pattern) and its number of streams."""

    streams: Mapping[str, int]
    pattern: Pattern = Pattern.STATIC
    timestamp_ms: int | None = None
    version: int = 1
    dialect: Dialect = Dialect.ZKGROUPS
    assignors: tuple[str, ...] = ()
    """How a member of ours can share partitions, what it likes best first; nothing where it does not take part."""
    include_internal: bool = False
    """Whether a pattern may choose Kafka's own topics, too."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "streams", MappingProxyType(dict(self.streams)))

    def __hash__(self) -> int:
        return hash((frozenset(self.streams.items()), *self._rest()))

    def __reduce__(self) -> tuple[object, ...]:
        """A read-only mapping does not pickle by itself, and values travel between processes."""
        return (Registration, (dict(self.streams), *self._rest()))

    def _rest(self) -> tuple[object, ...]:
        return (
            self.pattern,
            self.timestamp_ms,
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
    created_ms: int = 0
    """Set for owner nodes only: when the partition was claimed."""

    @property
    def shown(self) -> str:
        """The data, shortened for a message."""
        text = repr(self.data)
        return text if len(text) <= 80 else f"{text[:76]}..., {len(self.data)} bytes"

    @property
    def holder(self) -> str:
        """Describe the owner of a partition whose owner node is malformed."""
        since = f" since {utc(self.created_ms)}" if self.created_ms else ""
        return f"a malformed node, {self.path} of session {session_hex(self.session)}{since} ({self.reason})"


@dataclass(frozen=True, slots=True)
class ForbiddenNode:
    """A znode that the server does not let this client read."""

    path: str
    reason: str = "no permission to read it"
    session: int = 0
    version: int = 0
    created_ms: int = 0
    persistent: bool = False
    """True if the server reported that the node belongs to no session, and has no nodes below it.

    Only registrations are asked for this. ZooKeeper 3.9 and later do not answer without permission to read.
    """

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
    """Who holds a partition: the text of the owner node, and the session without which the text means nothing."""

    at: TopicPartition
    id: str
    session: int
    claimed_ms: int = 0
    version: int = 0
    czxid: int = 0
    path: str = field(default="", repr=False)

    def instance(self, ids: Iterable[str]) -> str | None:
        """The one of `ids` that this owner is: exactly, or with the number of a stream cut off; None for an orphan.

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
        """How a message names the owner."""
        return f"{self.id!r} of session {session_hex(self.session)} since {utc(self.claimed_ms)}"


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next message to read of one partition, with the version and the times its znode carries."""

    group: str
    at: TopicPartition
    offset: int
    version: int = 0
    modified_ms: int = 0
    created_ms: int = 0
    zxid: int = 0

    @property
    def shown(self) -> str:
        """The offset, for a message."""
        return str(self.offset)


@dataclass(frozen=True, slots=True)
class NativeOffset:
    """The next message to read of one partition, as Kafka's own groups keep it, with the note of who committed it."""

    group: str
    at: TopicPartition
    offset: int
    metadata: str | None = None
    leader_epoch: int | None = None


class NativeState(StrEnum):
    """The state of a group of Kafka's own, in Kafka's words."""

    DEAD = "Dead"
    """There is no such group."""
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    UNKNOWN = "Unknown"
    """One that came with a release of Kafka later than what we ask with."""


@dataclass(frozen=True, slots=True)
class NativeMember:
    """One who takes part in a group of Kafka's own, as the group's coordinator knows it."""

    id: str
    client_id: str
    host: str
    instance_id: str | None = None

    def __str__(self) -> str:
        return f"{self.id} at {self.host.removeprefix('/')}"


@dataclass(frozen=True, slots=True)
class NativeGroup:
    """A group of Kafka's own; one that nobody has heard of is Dead."""

    name: str
    state: NativeState
    members: tuple[NativeMember, ...] = ()

    @property
    def in_use(self) -> bool:
        """Whether somebody takes part in it, or may."""
        return bool(self.members) or self.state not in (NativeState.DEAD, NativeState.EMPTY)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets a partition has: from the first that is there, up to the one that comes next."""

    start: int
    end: int

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset <= self.end


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as Kafka has registered it: its partition numbers, which need not be without gaps."""

    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Broker:
    """A living broker as it has registered itself; `host` is None where only `endpoints` says where it listens."""

    id: int
    host: str | None
    port: int | None
    endpoints: tuple[str, ...] = ()


def session_hex(session: int) -> str:
    """A session id as ZooKeeper's own tools print it; as a Java long it may be negative.

    >>> session_hex(-1)
    '0xffffffffffffffff'
    """
    return f"{session & 0xFFFF_FFFF_FFFF_FFFF:#x}"


def utc(ms: int) -> str:
    """A time for people, e.g. `2026-01-31T12:00:00Z`; a clock that is far off is shown as the number it gave.

    >>> utc(0), utc(-(2**62))
    ('1970-01-01T00:00:00Z', '-4611686018427387904 ms')
    """
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
