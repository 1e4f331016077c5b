"""Planning whole groups: compare their nodes in ZooKeeper with the brokers, and decide on each offset.

The brokers are asked in bulk, for all groups of a chunk together. The range of each log is read once, however many
groups read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

from ..core.columns import Columns, column, grouped
from ..core.kafka_values import NativeGroup, NativeOffset, OffsetRange
from ..core.layouts.legacy import LEGACY
from ..core.migration.obstacles import GroupFacts, obstacles
from ..core.migration.offset_decision import (
    Action,
    Decision,
    NoOffset,
    Reason,
    Rule,
    Unknown,
    conflicts,
    decide,
    name_error,
)
from ..core.migration.plan_rows import OF_THE_PLAN, Places, PlanRow, places
from ..core.znodes.topic_partition import TopicPartition
from ..input_errors import ZkgroupsException
from ..kafka import Brokers
from .current_state import LogRanges, active_members


class SourceNode(NamedTuple):
    """An offset node or a registration of a group; or their directory, if it may not be listed.

    - `group`, `target`: the name of the group, and its name on the brokers. All rows of a target are consecutive.
    - `member`: True for a registration, which then has an `instance`. All other fields belong to offsets.
    - `topic`, `partition`, `offset`, `zxid`, `committed_ms`: as in the table of offsets.
    - `problem`: why the node cannot be read; then `no_offset` is set, too.
    - `forbidden`: True if the problem is a missing permission.
    """

    group: str
    target: str
    member: bool
    instance: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    zxid: int | None = None
    committed_ms: int | None = None
    problem: str | None = None
    no_offset: NoOffset | None = None
    forbidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """The values that are the same for all rows of a plan.

    - `plan`: the id of the plan.
    - `planned_ms`: the time of the plan, in milliseconds since 1970.
    - `source`, `brokers`: where the groups come from, and the brokers to move them to, as text.
    - `cluster`: the id of the brokers' cluster: `Brokers.cluster_id`.
    - `retention_seconds`: how long the brokers keep the offsets of an unused group: `Brokers.offsets_retention`.
    - `rule`: a `zkgroups.core.migration.offset_decision.Rule`, for offsets outside of the log and targets ahead.
    - `stale_after`: an offset is stale if it was not committed for this many seconds.
    - `topics`: the regular expression that chose the topics.
    - `topics_created`: the zxid that created each topic. An older offset belongs to an earlier topic with that name.
    - `layout`: where the offsets are in ZooKeeper.
    """

    plan: str
    planned_ms: int
    source: str = ""
    brokers: str | None = None
    cluster: str | None = None
    retention_seconds: float | None = None
    rule: Rule = field(default_factory=Rule)
    stale_after: float | None = None
    topics: str | None = None
    topics_created: Mapping[str, int] = field(default_factory=dict)
    layout: str = LEGACY.text

    def row_fields(self) -> dict[str, Any]:
        """Return the fields that have the same value in all rows of the plan."""
        return {name: getattr(self, name) for name in OF_THE_PLAN} | {"rule": str(self.rule)}

    def stale(self, committed_ms: Sequence[int | None]) -> list[bool]:
        """Return for each offset whether its last commit is too old."""
        if self.stale_after is None:
            return [False] * len(committed_ms)
        oldest = self.planned_ms - self.stale_after * 1000
        return [ms is not None and ms < oldest for ms in committed_ms]


class Planner:
    """Plans chunks of whole groups, one after the other. Without brokers, logs and targets are unknown."""

    def __init__(self, settings: PlanSettings, brokers: Brokers | None) -> None:
        self._settings = settings
        self._fields = settings.row_fields()
        self._brokers = brokers
        self._logs = LogRanges(brokers, settings.topics_created)
        self._missing: dict[Places, tuple[TopicPartition, ...]] = {}

    def plan(self, nodes: Sequence[SourceNode]) -> Sequence[PlanRow]:
        """Return the rows of these groups. All groups with the same target must be passed together."""
        groups = [*_groups(nodes)]
        targets = {group.name: group.target for group in groups}
        answers = _TargetAnswers.read(self._brokers, targets.values())
        for group in groups:
            group.native = answers.committed.get(group.target, {})
        self._logs.read(_partitions(groups))
        for group in groups:
            group.uncommitted = self._uncommitted(group)
        self._logs.read(chain.from_iterable(group.uncommitted for group in groups))
        rivals = conflicts(targets)
        facts = (answers.facts(group, rivals.get(group.target, [group.name])) for group in groups)
        parts = [*map(self._columns, groups, facts)]
        count = sum(len(part["group"]) for part in parts)

        def load(name: str) -> list[Any]:
            same = name in self._fields
            return [self._fields[name]] * count if same else [*chain.from_iterable(part[name] for part in parts)]

        return Columns(PlanRow, count, load)

    def _uncommitted(self, group: _Group) -> tuple[TopicPartition, ...]:
        """Return the partitions of the group's topics without an offset on either side, if both are known."""
        native = group.native
        if isinstance(native, ZkgroupsException):
            return ()
        if group.ats not in self._missing:  # most groups have the same partitions
            topics = dict.fromkeys(at.topic for at in group.ats if at is not None)
            self._missing[group.ats] = tuple(sorted({*self._logs.partitions(topics)} - {*group.ats}))
        return tuple(at for at in self._missing[group.ats] if at not in native)

    def _columns(self, group: _Group, facts: GroupFacts) -> dict[str, Sequence[Any]]:
        nodes = group.offsets()
        stale = self._settings.stale(column(nodes, "committed_ms"))
        decisions: Sequence[Decision] = ()
        if (decided := self._unchanged(group, nodes, stale)) is None:
            decided, decisions = self._decided(group, nodes, stale)
        blocked = tuple(obstacles(facts, decisions))
        same = {"group": group.name, "target": group.target, "obstacles": blocked}
        columns: dict[str, Sequence[Any]] = {name: [value] * len(nodes) for name, value in same.items()}
        return columns | {name: column(nodes, name) for name in _OF_THE_NODE} | {"stale": stale} | decided

    def _unchanged(
        self, group: _Group, nodes: Sequence[SourceNode], stale: Sequence[bool]
    ) -> dict[str, Sequence[Any]] | None:
        """Return the decisions as columns if all offsets are copied unchanged to a target without offsets.

        This is the usual case. Otherwise return None.
        """
        offsets, nothing = column(nodes, "offset"), [None] * len(nodes)
        if (
            group.native
            or group.uncommitted
            or any(stale)
            or any(column(nodes, name) != nothing for name in ("problem", "no_offset"))
        ):
            return None
        logs = self._logs.columns(places(nodes), column(nodes, "zxid"))
        if logs is None or not logs.contain(offsets):
            return None
        return {
            "log_start": logs.starts,
            "log_end": logs.ends,
            "before": nothing,
            "before_metadata": nothing,
            "before_epoch": nothing,
            "action": [Action.COMMIT] * len(nodes),
            "reason": [Reason.UNCHANGED] * len(nodes),
            "planned": offsets,
            "topic_id": logs.topic_ids,
        }

    def _decided(
        self, group: _Group, nodes: Sequence[SourceNode], stale: Sequence[bool]
    ) -> tuple[dict[str, Sequence[Any]], list[Decision]]:
        """Decide on each offset. Return the decisions as columns and as objects."""
        ats = places(nodes)
        before = group.before(ats)
        logs = self._logs.ranges(ats)
        decisions = self._decisions(nodes, ats, before, stale, logs)
        there = [each if isinstance(each, NativeOffset) else None for each in before]
        columns: dict[str, Sequence[Any]] = {
            "log_start": [None if log is None else log.start for log in logs],
            "log_end": [None if log is None else log.end for log in logs],
            "before": [None if each is None else each.offset for each in there],
            "before_metadata": [None if each is None else each.metadata for each in there],
            "before_epoch": [None if each is None else each.leader_epoch for each in there],
            "action": [decision.action for decision in decisions],
            "reason": [decision.reason for decision in decisions],
            "planned": [decision.offset for decision in decisions],
            "topic_id": [*map(self._logs.topic_id, column(nodes, "topic"))],
        }
        return columns, decisions

    def _decisions(
        self,
        nodes: Sequence[SourceNode],
        ats: Sequence[TopicPartition | None],
        before: Sequence[NativeOffset | Unknown | None],
        stale: Sequence[bool],
        ranges: Sequence[OffsetRange | None],
    ) -> list[Decision]:
        unreadable, rule = NoOffset.UNREADABLE, self._settings.rule
        sources = (node.no_offset or (node.offset if node.problem is None else unreadable) for node in nodes)
        logs = map(self._logs.log, ats, column(nodes, "zxid"))
        targets = (each.offset if isinstance(each, NativeOffset) else each for each in before)
        known = zip(sources, logs, targets, stale, ranges, strict=True)
        return [
            decide(source, log, target, rule, stale=is_stale, newer=newer)
            for source, log, target, is_stale, newer in known
        ]


