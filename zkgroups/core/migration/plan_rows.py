"""A migration as rows: what is planned for each offset, and what became of it. Spark's tables have these columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..kafka_values import NativeOffset
from ..znodes.topic_partition import TopicPartition
from .rules import Action, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """
    What is planned for one offset of one group.

    A group's plan is whole: it also has what only the target knows, because a rollback may have to put that back, too.
    """

    plan: str
    """Which plan it is of; the fence in a group says the same."""
    planned_ms: int
    source: str
    """What was read: a ZooKeeper with its chroot, or a snapshot."""
    brokers: str | None
    """None where no broker was asked."""
    retention_seconds: float | None
    """So long brokers keep offsets that nobody uses; None where they do not tell."""
    group: str
    topic: str | None
    """None, as the partition is, where a group's could not be read."""
    partition: int | None
    offset: int | None
    """What ZooKeeper has: the next message to read."""
    zxid: int | None
    committed_ms: int | None
    stale: bool
    """Whether it was last written longer ago than the operator cares for."""
    problem: str | None
    """Why there is no offset in the znode."""
    target: str
    """What the group is called there."""
    log_start: int | None
    log_end: int | None
    before: int | None
    """What the target had when it was planned; None where nothing was committed."""
    before_metadata: str | None
    before_epoch: int | None
    action: Action
    reason: Reason
    planned: int | None
    """The number to write, where one is."""
    obstacles: tuple[str, ...]
    """Why the group cannot be moved; the same in every row of it."""
    topics: str | None = None
    """Of these topics ZooKeeper's offsets were planned, by a regular expression; None: of all."""
    cluster: str | None = None
    """What the brokers call their cluster, by whichever address it is reached."""
    rule: str | None = None
    """What the operator has said about all offsets, as `core.migration.Rule` writes it."""
    topic_id: str | None = None
    """Kafka's id of the topic, which changes if the topic is deleted and recreated. None with brokers before 2.8."""

    @property
    def at(self) -> TopicPartition | None:
        """The partition, where it is known."""
        known = self.topic is not None and self.partition is not None
        return TopicPartition.checked(self.topic, self.partition) if known else None  # type: ignore[arg-type]

    @property
    def prior(self) -> NativeOffset | None:
        """What the target had, as it is put back."""
        at = self.at
        if self.before is None or at is None:
            return None
        return NativeOffset(self.target, at, self.before, self.before_metadata, self.before_epoch)


OF_THE_PLAN: Final = ("plan", "planned_ms", "source", "brokers", "cluster", "retention_seconds", "topics", "rule")
"""The fields that are the same in all rows of a plan."""


class Step(StrEnum):
    """What is done with a plan."""

    APPLY = "apply"
    ROLLBACK = "rollback"
    TO_ZOOKEEPER = "to zookeeper"
    """Progress made on Kafka, carried back."""
    VERIFY = "verify"


class Outcome(StrEnum):
    """What became of one row."""

    WRITTEN = "written"
    WOULD_WRITE = "would write"
    """It was a dry run."""
    THERE = "already there"
    SKIPPED = "skipped"
    """The plan says so."""
    LEFT = "left"
    """Its group was refused; the detail says why."""
    OVERTAKEN = "overtaken"
    """Written, but meanwhile other clients registered or committed on either side; the detail says what they did."""
    FAILED = "failed"
    """The brokers' own answer for this partition is the detail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """What became of one row of a plan: what was found, what was written instead, and the answer."""

    plan: str
    step: Step
    reported_ms: int
    group: str
    topic: str | None
    partition: int | None
    target: str
    found: int | None
    """What was there just before; None where nothing was committed, or nobody looked."""
    written: int | None
    """What is there now because of us; None also where it was taken away."""
    outcome: Outcome
    detail: str
    """Why a group was left, or what the broker answered; empty where all is well."""


class Match(StrEnum):
    """How both sides compare with the plan, and with each other."""

    EQUAL = "equal"
    """The target has what was planned, and ZooKeeper what it was planned from."""
    NOT_WRITTEN = "not written"
    """The target has what it had before."""
    AHEAD = "target ahead"
    """Of what was planned: somebody reads on there."""
    BEHIND = "target behind"
    GONE = "gone from the target"
    SOURCE_MOVED = "source moved"
    """The znode was written after it was planned."""
    SOURCE_GONE = "source gone"
    MADE_ANEW = "topic recreated"
    """The topic was deleted and recreated since the plan: the messages of the planned offset are gone."""
    UNKNOWN = "unknown"
    """One side could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRow:
    """One row of a plan against what both sides have now."""

    plan: str
    group: str
    topic: str | None
    partition: int | None
    target: str
    offset: int | None
    """What ZooKeeper has now."""
    native: int | None
    """What the target has now."""
    expected: int | None
    """What it is to have, by the plan."""
    match: Match
    dual_commit: str
    """Which a consumer that commits to both would go on from, the higher: zookeeper, kafka, either or neither.

    Empty where ZooKeeper was not asked.
    """
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """A plan, or what became of it, by groups."""

    group: str
    target: str
    obstacles: tuple[str, ...]
    counts: Mapping[str, int]
    """How many rows there are of each action, outcome or match."""
    lag_before: int | None
    """What is left to read by ZooKeeper's offsets; None where no log is known."""
    lag_after: int | None
    """The same by what the target will have."""
