"""Rolling a plan back: which offsets to restore on the target, and which progress to copy back to ZooKeeper.

Offsets that the target did not have before the plan are deleted. Brokers before 2.4 cannot delete single offsets, so
there the whole group is deleted and its earlier offsets are committed again.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..kafka_values import NativeOffset
from ..znodes.topic_partition import TopicPartition, known_partition
from .changes_since_plan import PlanRows, is_of_source, member_obstacles, new_offsets, recreated_partitions
from .obstacles import Obstacle, ObstacleKind, texts
from .offset_decision import Reason
from .source_and_target_state import OffsetKey, OffsetNode, SourceState, TargetState, TopicIds

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