_OF_THE_NODE: Final = ("topic", "partition", "offset", "zxid", "committed_ms", "problem")
"""The fields that a row copies from its node."""


class _Group:
    """One group with its nodes in ZooKeeper and its offsets on the target."""

    def __init__(self, name: str, nodes: Sequence[SourceNode]) -> None:
        self.name = name
        self.nodes = nodes
        self.target = column(nodes, "target")[0]
        self.native: Mapping[TopicPartition, NativeOffset] | ZkgroupsException = {}
        self.uncommitted: Sequence[TopicPartition] = ()
        members = [node for node in nodes if node.member] if any(column(nodes, "member")) else []
        self.instances = tuple(sorted(node.instance for node in members if node.instance is not None))
        self._offsets = [node for node in nodes if not node.member] if members else nodes
        self.ats = places(self._offsets)

    @property
    def has_offsets(self) -> bool:
        """Whether the group has any offset node. Otherwise nothing can be planned."""
        return len(self._offsets) > 0

    def forbidden(self) -> str | None:
        """Return why a node of the group is forbidden; None if none is."""
        if not any(column(self.nodes, "forbidden")):
            return None
        return next(node.problem for node in self.nodes if node.forbidden)

    def offsets(self) -> Sequence[SourceNode]:
        """Return the offsets of both sides in order. Partitions without an offset in ZooKeeper get an empty node."""
        known = set(self.ats)
        native = () if isinstance(self.native, ZkgroupsException) else self.native
        only = [self._empty_node(at) for at in (*native, *self.uncommitted) if at not in known]
        if not only and None not in known and [*self.ats] == sorted(filter(None, self.ats)):
            return self._offsets
        return sorted([*self._offsets, *only], key=_sort_key)

    def _empty_node(self, at: TopicPartition) -> SourceNode:
        return SourceNode(group=self.name, target=self.target, member=False, topic=at.topic, partition=at.partition)

    def before(self, ats: Sequence[TopicPartition | None]) -> list[NativeOffset | Unknown | None]:
        """Return the offsets of the target."""
        if isinstance(self.native, ZkgroupsException):
            return [Unknown.TARGET] * len(ats)
        return [None if at is None else self.native.get(at) for at in ats]


