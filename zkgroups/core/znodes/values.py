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
from typing import Final, TypeAlias

from ..session_lifetime import session_hex
from ..times import to_ms, utc
from .topic_partition import TopicPartition

# Where the offsets of a group are: in ZooKeeper, on the brokers, or on both sides.


class Side(StrEnum):
    """A place for the members of a group, and for its committed offsets."""

    KAFKA = "kafka"
    ZOOKEEPER = "zookeeper"

    @property
    def shown(self) -> str:
        """The name in messages."""
        return "the brokers" if self is Side.KAFKA else "ZooKeeper"


@dataclass(frozen=True, slots=True)
class OffsetSides:
    """Where a member of a group in ZooKeeper commits its offsets, and where it reads them.

    - `truth`: the side that it reads, and commits to.
    - `both`: True if it also copies them to the other side.
    """

    truth: Side = Side.ZOOKEEPER
    both: bool = False

    def writes(self, side: Side) -> bool:
        """True if the member writes offsets to this side."""
        return self.both or side is self.truth

    def suits(self, other: OffsetSides) -> bool:
        """True if each of two members finds the offsets of the other.

        >>> zookeeper, kafka = OffsetSides(), OffsetSides(Side.KAFKA)
        >>> copies_to_kafka, copies_to_zookeeper = OffsetSides(both=True), OffsetSides(Side.KAFKA, both=True)
        >>> zookeeper.suits(copies_to_kafka), copies_to_kafka.suits(copies_to_zookeeper)
        (True, True)
        >>> zookeeper.suits(kafka), zookeeper.suits(copies_to_zookeeper)
        (False, False)
        """
        return self.writes(other.truth) and other.writes(self.truth)

    def __str__(self) -> str:
        return f"both, {self.truth} is the truth" if self.both else str(self.truth)


ONLY_ZOOKEEPER: Final = OffsetSides()
"""Where all clients but a `Consumer` with other options commit."""


class Pattern(StrEnum):
    """How the names in a registration choose topics.

    - static: they are names of topics
    - white_list: a regular expression; the instance subscribes to all topics whose whole names match it
    - black_list: a regular expression; the instance subscribes to all other topics

    Of several expressions, only the first counts. The syntax is Java's.
    """

    STATIC = "static"
    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


class StartAt(StrEnum):
    """Where to start reading a partition without a committed offset.

    - earliest: at the log start, the first offset that a broker still has
    - latest: at the log end, the offset of the next message
    """

    EARLIEST = "earliest"
    LATEST = "latest"


class Dialect(StrEnum):
    """The client that wrote a registration, judged by its form."""

    ZKGROUPS = "zkgroups"
    GATEWAY = "gateway"
    """A client of Kafka's group protocol, registered by a zkgroups gateway."""
    SCALA = "scala"
    KAZOO_GO = "kazoo-go"
    PYKAFKA = "pykafka"

    @property
    def is_of_zkgroups(self) -> bool:
        """True if zkgroups wrote it, for an instance or for a client of its gateway."""
        return self in (Dialect.ZKGROUPS, Dialect.GATEWAY)


@dataclass(frozen=True, slots=True)
class Registration:
    """The subscription of an instance.

    - `streams`: names of topics, or a regular expression, each with its number of streams. A stream is one
      reader: an instance with two streams of a topic gets two shares of its partitions.
    - `pattern`: how these names choose topics.
    - `timestamp`: the time that the client wrote into the registration.
    - `version`: the version of the format, 1 for all known clients.
    - `dialect`: the client that wrote it.
    - `assignors`: the strategies that a zkgroups `Member` supports, in order of preference. Empty for other instances.
    - `include_internal`: True if a pattern may choose Kafka's internal topics.
    - `client_id`, `client_host`: for a client of a gateway, its `client.id` and its address.
    - `moves`: True for a `Consumer`, which follows its group to the brokers and back.
    - `leaves`: True for a `Member` that leaves when its group is moved to the brokers.
    - `offsets`: where a `Consumer` commits its offsets.
    """

    streams: Mapping[str, int]
    pattern: Pattern = Pattern.STATIC
    timestamp: datetime | None = None
    version: int = 1
    dialect: Dialect = Dialect.ZKGROUPS
    assignors: tuple[str, ...] = ()
    include_internal: bool = False
    client_id: str = ""
    client_host: str = ""
    moves: bool = False
    leaves: bool = False
    offsets: OffsetSides = ONLY_ZOOKEEPER

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
            self.client_id,
            self.client_host,
            self.moves,
            self.leaves,
            self.offsets,
        )


@dataclass(frozen=True, slots=True)
class MalformedNode:
    """A znode whose data cannot be decoded. A read returns it in place of the value.

    - `path`: the path of the znode, without the chroot.
    - `data`: the data as read.
    - `reason`: why the data cannot be decoded.
    - `session`: the id of the session that the znode belongs to; 0 for a persistent znode.
    - `version`: the version of the znode. ZooKeeper increases it with each write.
    - `created_at`: for an owner node, when the partition was claimed, in UTC. None for other nodes.
    """

    path: str
    data: bytes
    reason: str
    session: int = 0
    version: int = 0
    created_at: datetime | None = None

    @property
    def shown(self) -> str:
        """The data, shortened for a message."""
        try:
            text = repr(self.data.decode())
        except UnicodeDecodeError:
            text = repr(self.data)
        return text if len(text) <= 80 else f"{text[:76]}..., {len(self.data)} bytes"

    @property
    def holder(self) -> str:
        """For a malformed owner node: the node as text, for a message. Like `Owner.holder`."""
        since = f" since {utc(to_ms(self.created_at))}" if self.created_at else ""
        return f"a malformed node, {self.path} of session {session_hex(self.session)}{since} ({self.reason})"


