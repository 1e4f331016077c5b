"""Comparing a plan with the current state of both sides, row by row.

The target is compared first: consumers that have continued there do not depend on ZooKeeper.

    | the target has                    | ZooKeeper has        | match                                             |
    |-----------------------------------|----------------------|---------------------------------------------------|
    | a recreated topic of that name    |                      | topic recreated                                   |
    | the expected offset               | the planned node     | equal                                             |
    | the expected offset               | a later write        | source moved                                      |
    | the expected offset               | no such node         | source gone                                       |
    | no offset, as planned             | the planned node     | no offset                                         |
    | a planned "target ahead"          |                      | target ahead                                      |
    | the offset from before the plan   |                      | not written; or blocked, see below                |
    | a higher, a lower, or no offset   |                      | target ahead, target behind, gone from the target |

The expected offset is the planned one, or the offset from before the plan if the row is not a commit. A group is
blocked if the plan has obstacles, unless it was followed, and moved. A skipped row without a partition is equal if
its node is not a partition, and "no offset" if it is unreadable, unless nodes of the topic are hidden.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from ..columns import Columns, column
from ..kafka_values import NativeOffset
from ..znodes.topic_partition import TopicPartition, known_partition
from .changes_since_plan import (
    OffsetKey,
    OffsetNode,
    PlanRows,
    SourceState,
    TargetState,
    TopicIds,
    is_of_source,
    member_obstacles,
    new_offsets,
    recreated_partitions,
    recreated_topics,
)
from .obstacles import Obstacle, ObstacleKind, texts
from .offset_decision import NOT_WRITTEN, Action, Reason
from .plan_rows import Match, MatchRow, PlanRow, all_commit, expected_offsets, places

# Rolling a plan back: which offsets to restore on the target, and which progress to copy back to ZooKeeper.
#
# Offsets that the target did not have before the plan are deleted. Brokers before 2.4 cannot delete single offsets,
# so there the whole group is deleted and its earlier offsets are committed again.


# The target


@dataclass(frozen=True, slots=True)
class Restoration:
    """The changes that restore a target.

    If the group is deleted, the commits are sent twice: before, to see that the brokers accept them, and afterwards.
    """

    commits: Mapping[TopicPartition, NativeOffset]
    removed: frozenset[TopicPartition]
    """Offsets that did not exist before the plan."""
    committed_since: frozenset[TopicPartition]
    """Offsets that other clients have committed since the plan was applied."""
    moved_back: frozenset[TopicPartition]
    """The part of `committed_since` that is lower than the offsets that the plan has written."""
    deletes_group: bool
    """Whether the group is deleted to remove offsets: it would have none left, or its brokers are too old."""

    @property
    def touched(self) -> frozenset[TopicPartition]:
        """All partitions that change."""
        return self.removed | self.commits.keys()


@dataclass(frozen=True, slots=True)
class UnrestorableOffsets:
    """Partitions whose earlier offsets cannot be restored."""

    recreated: frozenset[TopicPartition] = frozenset()
    """Their topics were recreated since the plan. Their current offsets belong to the new topics."""
    missing: Mapping[TopicPartition, Reason] = field(default_factory=dict)
    """The brokers no longer have these partitions."""

    def reason(self, at: TopicPartition | None) -> Reason | None:
        """Return why the offset of a partition cannot be restored; None if it can."""
        if at is None:
            return None
        return Reason.RECREATED if at in self.recreated else self.missing.get(at)


ALL_RESTORABLE: Final = UnrestorableOffsets()


def unrestorable_offsets(
    rows: PlanRows,
    ids: TopicIds,
    partitions: Mapping[str, Sequence[int]],
    kept: Container[TopicPartition] = (),
    created: Mapping[str, int] | None = None,
) -> UnrestorableOffsets:
    """Return the offsets that cannot be restored, given the topics that the brokers have now.

    A partition in `kept` does not count as missing: the brokers still have an offset of it. `created` are the zxids
    that created topics without an id.
    """
    priors = (before.at for row in rows if (before := row.prior) is not None)
    missing = {
        at: Reason.NO_PARTITION if at.topic in partitions else Reason.NO_TOPIC
        for at in priors
        if at.partition not in partitions.get(at.topic, ()) and at not in kept
    }
    return UnrestorableOffsets(recreated_partitions(rows, ids, created), missing)


def restoration(
    rows: PlanRows,
    committed: Mapping[TopicPartition, NativeOffset],
    lost: UnrestorableOffsets = ALL_RESTORABLE,
    *,
    single: bool,
) -> Restoration:
    """Return how to restore a target. After a kill at any step, calling this again leads to the same end state.

    With `single`, the brokers can delete single offsets.

    There is one exception: the current offsets of recreated topics. If the group is deleted, they are committed again,
    but a later call cannot find them in the plan. They count as committed since the plan, so such a group is deleted
    only with `force`.
    """
    prior = {before.at: before for row in rows if (before := row.prior) is not None and not lost.reason(before.at)}
    planned = {row.at: row.planned for row in rows if row.is_commit and row.at not in lost.recreated}
    applied = _applied_offsets(rows)
    since = {at for at, now in committed.items() if now != prior.get(at) and planned.get(at) != now.offset}
    moved_back = (at for at in since if committed[at].offset < _or_none_yet(applied.get(at)))
    removed = frozenset(committed.keys() - prior.keys() - lost.recreated)
    deletes_group = bool(removed) and not (single and (prior or removed < committed.keys()))
    commits = {at: there for at, there in prior.items() if deletes_group or committed.get(at) != there}
    if deletes_group:
        commits |= {at: now for at, now in committed.items() if at in lost.recreated}
    return Restoration(commits, removed, frozenset(since), frozenset(moved_back), deletes_group)


def _applied_offsets(rows: PlanRows) -> dict[TopicPartition | None, int | None]:
    """Return the offsets that the target has once the plan is applied."""
    return {row.at: row.expected for row in rows}


# Guards


def not_moved(rows: PlanRows) -> list[Obstacle]:
    """Return why the plan cannot have written to a target.

    Registered legacy instances do not count: they leave while the group is followed.
    """
    blocking = [found for found in rows[0].obstacles if found.kind is not ObstacleKind.LEGACY_INSTANCES]
    return [Obstacle(ObstacleKind.NOT_MOVED, detail=texts(blocking))] if blocking else []


def committed_since_obstacles(found: Restoration) -> list[Obstacle]:
    """Return an obstacle if other clients have committed to the target since the plan was applied."""
    return _obstacle(ObstacleKind.COMMITTED_SINCE, found.committed_since)


def moved_back_obstacles(found: Restoration) -> list[Obstacle]:
    """Return an obstacle if offsets of the target were moved back: ZooKeeper keeps the higher offsets."""
    return _obstacle(ObstacleKind.MOVED_BACK, found.moved_back)


def changed_partitions(before: TargetState, now: TargetState) -> list[TopicPartition]:
    """Return the partitions of a target whose offsets have changed; empty if the target cannot be read."""
    if now.unreadable:
        return []
    both = before.committed.keys() | now.committed.keys()
    return sorted(at for at in both if before.committed.get(at) != now.committed.get(at))


def changed_obstacles(before: TargetState, now: TargetState) -> list[Obstacle]:
    """Return why a target must not be restored any more: it has changed since it was read."""
    changed = changed_partitions(before, now)
    return [*member_obstacles(now), *_obstacle(ObstacleKind.COMMITTED_DURING_ROLLBACK, changed)]


def _obstacle(kind: ObstacleKind, partitions: Sequence[TopicPartition] | frozenset[TopicPartition]) -> list[Obstacle]:
    return [Obstacle.of(kind, map(str, sorted(partitions)))] if partitions else []


# ZooKeeper


def newer_offsets(
    rows: PlanRows, source: SourceState, committed: Mapping[TopicPartition, NativeOffset]
) -> dict[TopicPartition, int]:
    """Return the offsets in ZooKeeper that were written after the plan, and differ from those of the target.

    A legacy client has committed them, and does not respect the mark.
    """
    planned = {(row.topic, row.partition): row.zxid for row in rows if is_of_source(row)}
    written = [key for key, zxid in planned.items() if key in source.offsets and source.offsets[key].zxid != zxid]
    newer = {}
    for key in (*written, *new_offsets(rows, source)):
        at, number = known_partition(*key), source.offsets[key].offset
        if at is not None and number is not None and number != _or_none_yet(_number(committed.get(at))):
            newer[at] = number
    return newer


def newer_obstacle(newer: Mapping[TopicPartition, int]) -> Obstacle:
    """Return the text for people about newer offsets. It does not stop the rollback."""
    return Obstacle.of(ObstacleKind.SOURCE_COMMITTED_SINCE, map(str, sorted(newer)))


# Progress to copy back to ZooKeeper


def progress(rows: PlanRows, committed: Mapping[TopicPartition, NativeOffset]) -> dict[TopicPartition, int]:
    """Return the offsets of the target that are higher than the offsets written by the plan."""
    prior = {row.at: row.prior for row in rows}
    applied = _applied_offsets(rows)
    return {
        at: now.offset
        for at, now in committed.items()
        if now != prior.get(at) and now.offset > _or_none_yet(applied.get(at))
    }


def forward_only(
    offsets: Mapping[TopicPartition, int], nodes: Mapping[OffsetKey, OffsetNode]
) -> dict[TopicPartition, int]:
    """Return the offsets that are higher than those in ZooKeeper."""
    return {at: offset for at, offset in offsets.items() if offset > _or_none_yet(_in_zookeeper(at, nodes))}


def _in_zookeeper(at: TopicPartition, nodes: Mapping[OffsetKey, OffsetNode]) -> int | None:
    node = nodes.get((at.topic, at.partition))
    return None if node is None else node.offset


def _number(found: NativeOffset | None) -> int | None:
    return None if found is None else found.offset


def _or_none_yet(offset: int | None) -> int:
    return -1 if offset is None else offset


_offset = attrgetter("offset")

NO_TOPIC_IDS: Final[TopicIds] = MappingProxyType({})
"""For brokers without topic ids."""


def compare_rows(
    rows: PlanRows,
    source: SourceState | None,
    target: TargetState,
    ids: TopicIds = NO_TOPIC_IDS,
    *,
    moved: bool = False,
) -> Columns[MatchRow]:
    """Compare the rows of a group with both sides, and add rows for offsets that are not in the plan.

    Without a source only the target is compared. Pass `moved` if the group's mark says that this plan has moved it.
    """
    return _Comparison(rows, source, target, ids, moved=moved).matches()


class _Comparison:
    """One group with its state on both sides."""

    def __init__(
        self, rows: PlanRows, source: SourceState | None, target: TargetState, ids: TopicIds, *, moved: bool
    ) -> None:
        self._rows = rows
        self._is_blocked = bool(rows[0].obstacles) and not moved
        self._has_source = source is not None
        self._source = source or SourceState()
        self._unreadable = "; ".join(filter(None, [self._source.unreadable, target.unreadable]))
        self._committed = target.committed
        self._recreated = recreated_topics(rows, ids)

    def matches(self) -> Columns[MatchRow]:
        if self._are_equal():
            return self._equal_rows()  # as usual, and faster
        keys: list[OffsetKey] = [*zip(column(self._rows, "topic"), column(self._rows, "partition"), strict=True)]
        expected = expected_offsets(self._rows)
        matches = [*map(self._match, self._rows, keys, expected)]
        details = [*map(self._detail, self._rows, matches)]
        planned = set(keys)
        unplanned = [key for key in self._native | self._new if key not in planned]
        return self._match_rows(
            keys + unplanned,
            expected + [None] * len(unplanned),
            matches + [Match.AHEAD if key in self._native else Match.SOURCE_MOVED for key in unplanned],
            details + ["not in the plan"] * len(unplanned),
        )

    def _are_equal(self) -> bool:
        """Return whether all rows are equal, and no other offsets exist. If not, each row is compared by itself."""
        if self._unreadable or self._recreated or not all_commit(self._rows):
            return False
        ats = places(self._rows)
        if self._has_source and not self._source.offsets.are(ats, column(self._rows, "zxid")):
            return False
        there = [*map(_offset, self._committed.values())]
        return there == column(self._rows, "planned") and [*self._committed] == [*ats]

    def _equal_rows(self) -> Columns[MatchRow]:
        count, planned = len(self._rows), column(self._rows, "planned")
        columns: dict[str, Sequence[Any]] = {
            name: column(self._rows, name) for name in ("plan", "group", "target", "topic", "partition")
        } | {
            "offset": self._source.offsets.offsets if self._has_source else [None] * count,
            "native": planned,
            "expected": planned,
            "match": [Match.EQUAL] * count,
            "detail": [""] * count,
        }
        columns["dual_commit"] = self._dual_commits(columns["offset"], planned)
        return Columns(MatchRow, count, columns.__getitem__)

    def _dual_commits(self, offsets: Sequence[int | None], native: Sequence[int | None]) -> list[str]:
        return [*map(dual_commit, offsets, native)] if self._has_source else [""] * len(native)

    @cached_property
    def _native(self) -> dict[OffsetKey, int]:
        return {at: found.offset for at, found in self._committed.items()}

    @cached_property
    def _new(self) -> dict[OffsetKey, None]:
        return dict.fromkeys(new_offsets(self._rows, self._source))

    def _match_rows(
        self,
        keys: Sequence[OffsetKey],
        expected: Sequence[int | None],
        matches: Sequence[Match],
        details: Sequence[str],
    ) -> Columns[MatchRow]:
        count = len(keys)
        offsets = [None if node is None else node.offset for node in map(self._source.offsets.get, keys)]
        native = [*map(self._native.get, keys)]
        columns: dict[str, Sequence[Any]] = {
            name: [column(self._rows, name)[0]] * count for name in ("plan", "group", "target")
        } | {
            "topic": [topic for topic, _ in keys],
            "partition": [partition for _, partition in keys],
            "offset": offsets,
            "native": native,
            "expected": expected,
            "match": matches,
            "dual_commit": self._dual_commits(offsets, native),
            "detail": details,
        }
        return Columns(MatchRow, count, columns.__getitem__)

    def _detail(self, row: PlanRow, match: Match) -> str:
        if match is Match.EQUAL:
            return ""
        if match is Match.UNKNOWN:
            return self._unreadable or row.problem or "no such partition"
        if match is Match.BLOCKED:
            return texts(row.obstacles)
        return f"{row.action}: {row.reason}"

    def _match(self, row: PlanRow, key: OffsetKey, expected: int | None) -> Match:
        if self._unreadable:
            return Match.UNKNOWN
        if None in key:
            return self._without_offset(row, Match.EQUAL) if self._is_skipped_node(row, key) else Match.UNKNOWN
        if row.topic in self._recreated:
            return Match.RECREATED
        native = self._native.get(key)
        if (found := self._compare_target(row, expected, native)) is not None:
            return found
        found = self._compare_source(row, key)
        return self._without_offset(row, found) if native is None else found

    def _without_offset(self, row: PlanRow, found: Match) -> Match:
        return Match.NO_OFFSET if found is Match.EQUAL and row.reason in NOT_WRITTEN else found

    def _is_skipped_node(self, row: PlanRow, key: OffsetKey) -> bool:
        """Return whether a row without a partition describes a node that may be listed, and that the plan skips."""
        hidden = key in self._source.offsets or (None, None) in self._source.offsets
        return row.topic is not None and row.action is Action.SKIP and not not_moved([row]) and not hidden

    def _compare_target(self, row: PlanRow, expected: int | None, native: int | None) -> Match | None:
        """Return how the target differs from the expected offset, or None if it does not."""
        if native == expected and row.action is not Action.REFUSE:
            return Match.AHEAD if row.reason is Reason.TARGET_AHEAD else None
        if native == row.before:
            return Match.BLOCKED if self._is_blocked else Match.NOT_WRITTEN
        if native is None:
            return Match.GONE
        return Match.AHEAD if expected is None or native > expected else Match.BEHIND

    def _compare_source(self, row: PlanRow, key: OffsetKey) -> Match:
        if not is_of_source(row):
            return Match.SOURCE_MOVED if key in self._new else Match.EQUAL
        if not self._has_source:
            return Match.EQUAL
        node = self._source.offsets.get(key)
        if node is None:
            return Match.SOURCE_GONE
        return Match.EQUAL if node.zxid == row.zxid else Match.SOURCE_MOVED


def dual_commit(offset: int | None, native: int | None) -> str:
    """Return the side with the higher offset: consumers that commit to both continue there.

    >>> dual_commit(7, 9), dual_commit(7, None), dual_commit(7, 7), dual_commit(None, None)
    ('kafka', 'zookeeper', 'either', 'neither')
    """
    if offset == native:
        return "neither" if offset is None else "either"
    return "zookeeper" if native is None or (offset is not None and offset > native) else "kafka"