def _groups(nodes: Sequence[SourceNode]) -> Iterator[_Group]:
    """Yield the groups that have offsets."""
    for name, of_group in sorted(grouped(nodes, "group").items()):
        group = _Group(name, of_group)
        if group.has_offsets:
            yield group


def _partitions(groups: Iterable[_Group]) -> list[TopicPartition]:
    """Return the partitions of these groups with an offset on either side."""
    found = dict.fromkeys(at for ats in dict.fromkeys(group.ats for group in groups) for at in ats if at is not None)
    for group in groups:
        if not isinstance(group.native, ZkgroupsException):
            found |= dict.fromkeys(group.native)
    return [*found]


def _sort_key(node: SourceNode) -> tuple[str, int]:
    return node.topic or "", -1 if node.partition is None else node.partition


@dataclass(frozen=True, slots=True)
class _TargetAnswers:
    """The offsets and members of the targets, as the brokers know them."""

    committed: Mapping[str, Mapping[TopicPartition, NativeOffset] | ZkgroupsException]
    groups: Mapping[str, NativeGroup | ZkgroupsException]

    @classmethod
    def read(cls, brokers: Brokers | None, targets: Iterable[str]) -> _TargetAnswers:
        if brokers is None:
            return cls({}, {})
        valid = [target for target in dict.fromkeys(targets) if name_error(target) is None]
        return cls(brokers.committed_or_error(valid), brokers.groups(valid))

    def facts(self, group: _Group, sharing: Sequence[str]) -> GroupFacts:
        """Return the state of a group, given the groups that share its target."""
        native, offsets = self.groups.get(group.target), self.committed.get(group.target)
        forbidden = group.forbidden()
        errors = [str(each) for each in (native, offsets) if isinstance(each, ZkgroupsException)]
        error = name_error(group.target)
        return GroupFacts(
            legacy=group.instances,
            native=active_members(native) if isinstance(native, NativeGroup) else (),
            rivals=() if error else tuple(name for name in sharing if name != group.name),
            name_error=error,
            unreadable="; ".join(dict.fromkeys(([forbidden] if forbidden else []) + errors)),
        )