@dataclass(frozen=True, slots=True)
class ForbiddenNode:
    """A znode that this client has no permission to read. A read returns it in place of the value.

    - `path`: the path of the znode, without the chroot.
    - `reason`: why it was not read.
    - `session`: the id of the session that the znode belongs to; 0 if unknown, or if it belongs to none.
    - `version`: the version of the znode, if the server reported it.
    - `created_at`: when it was created, in UTC. None if unknown.
    - `persistent`: for a registration, True if the server reported that it belongs to no session, and has no nodes
      below it. ZooKeeper 3.9 and later do not report this without permission to read.
    """

    path: str
    reason: str = "no permission to read it"
    session: int = 0
    version: int = 0
    created_at: datetime | None = None
    persistent: bool = False

    @property
    def shown(self) -> str:
        """The reason: the data is unknown."""
        return self.reason

    @property
    def holder(self) -> str:
        """For a forbidden owner node: the node as text, for a message. Like `Owner.holder`."""
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
>>> explain(MalformedNode("/consumers/billing/offsets/orders/0", b"7 ", "not a decimal number"))
"/consumers/billing/offsets/orders/0 holds '7 '"
"""


@dataclass(frozen=True, slots=True)
class UnevaluableRegistration:
    """A registration whose subscription zkgroups cannot evaluate: the instance may subscribe to any topic, or to none.

    Members ignore it, like a malformed registration. The partitions that its instance owns stay with that instance.

    - `node`: the registration as a malformed node: its path, data and session.
    - `registration`: the registration, with the expression as written.
    - `reason`: why the subscription cannot be evaluated.
    """

    node: MalformedNode
    registration: Registration
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


def instance_of_owner(owner: str, ids: Iterable[str]) -> str | None:
    """Return the id in `ids` that is in the data of an owner node: see `Owner.instance`."""
    known = ids if isinstance(ids, set | frozenset | Mapping) else set(ids)
    if owner in known:
        return owner
    stem, dash, stream = owner.rpartition("-")
    return stem if dash and stream.isascii() and stream.isdigit() and stem in known else None


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a partition.

    - `at`: the partition.
    - `id`: the id in the owner node. Scala members and zkgroups members append `-` and the number of a stream to the id
      of their instance; see the method `instance`.
    - `session`: the id of the session that the owner node belongs to; 0 for a persistent node. Messages show it in
      hexadecimal. The `id` alone proves nothing: only an instance with this id and this session owns the partition.
    - `claimed_at`: when the partition was claimed, in UTC. None if unknown.
    - `version`: the version of the owner node.
    - `czxid`: the transaction that created the owner node. A later claim has a higher one.
    - `path`: the path of the owner node, without the chroot.
    """

    at: TopicPartition
    id: str
    session: int
    claimed_at: datetime | None = None
    version: int = 0
    czxid: int = 0
    path: str = field(default="", repr=False)

    def instance(self, ids: Iterable[str]) -> str | None:
        """Return the id in `ids` that this owner has, with or without the number of a stream. None for an orphan.

        >>> Owner(TopicPartition("t", 0), "billing_h-17-ab12cd34-0", session=1).instance({"billing_h-17-ab12cd34"})
        'billing_h-17-ab12cd34'
        """
        return instance_of_owner(self.id, ids)

    @property
    def holder(self) -> str:
        """The id, the session and the time of the claim as text, for a message."""
        return f"{self.id!r} of session {session_hex(self.session)} since {utc(to_ms(self.claimed_at))}"


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of one partition of one group.

    - `group`, `at`: the name of the group, and the partition.
    - `offset`: the next message to read. All messages before it are processed.
    - `version`: the version of the znode. ZooKeeper increases it with each commit.
    - `committed_at`: when it was last written, in UTC. None if unknown.
    - `created_at`: when the first offset of this partition was written, in UTC. None if unknown.
    - `zxid`: the transaction that wrote it. A later commit has a higher one.
    """

    group: str
    at: TopicPartition
    offset: int
    version: int = 0
    committed_at: datetime | None = None
    created_at: datetime | None = None
    zxid: int = 0

    @property
    def shown(self) -> str:
        """The offset as text, for a message."""
        return str(self.offset)


CurrentOffset: TypeAlias = CommittedOffset | UnreadableNode | None
"""The result of reading an offset node. None if it does not exist."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as registered by Kafka.

    - `name`: its name.
    - `partitions`: its partition numbers, sorted. They may have gaps.
    """

    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker as it registered itself.

    - `id`: its `broker.id`.
    - `host`, `port`: its address without TLS or SASL. None if only `endpoints` has its addresses.
    - `endpoints`: all its addresses with their protocols, such as `PLAINTEXT://kafka1:9092`.
    - `old_release`: "0.8.2" or "0.9.0" if it is so old that it does not report which requests it answers.
    """

    id: int
    host: str | None
    port: int | None
    endpoints: tuple[str, ...] = ()
    old_release: str | None = None
