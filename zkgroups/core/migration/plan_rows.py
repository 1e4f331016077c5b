"""The rows of a migration: the plan, the report of a run, and the comparison of both sides.

The rows are tuples, because a migration has millions. Spark's tables have the same columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ..columns import column
from ..kafka_values import NativeOffset
from ..layouts.legacy import LEGACY
from ..znodes.topic_partition import TopicPartition, known_partition
from .obstacles import Obstacle
from .offset_decision import Action, Reason

PLAN_VERSION: Final = 4
"""The format of stored plans. Increase it when the fields of `PlanRow` or the stored words change."""

READABLE_VERSIONS: Final = (3, PLAN_VERSION)
"""Format 3 has fewer words."""


class PlanRow(NamedTuple):
    """
    The plan for one offset of one group.

    The plan of a group also contains the offsets that only the target has, because a rollback may have to restore them.
    """

    plan: str
    """The id of the plan. The mark of the group contains it, too."""
    planned_ms: int
    source: str
    """The ZooKeeper with its chroot, or the snapshot, that was read."""
    brokers: str | None
    """None if no broker was contacted."""
    retention_seconds: float | None
    """How long brokers keep the offsets of an unused group; None if unknown."""
    group: str
    topic: str | None
    """None, like the partition, if it could not be read."""
    partition: int | None
    offset: int | None
    """The offset in ZooKeeper: the next message to read."""
    zxid: int | None
    committed_ms: int | None
    stale: bool
    """Whether the last commit is older than the operator's limit."""
    problem: str | None
    """Why the znode holds no offset."""
    target: str
    """The name of the group on the brokers."""
    log_start: int | None
    log_end: int | None
    before: int | None
    """The offset of the target when the plan was made; None if there was none."""
    before_metadata: str | None
    before_epoch: int | None
    action: Action
    reason: Reason
    planned: int | None
    """The number to write, if the action is commit."""
    obstacles: tuple[Obstacle, ...]
    """Why the group cannot be moved; the same in all of its rows."""
    topics: str | None = None
    """The regular expression that chose the topics; None for all."""
    cluster: str | None = None
    """The id of the Kafka cluster."""
    rule: str | None = None
    """The operator's choices for all offsets, as `core.migration.Rule` writes them."""
    topic_id: str | None = None
    """Kafka's id of the topic, which changes if the topic is deleted and recreated. None with brokers before 2.8."""
    layout: str = LEGACY.text
    """Where the offsets are in ZooKeeper, as `core.layouts.parse_layout` reads it."""

    @property
    def at(self) -> TopicPartition | None:
        """The partition, if it is known."""
        return known_partition(self.topic, self.partition)

    @property
    def prior(self) -> NativeOffset | None:
        """The offset of the target before the plan, with metadata and leader epoch, for a rollback."""
        at = self.at
        if self.before is None or at is None:
            return None
        return NativeOffset(self.target, at, self.before, self.before_metadata, self.before_epoch)

    @property
    def is_commit(self) -> bool:
        """Whether an offset is to be written for this row."""
        return self.action is Action.COMMIT and self.planned is not None

    @property
    def expected(self) -> int | None:
        """The offset of the target once the plan is applied."""
        return self.planned if self.is_commit else self.before


Places = tuple[TopicPartition | None, ...]


def places(rows: Sequence[Any]) -> Places:
    """Return the partition of each row of a plan or its source, if it is known."""
    return _places(tuple(column(rows, "topic")), tuple(column(rows, "partition")))


@lru_cache(maxsize=256)  # most groups have the same partitions
def _places(topics: tuple[str | None, ...], partitions: tuple[int | None, ...]) -> Places:
    return tuple(map(known_partition, topics, partitions))


def all_commit(rows: Sequence[PlanRow]) -> bool:
    """Return whether an offset is to be written for each of these rows."""
    return None not in column(rows, "planned") and column(rows, "action").count(Action.COMMIT) == len(rows)


def commit_rows(rows: Sequence[PlanRow]) -> Sequence[PlanRow]:
    """Return the rows for which an offset is to be written."""
    return rows if all_commit(rows) else [row for row in rows if row.is_commit]


def expected_offsets(rows: Sequence[PlanRow]) -> list[int | None]:
    """Return the offset of the target for each row, once the plan is applied."""
    return list(column(rows, "planned")) if all_commit(rows) else [row.expected for row in rows]


OF_THE_PLAN: Final = (
    "plan",
    "planned_ms",
    "source",
    "brokers",
    "cluster",
    "retention_seconds",
    "topics",
    "rule",
    "layout",
)
"""The fields that have the same value in all rows of a plan."""


class MigrationStep(StrEnum):
    """The steps of a migration, as reports name them."""

    APPLY = "apply"
    ROLLBACK = "rollback"
    TO_ZOOKEEPER = "to zookeeper"
    """Copying progress from the brokers back to ZooKeeper."""
    VERIFY = "verify"


class Outcome(StrEnum):
    """The result of a step for one row."""

    WRITTEN = "written"
    WOULD_WRITE = "would write"
    """In a dry run."""
    THERE = "already there"
    SKIPPED = "skipped"
    """By the plan."""
    LEFT = "left"
    """The group was left unchanged; the detail is the reason."""
    OVERTAKEN = "overtaken"
    """Written, but other clients changed the group at the same time, or its mark could not be set; see the detail."""
    FAILED = "failed"
    """The detail is the error that the brokers returned for this partition."""
    NEWER = "newer in zookeeper"
    """In addition to another row of a rollback: a legacy client has committed in ZooKeeper since the plan. The offset
    found there is kept."""


