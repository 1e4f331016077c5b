"""What is planned for some whole groups: what ZooKeeper has of them, against what the brokers say, by the rule.

Brokers are asked in bulk, for all groups of a chunk together. Where logs start and end is asked once for each
partition, however many groups read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from ..core.kafka_values import NativeGroup, NativeOffset
from ..core.migration.lazy_rows import Rows, Slice
from ..core.migration.plain_groups import Plain, Shape, shape_of
from ..core.migration.plan_rows import OF_THE_PLAN, PlanRow
from ..core.migration.rules import (
    Action,
    Decision,
    GroupFacts,
    Reason,
    Rule,
    Unknown,
    bad_target,
    conflicts,
    decide,
    obstacles,
)
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import MalformedNode, UnreadableNode
from ..exceptions import ZkgroupsException
from ..kafka import Brokers
from .log_ranges import Logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One node of a group, an offset or a member's; or the directory of such, where it may not be listed."""

    group: str
    target: str
    """What the group is to be called; rows of one target come together."""
    member: bool
    """Whether it is a member's: then it has an instance, and else what offsets have."""
    instance: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    zxid: int | None = None
    committed_ms: int | None = None
    problem: str | None = None
    denied: bool = False
    """Whether the problem is that it may not be read."""

    @property
    def at(self) -> TopicPartition | None:
        """The partition, where it is known."""
        known = self.topic is not None and self.partition is not None
        return TopicPartition.checked(self.topic, self.partition) if known else None  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """What is the same for every row of a plan."""

    plan: str
    planned_ms: int
    source: str = ""
    brokers: str | None = None
    cluster: str | None = None
    retention_seconds: float | None = None
    rule: Rule = field(default_factory=Rule)
    stale_after: float | None = None
    """In seconds."""
    topics: str | None = None
    """The expression that they were chosen by."""
    topics_made: Mapping[str, int] = field(default_factory=dict)
    """The zxid that made each topic: an offset that is older is of another one, which had the same name."""

    def in_all_rows(self) -> dict[str, Any]:
        """The fields that are the same in all rows of the plan."""
        return {name: getattr(self, name) for name in OF_THE_PLAN} | {"rule": str(self.rule)}

    def stale(self, found: Found) -> bool:
        """Whether an offset was last written too long ago."""
        return self.is_stale(found.committed_ms)

    def is_stale(self, committed_ms: int | None) -> bool:
        """The same of one that was last written then."""
        if self.stale_after is None or committed_ms is None:
            return False
        return self.planned_ms - committed_ms > self.stale_after * 1000


