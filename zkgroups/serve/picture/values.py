"""The picture of a cluster: all that pages, metrics and the API show. Nothing in it ever changes.

A sweep makes a picture. Readers use the last one, as long as they like. Times are in milliseconds since 1970, rates per
second, and ages in seconds. None stands for an unknown value.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ...core.doctor.findings import Finding
from ...core.health import Verdict, next_step
from ...core.kafka_values import OffsetRange
from ...core.znodes.own_nodes import MarkState
from ...core.znodes.states import GroupState, InstanceState
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import Owner


class PartitionPicture(NamedTuple):
    """One partition of a group.

    - `commits`: how often the offset was written since its node was created.
    - `owner`, `owner_ms`: the instance that owns it, registered or not, and since when.
    - `holder`: if it is orphaned or blocked, the owner that the verdict is about, perhaps not `owner`; None if its
      node is unreadable.
    - `time_lag`: the age of the first unread message in seconds.
    - `consumed`, `produced`: messages per second.
    """

    at: TopicPartition
    offset: int | None
    committed_ms: int | None
    commits: int | None
    log: OffsetRange | None
    lag: int | None
    time_lag: float | None
    owner: str | None
    owner_ms: int | None
    consumed: float | None
    produced: float | None
    verdict: Verdict
    holder: Owner | None


class MemberPicture(NamedTuple):
    """One instance of a group. `subscription` is for people."""

    id: str
    state: InstanceState
    host: str | None
    registered_ms: int | None
    dialect: str | None
    client_id: str | None
    subscription: str
    owned: int


class EventKind(StrEnum):
    """What happened to a group: an instance came or went, or a partition got another owner or none."""

    JOINED = "joined"
    LEFT = "left"
    CLAIMED = "claimed"
    RELEASED = "released"
    STATUS = "status"


class GroupEvent(NamedTuple):
    """Something that happened to a group: when, what, and to whom. `at` is None for the group as a whole."""

    ms: int
    kind: EventKind
    subject: str
    at: TopicPartition | None = None


class TrendPoint(NamedTuple):
    """The total lag of a group at one time, and its commits since the point before."""

    ms: int
    lag: int | None
    commits: int


class Trend(NamedTuple):
    """The last totals of a group: `recent` has one point for each of the last sweeps, `older` one for ten minutes each.

    `older` has three numbers for each point, because thousands of groups have a day of them: the time, the largest lag
    or -1, and the commits.
    """

    older: array[int]
    recent: tuple[TrendPoint, ...]

    @property
    def points(self) -> tuple[TrendPoint, ...]:
        """All points, oldest first."""
        numbers = iter(self.older)
        triples = zip(numbers, numbers, numbers, strict=True)
        older = (TrendPoint(ms, None if lag < 0 else lag, commits) for ms, lag, commits in triples)
        return (*older, *self.recent)


class Counters(NamedTuple):
    """Events of a group since the server has started."""

    joined: int = 0
    left: int = 0
    owner_changes: int = 0


@dataclass(frozen=True, slots=True)
class GroupPicture:
    """One group with its totals. A total counts the partitions whose value is known; None if it is known for none.

    `in_use` is False if nobody uses the group any more: see `partition_health`.
    """

    name: str
    state: GroupState
    verdict: Verdict
    in_use: bool
    members: tuple[MemberPicture, ...]
    partitions: tuple[PartitionPicture, ...]
    lag: int | None
    time_lag: float | None
    consumed: float | None
    produced: float | None
    catch_up: float | None
    last_commit_ms: int | None
    unowned: int
    orphaned: int
    blocked: int
    unknown_lags: int
    migration: MarkState | None
    trend: Trend
    events: tuple[GroupEvent, ...]
    counters: Counters
    findings: tuple[Finding, ...]

    @property
    def living(self) -> int:
        """The number of registered instances that may be alive."""
        gone = (InstanceState.LEAVING, InstanceState.DEAD)
        return sum(member.state not in gone for member in self.members)

    @property
    def next_step(self) -> str:
        """What to do now; empty if nothing needs to be done."""
        topics = (each.at.topic for each in self.partitions if each.verdict.status is self.verdict.status)
        return next_step(self.name, self.verdict, topic=next(topics, ""), members=self.living)

    @property
    def has_moved(self) -> bool:
        """True if the group was moved to Kafka's own offsets, so that its offsets in ZooKeeper mean nothing now."""
        return self.migration is MarkState.MOVED


class TopicPicture(NamedTuple):
    """A topic: its logs by partition, its production if a group reads it, and its readers."""

    logs: Mapping[int, OffsetRange]
    produced: float | None
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceState:
    """Whether a source answers: ZooKeeper, or the brokers.

    - `read_ms`: when it was last read; None if never.
    - `problem`: why it does not answer now; empty if it does.
    - `since_ms`: since when it does not answer; None if it does.
    - `is_read_only`: True if the ZooKeeper server has lost its quorum, so that its answers may be out of date.
    """

    read_ms: int | None = None
    problem: str = ""
    since_ms: int | None = None
    is_read_only: bool = False

    @property
    def answers(self) -> bool:
        """True if the last attempt to read it has succeeded."""
        return self.read_ms is not None and not self.problem


@dataclass(frozen=True, slots=True)
class SweepStats:
    """The work of the server since its start, and of its last complete sweep."""

    sweeps: int = 0
    failures: int = 0
    requests: int = 0
    """Requests to ZooKeeper."""
    last_seconds: float = 0.0
    last_requests: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """All groups of a cluster at one moment.

    `number` grows with every picture. `brokers` is None if no brokers are configured. `live` is True if changes of
    members and owners arrive at once. `groups` is sorted by name.
    """

    number: int
    cluster: str
    zookeeper: SourceState
    brokers: SourceState | None
    live: bool = False
    groups: Mapping[str, GroupPicture] = field(default_factory=dict)
    topics: Mapping[str, TopicPicture] = field(default_factory=dict)
    stats: SweepStats = SweepStats()

    @property
    def is_ready(self) -> bool:
        """True once the groups were read."""
        return self.zookeeper.read_ms is not None

    def age(self, now_ms: int) -> float | None:
        """The age of the groups in seconds."""
        read_ms = self.zookeeper.read_ms
        return None if read_ms is None else max(0, now_ms - read_ms) / 1000