class ReportRow(NamedTuple):
    """The result of a step for one row of the plan."""

    plan: str
    step: MigrationStep
    reported_ms: int
    group: str
    topic: str | None
    partition: int | None
    target: str
    found: int | None
    """The offset just before the step; None if there was none, or it was not read."""
    written: int | None
    """The offset that this step has written; None also if it deleted an offset."""
    outcome: Outcome
    detail: str
    """Why a group was left, or the error of a broker; empty on success."""


class Match(StrEnum):
    """How both sides compare with the plan."""

    EQUAL = "equal"
    """The target has the expected offset, and the znode has not changed since the plan."""
    NO_OFFSET = "no offset"
    """The target has no offset, as planned: new consumers start by their `auto.offset.reset`."""
    NOT_WRITTEN = "not written"
    """The target still has its earlier offset."""
    BLOCKED = "blocked"
    """The same, and the plan has obstacles: apply does not write this group."""
    AHEAD = "target ahead"
    """The target has more than planned, or than ZooKeeper when the plan was made."""
    BEHIND = "target behind"
    GONE = "gone from the target"
    SOURCE_MOVED = "source moved"
    """The znode was written after the plan."""
    SOURCE_GONE = "source gone"
    RECREATED = "topic recreated"
    """The topic was recreated since the plan: the messages before the planned offset were deleted."""
    UNKNOWN = "unknown"
    """One side could not be read."""


class MatchRow(NamedTuple):
    """The comparison of one row of a plan with both sides."""

    plan: str
    group: str
    topic: str | None
    partition: int | None
    target: str
    offset: int | None
    """The offset in ZooKeeper now."""
    native: int | None
    """The offset of the target now."""
    expected: int | None
    """The offset of the target once the plan is applied."""
    match: Match
    dual_commit: str
    """Where a consumer that commits to both continues (at the higher offset): zookeeper, kafka, either or
    neither. Empty if ZooKeeper was not read.
    """
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """Summary of the plan for one group."""

    group: str
    target: str
    obstacles: tuple[Obstacle, ...]
    counts: Mapping[str, int]
    """The number of rows by action and by reason."""
    lag_before: int | None
    """The total lag of the offsets in ZooKeeper; None if no log is known."""
    lag_after: int | None
    """The total lag of the offsets that the target will have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """Summary of a report for one group."""

    group: str
    target: str
    details: tuple[str, ...]
    """Why the group was left or overtaken."""
    counts: Mapping[str, int]
    """The number of rows by outcome; of a comparison, by match."""


# Counting the rows of plans, reports and comparisons.


_COUNTED: Final[dict[type[Any], dict[str, type[StrEnum]]]] = {
    PlanRow: {"action": Action, "reason": Reason},
    ReportRow: {"outcome": Outcome},
    MatchRow: {"match": Match},
}
"""The fields whose values are counted."""

_WORDS: Final = [[word.value for words in fields.values() for word in words] for fields in _COUNTED.values()]
"""The counted values of each kind of row, in order."""

_FAILURES: Final = (Outcome.FAILED, Outcome.OVERTAKEN)


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of groups and rows."""

    rows: int = 0
    groups: int = 0
    left: int = 0
    """Groups with obstacles."""
    failed: int = 0
    """Groups with failed or overtaken rows."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Rows by action and reason, by outcome, or by match."""

    @classmethod
    def of(cls, kind: type[Any], rows: Sequence[Any]) -> Tally:
        """Count all rows of some groups."""
        found: dict[str, int] = {}
        for name, words in _COUNTED.get(kind, {}).items():
            by_word = Counter(column(rows, name))
            found |= {word.value: by_word[word] for word in words if by_word[word]}
        groups = set(column(rows, "group" if kind is PlanRow else "target"))
        left, failed = _left_and_failed(kind, rows)
        return cls(len(rows), len(groups), len(left), len(failed), found)

    def __add__(self, other: Tally) -> Tally:
        counts = Counter(self.counts) + Counter(other.counts)
        words = next(words for words in _WORDS if counts.keys() <= set(words))
        return Tally(
            self.rows + other.rows,
            self.groups + other.groups,
            self.left + other.left,
            self.failed + other.failed,
            {word: counts[word] for word in words if counts[word]},
        )


def _left_and_failed(kind: type[Any], rows: Sequence[Any]) -> tuple[set[str], set[str]]:
    """Return the groups that count as left, and as failed."""
    if kind is PlanRow:
        return {group for group, found in _pairs(rows, "group", "obstacles") if found}, set()
    if kind is ReportRow:
        found = _pairs(rows, "target", "outcome")
        left = {target for target, outcome in found if outcome is Outcome.LEFT}
        return left, {target for target, outcome in found if outcome in _FAILURES}
    return set(), set()


def _pairs(rows: Sequence[Any], key: str, value: str) -> set[tuple[str, Any]]:
    return set(zip(column(rows, key), column(rows, value), strict=True))