class Planner:
    """Plans chunks of whole groups, one after the other; without brokers only what ZooKeeper has is known."""

    def __init__(self, planning: Planning, brokers: Brokers | None) -> None:
        self._planning = planning
        self._same = planning.in_all_rows()
        self._brokers = brokers
        self._logs = Logs(brokers, planning.topics_made)

    def plan(self, found: Sequence[Found]) -> list[PlanRow]:
        """The rows of these groups, which are all that are to have their targets' names."""
        return self._plan(found, self._ask(dict.fromkeys(row.target for row in found)))

    def plan_targets(self, targets: Mapping[str, Slice[Found]]) -> Rows[PlanRow]:
        """The same for rows that are together by their targets, and in order."""
        answers = self._ask(targets)
        shapes = {target: shape for target, found in targets.items() if (shape := _plain_shape(found)) is not None}
        self._logs.ask(at for shape in dict.fromkeys(shapes.values()) for at in shape.ats)
        planned, others = Rows(PlanRow), list[Found]()
        for target, found in targets.items():
            free = target in shapes and answers.nothing_at(target)
            columns = self._as_it_is(found, shapes[target]) if free else None
            if columns is None:
                others += found
            else:
                planned.extend(len(found), columns)
        for row in self._plan(others, answers):
            planned.add(row)
        return planned

    def _ask(self, targets: Iterable[str]) -> _Answers:
        return _Answers.of(self._brokers, [target for target in targets if bad_target(target) is None])

    def _as_it_is(self, found: Slice[Found], shape: Shape) -> dict[str, Any] | None:
        """The columns of a plan in which all offsets are committed as they are; None where the rule says otherwise."""
        offsets, zxids, written = (found.column(name) for name in ("offset", "zxid", "committed_ms"))
        stale = [self._planning.is_stale(ms) for ms in written]
        bounds = self._logs.bounds(shape)
        if bounds is None or not bounds.have(Plain(shape, zxids, offsets, bounds.topic_ids)):
            return None
        if self._planning.rule.skip_stale and any(stale):
            return None
        of_source = {name: found.column(name) for name in ("group", "target", "topic", "partition")}
        numbers = {"offset": offsets, "zxid": zxids, "committed_ms": written, "stale": stale, "planned": offsets}
        logs = {"log_start": bounds.starts, "log_end": bounds.ends, "topic_id": bounds.topic_ids}
        decided = {"action": Action.COMMIT, "reason": Reason.AS_IT_IS, "obstacles": ()}
        nothing = dict.fromkeys(("problem", "before", "before_metadata", "before_epoch"))
        return {**self._same, **of_source, **numbers, **logs, **decided, **nothing}

    def _plan(self, found: Sequence[Found], answers: _Answers) -> list[PlanRow]:
        groups = list(self._groups(found))
        targets = {group.name: group.target for group in groups}
        for group in groups:
            group.native = answers.committed.get(group.target, {})
        self._logs.ask(at for group in groups for at in group.partitions())
        rivals = conflicts(targets)
        return [
            row
            for group in groups
            for row in self._rows(group, answers.facts(group, rivals.get(group.target, [group.name])))
        ]

    def _groups(self, found: Sequence[Found]) -> Iterator[_Group]:
        """Those that have offsets."""
        for name, rows in groupby(sorted(found, key=attrgetter("group")), attrgetter("group")):
            its = list(rows)
            if any(not row.member for row in its):
                yield _Group(name, its)

    def _rows(self, group: _Group, facts: GroupFacts) -> Iterator[PlanRow]:
        planned = [(found, at, self._decision(group, found, at)) for found, at in group.offsets()]
        blocked = tuple(obstacles(facts, (decision for *_, decision in planned)))
        return (self._row(group, found, at, decision, blocked) for found, at, decision in planned)

    def _decision(self, group: _Group, found: Found, at: TopicPartition | None) -> Decision:
        source: int | UnreadableNode | None = found.offset
        if found.problem is not None:
            source = MalformedNode("", b"", found.problem.rpartition(": ")[2])
        before = group.before(at)
        target = before.offset if isinstance(before, NativeOffset) else before
        stale = self._planning.stale(found)
        return decide(source, self._logs.log(at, found.zxid), target, self._planning.rule, stale=stale)

    def _row(
        self, group: _Group, found: Found, at: TopicPartition | None, decision: Decision, blocked: tuple[str, ...]
    ) -> PlanRow:
        known = self._logs.range(at)
        before = group.before(at)
        there = before if isinstance(before, NativeOffset) else None
        return PlanRow(
            **self._same,
            group=group.name,
            topic=found.topic,
            partition=found.partition,
            offset=found.offset,
            zxid=found.zxid,
            committed_ms=found.committed_ms,
            stale=self._planning.stale(found),
            problem=found.problem,
            target=group.target,
            log_start=None if known is None else known.start,
            log_end=None if known is None else known.end,
            before=None if there is None else there.offset,
            before_metadata=None if there is None else there.metadata,
            before_epoch=None if there is None else there.leader_epoch,
            action=decision.action,
            reason=decision.reason,
            planned=decision.offset,
            obstacles=blocked,
            topic_id=self._logs.topic_id(found.topic),
        )


