"""Planning whole groups: compare their nodes in ZooKeeper with the brokers, and decide on each offset.

The brokers are asked in bulk, for all groups of a chunk together. The range of each log is read once, however many
groups read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any, Final

from ..core.columns import from_columns
from ..core.kafka_values import NativeGroup, NativeOffset
from ..core.migration.obstacles import GroupFacts, obstacles
from ..core.migration.offset_decision import Decision, NoOffset, Rule, Unknown, decide
from ..core.migration.plan_rows import OF_THE_PLAN, PlanRow
from ..core.migration.target_names import conflicts, name_error
from ..core.znodes.topic_partition import TopicPartition
from ..input_errors import ZkgroupsException
from ..kafka import Brokers
from .current_state import active_members
from .log_ranges import LogRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode:
    """An offset node or a registration of a group; or their directory, if it may not be listed.

    - `group`, `target`: the name of the group, and its name on the brokers. The rows of one target come together.
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

    @property
    def at(self) -> TopicPartition | None:
        """The partition, if it is known."""
        known = self.topic is not None and self.partition is not None
        return TopicPartition.checked(self.topic, self.partition) if known else None  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """The values that are the same for all rows of a plan.

    - `plan`: the id of the plan.
    - `planned_ms`: the time of the plan, in milliseconds since 1970.
    - `source`, `brokers`: where the groups come from, and the brokers to move them to, as text.
    - `cluster`: the id of the brokers' cluster: `Brokers.cluster_id`.
    - `retention_seconds`: how long the brokers keep the offsets of an unused group: `Brokers.offsets_retention`.
    - `rule`: a `zkgroups.core.migration.offset_decision.Rule`, for offsets outside of the log and targets ahead.
    - `stale_after`: offsets are stale without a commit for so many seconds.
    - `topics`: the regular expression that chose the topics.
    - `topics_created`: the zxid that created each topic. An older offset belongs to an earlier topic with that name.
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

    def row_fields(self) -> dict[str, Any]:
        """Return the fields that have the same value in all rows of the plan."""
        return {name: getattr(self, name) for name in OF_THE_PLAN} | {"rule": str(self.rule)}

    def is_stale(self, node: SourceNode) -> bool:
        """Return whether the last commit of an offset is too old."""
        if self.stale_after is None or node.committed_ms is None:
            return False
        return self.planned_ms - node.committed_ms > self.stale_after * 1000


class Planner:
    """Plans chunks of whole groups, one after the other. Without brokers, logs and targets are unknown."""

    def __init__(self, settings: PlanSettings, brokers: Brokers | None) -> None:
        self._settings = settings
        self._fields = settings.row_fields()
        self._brokers = brokers
        self._logs = LogRanges(brokers, settings.topics_created)

    def plan(self, nodes: Sequence[SourceNode]) -> list[PlanRow]:
        """Return the rows of these groups. All groups with the same target must be passed together."""
        groups = list(_groups(nodes))
        targets = {group.name: group.target for group in groups}
        answers = _TargetAnswers.read(self._brokers, targets.values())
        for group in groups:
            group.native = answers.committed.get(group.target, {})
        self._logs.read(at for group in groups for at in group.partitions())
        rivals = conflicts(targets)
        return [
            row
            for group in groups
            for row in self._rows(group, answers.facts(group, rivals.get(group.target, [group.name])))
        ]

    def _rows(self, group: _Group, facts: GroupFacts) -> list[PlanRow]:
        offsets = group.offsets()
        ats, nodes = [at for _, at in offsets], [node for node, _ in offsets]
        before = [*map(group.before, ats)]
        decisions = [*map(self._decide, nodes, ats, before)]
        logs = [*map(self._logs.range, ats)]
        there = [each if isinstance(each, NativeOffset) else None for each in before]
        blocked = tuple(obstacles(facts, decisions))
        same = {"group": group.name, "target": group.target, "obstacles": blocked} | self._fields
        columns: dict[str, Iterable[Any]] = {name: repeat(value) for name, value in same.items()}
        columns |= {name: map(attrgetter(name), nodes) for name in _OF_THE_NODE}
        columns |= {
            "stale": map(self._settings.is_stale, nodes),
            "log_start": [None if log is None else log.start for log in logs],
            "log_end": [None if log is None else log.end for log in logs],
            "before": [None if each is None else each.offset for each in there],
            "before_metadata": [None if each is None else each.metadata for each in there],
            "before_epoch": [None if each is None else each.leader_epoch for each in there],
            "action": [decision.action for decision in decisions],
            "reason": [decision.reason for decision in decisions],
            "planned": [decision.offset for decision in decisions],
            "topic_id": [self._logs.topic_id(node.topic) for node in nodes],
        }
        return from_columns(PlanRow, len(nodes), columns)

    def _decide(self, node: SourceNode, at: TopicPartition | None, before: NativeOffset | Unknown | None) -> Decision:
        source = node.no_offset or (NoOffset.UNREADABLE if node.problem is not None else node.offset)
        target = before.offset if isinstance(before, NativeOffset) else before
        log = self._logs.log(at, node.zxid)
        return decide(source, log, target, self._settings.rule, stale=self._settings.is_stale(node))


_OF_THE_NODE: Final = ("topic", "partition", "offset", "zxid", "committed_ms", "problem")
"""The fields of a row that are those of its node."""


class _Group:
    """One group with its nodes in ZooKeeper and its offsets on the target."""

    def __init__(self, name: str, nodes: Sequence[SourceNode]) -> None:
        self.name = name
        self.nodes = nodes
        self.target = nodes[0].target
        self.native: Mapping[TopicPartition, NativeOffset] | ZkgroupsException = {}
        self._offsets = [(node, node.at) for node in nodes if not node.member]

    def partitions(self) -> Iterator[TopicPartition]:
        """Yield the partitions with an offset on either side."""
        yield from (at for _, at in self._offsets if at is not None)
        if not isinstance(self.native, ZkgroupsException):
            yield from self.native

    def offsets(self) -> list[tuple[SourceNode, TopicPartition | None]]:
        """Return the offsets of both sides in order. Offsets that only the target has get an empty node."""
        known = {at for _, at in self._offsets}
        only = [] if isinstance(self.native, ZkgroupsException) else [at for at in self.native if at not in known]
        return sorted([*self._offsets, *((self._empty_node(at), at) for at in only)], key=_sort_key)

    def _empty_node(self, at: TopicPartition) -> SourceNode:
        return SourceNode(group=self.name, target=self.target, member=False, topic=at.topic, partition=at.partition)

    def before(self, at: TopicPartition | None) -> NativeOffset | Unknown | None:
        """Return the offset of the target."""
        if isinstance(self.native, ZkgroupsException):
            return Unknown.TARGET
        return None if at is None else self.native.get(at)


def _groups(nodes: Sequence[SourceNode]) -> Iterator[_Group]:
    """Yield the groups that have offsets."""
    for name, found in groupby(sorted(nodes, key=attrgetter("group")), attrgetter("group")):
        group = list(found)
        if any(not node.member for node in group):
            yield _Group(name, group)


def _sort_key(offset: tuple[SourceNode, TopicPartition | None]) -> tuple[str, int]:
    node, _ = offset
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
        forbidden = next((node.problem for node in group.nodes if node.forbidden), None)
        errors = [str(each) for each in (native, offsets) if isinstance(each, ZkgroupsException)]
        error = name_error(group.target)
        return GroupFacts(
            legacy=tuple(sorted(node.instance for node in group.nodes if node.instance is not None)),
            native=active_members(native) if isinstance(native, NativeGroup) else (),
            rivals=() if error else tuple(name for name in sharing if name != group.name),
            name_error=error,
            unreadable="; ".join(dict.fromkeys(([forbidden] if forbidden else []) + errors)),
        )