def _plain_shape(found: Slice[Found]) -> Shape | None:
    """The partitions of one group, where all that was found of it are offsets."""
    if (
        any(found.column("member"))
        or found.column("group").count(found.first("group")) < len(found)
        or found.column("problem").count(None) < len(found)
        or any(None in found.column(name) for name in ("topic", "partition", "offset", "zxid"))
    ):
        return None
    return shape_of(tuple(found.column("topic")), tuple(found.column("partition")))


class _Group:
    """One group, as it was found in ZooKeeper and on the target."""

    def __init__(self, name: str, rows: Sequence[Found]) -> None:
        self.name = name
        self.rows = rows
        self.target = rows[0].target
        self.native: Mapping[TopicPartition, NativeOffset] | ZkgroupsException = {}
        self._ours = [(row, row.at) for row in rows if not row.member]

    def partitions(self) -> Iterator[TopicPartition]:
        """All of which somebody has an offset."""
        yield from (at for _, at in self._ours if at is not None)
        if not isinstance(self.native, ZkgroupsException):
            yield from self.native

    def offsets(self) -> list[tuple[Found, TopicPartition | None]]:
        """The offsets of both sides in order, those that only the target has without a number of ours."""
        known = {at for _, at in self._ours}
        only = [] if isinstance(self.native, ZkgroupsException) else [at for at in self.native if at not in known]
        theirs = [(self._only(at), at) for at in only]
        return sorted([*self._ours, *theirs], key=_place)

    def _only(self, at: TopicPartition) -> Found:
        return Found(group=self.name, target=self.target, member=False, topic=at.topic, partition=at.partition)

    def before(self, at: TopicPartition | None) -> NativeOffset | Unknown | None:
        """What the target has."""
        if isinstance(self.native, ZkgroupsException):
            return Unknown.TARGET
        return None if at is None else self.native.get(at)


def _place(offset: tuple[Found, TopicPartition | None]) -> tuple[str, int]:
    found, _ = offset
    return found.topic or "", -1 if found.partition is None else found.partition


@dataclass(frozen=True, slots=True)
class _Answers:
    """What the brokers say of the targets."""

    committed: Mapping[str, Mapping[TopicPartition, NativeOffset] | ZkgroupsException]
    groups: Mapping[str, NativeGroup | ZkgroupsException]

    @classmethod
    def of(cls, brokers: Brokers | None, targets: Sequence[str]) -> _Answers:
        if brokers is None:
            return cls({}, {})
        return cls(brokers.committed_or_error(targets), brokers.groups(targets))

    def nothing_at(self, target: str) -> bool:
        """Whether it is certain that a target has no offsets and nobody takes part in it."""
        committed, native = self.committed.get(target), self.groups.get(target)
        if not isinstance(committed, Mapping) or not isinstance(native, NativeGroup):
            return False
        return not committed and not native.in_use

    def facts(self, group: _Group, rivals: Sequence[str]) -> GroupFacts:
        """What may stand in a group's way."""
        native, offsets = self.groups.get(group.target), self.committed.get(group.target)
        denied = next((row.problem for row in group.rows if row.denied), None)
        errors = [str(each) for each in (native, offsets) if isinstance(each, ZkgroupsException)]
        bad = bad_target(group.target)
        return GroupFacts(
            legacy=tuple(sorted(row.instance for row in group.rows if row.instance is not None)),
            native=_members(native) if isinstance(native, NativeGroup) else (),
            rivals=() if bad else tuple(name for name in rivals if name != group.name),
            bad_target=bad,
            unreadable="; ".join(dict.fromkeys(([denied] if denied else []) + errors)),
        )


def _members(group: NativeGroup) -> tuple[str, ...]:
    """Who takes part; where it is not known who, in which state the group is."""
    if not group.in_use:
        return ()
    return tuple(map(str, group.members)) or (f"it is in state {group.state}",)
