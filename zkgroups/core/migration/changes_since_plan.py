"""Checks before and after writing: changes since the plan was made become obstacles.

Each function compares the rows of one group with the current state, and keeps nothing in memory. So a run that was
killed can start again and reach the same result.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from ..kafka_values import NativeOffset, OffsetRange
from ..znodes.topic_partition import TopicPartition
from .obstacles import GroupFacts, Obstacle, ObstacleKind, obstacles
from .offset_decision import NoLog, Reason
from .plan_rows import PlanRow
from .source_and_target_state import OffsetKey, SourceState, TargetState, TopicIds, is_recreated, key_text

PlanRows = Sequence[PlanRow]
"""All rows of one target."""

LogOf = Callable[[TopicPartition | None, int | None, str | None], OffsetRange | NoLog]
"""Return the log of a partition, given the zxid of its offset and the topic id in the plan."""


def by_target(rows: Iterable[PlanRow]) -> dict[str, list[PlanRow]]:
    """Group rows by target, keeping their order."""
    found: defaultdict[str, list[PlanRow]] = defaultdict(list)
    for row in rows:
        found[row.target].append(row)
    return dict(found)


class _Changes:
    """Collects the partitions that each kind of obstacle concerns."""

    def __init__(self) -> None:
        self._found: defaultdict[ObstacleKind, list[str]] = defaultdict(list)

    def add(self, kind: ObstacleKind, name: object) -> None:
        self._found[kind].append(str(name))

    def obstacles(self) -> list[Obstacle]:
        return [Obstacle.of(kind, names) for kind, names in sorted(self._found.items())]


# The source


def is_of_source(row: PlanRow) -> bool:
    """Return whether the row describes a node in ZooKeeper."""
    return row.reason is not Reason.ONLY_ON_TARGET


def source_obstacles(rows: PlanRows, state: SourceState) -> list[Obstacle]:
    """Return the obstacles that a group has in ZooKeeper: live instances, and offsets changed since the plan."""
    changes = _Changes()
    planned = {(row.topic, row.partition): row.zxid for row in rows if is_of_source(row)}
    if planned == {key: node.zxid for key, node in state.offsets.items()}:
        return instance_obstacles(state)  # as usual, and faster
    for key, zxid in planned.items():
        if key[1] is None:
            continue  # a forbidden topic, or a name that is not a partition: it has no zxid
        if key not in state.offsets:
            changes.add(ObstacleKind.SOURCE_OFFSETS_DELETED, key_text(key))
        elif state.offsets[key].zxid != zxid:
            changes.add(ObstacleKind.SOURCE_OFFSETS_WRITTEN, key_text(key))
    for key in new_offsets(rows, state):
        changes.add(ObstacleKind.SOURCE_OFFSETS_ADDED, key_text(key))
    return [*instance_obstacles(state), *changes.obstacles()]


def instance_obstacles(state: SourceState) -> list[Obstacle]:
    """Return the obstacles in ZooKeeper apart from offsets: live instances, and unreadable nodes."""
    return obstacles(GroupFacts(legacy=state.instances, unreadable=state.unreadable))


def new_offsets(rows: PlanRows, state: SourceState) -> list[OffsetKey]:
    """Return the offset nodes that were created since the plan, of the topics that it covers."""
    planned = {(row.topic, row.partition) for row in rows if is_of_source(row)}
    is_chosen = _topic_filter(rows)
    return [key for key in state.offsets if key not in planned and is_chosen(key[0])]


def _topic_filter(rows: PlanRows) -> Callable[[str | None], bool]:
    """Return a function that checks whether the plan covers a topic. It may cover a topic with a hidden name."""
    expression = rows[0].topics
    if expression is None:
        return lambda _topic: True
    matches = re.compile(expression, re.DOTALL).fullmatch
    return lambda topic: topic is None or matches(topic) is not None


# The target


def target_obstacles(rows: PlanRows, state: TargetState) -> list[Obstacle]:
    """Return the obstacles that a target has: active members, and commits since the plan."""
    changes = _Changes()
    planned = set()
    for row in rows:
        if (at := row.at) is not None:
            planned.add(at)
            now = state.committed.get(at)
            if not is_as_before(row, now) and not is_as_planned(row, now):
                changes.add(ObstacleKind.TARGET_OFFSETS_CHANGED, at)
    for at in state.committed:
        if at not in planned:
            changes.add(ObstacleKind.TARGET_OFFSETS_ADDED, at)
    return [*member_obstacles(state), *changes.obstacles()]


def member_obstacles(state: TargetState) -> list[Obstacle]:
    """Return the obstacles on the target apart from offsets: active members, and unreadable values."""
    return obstacles(GroupFacts(native=state.members, unreadable=state.unreadable))


def overwritten(rows: PlanRows, written: Mapping[TopicPartition, int], state: TargetState) -> list[Obstacle]:
    """Return the differences between a target and the offsets just written: another client writes to it, too."""
    changes = _Changes()
    for at, offset in written.items():
        now = state.committed.get(at)
        if now is None or now.offset != offset:
            changes.add(ObstacleKind.TARGET_OVERWRITTEN, at)
    for at in state.committed.keys() - {row.at for row in rows}:
        changes.add(ObstacleKind.TARGET_OVERWRITTEN_ADDED, at)
    return changes.obstacles()


def is_as_before(row: PlanRow, now: NativeOffset | None) -> bool:
    """Return whether the target still has the offset, metadata and leader epoch from before the plan."""
    if now is None or row.before is None:
        return now is None and row.before is None
    return (now.offset, now.metadata, now.leader_epoch) == (row.before, row.before_metadata, row.before_epoch)


def is_as_planned(row: PlanRow, now: NativeOffset | None) -> bool:
    """Return whether the target has the planned offset."""
    return now is not None and now.offset == row.planned and row.is_commit


# Logs and topics


def log_obstacles(rows: PlanRows, log_of: LogOf) -> list[Obstacle]:
    """Return which planned offsets are no longer valid in their logs. Brokers report unknown partitions themselves."""
    changes = _Changes()
    for row in rows:
        log = log_of(row.at, row.zxid, row.topic_id)
        if isinstance(log, OffsetRange):
            if row.log_end is not None and (row.planned or 0) not in log:
                changes.add(ObstacleKind.OFFSETS_NOT_IN_LOG, key_text((row.topic, row.partition)))
        elif log in (NoLog.NEWER, NoLog.RECREATED):
            changes.add(ObstacleKind.TOPICS_RECREATED, key_text((row.topic, row.partition)))
    return changes.obstacles()


def recreated_partitions(
    rows: PlanRows, ids: TopicIds, created: Mapping[str, int] | None = None
) -> frozenset[TopicPartition]:
    """Return the partitions of topics that were recreated since the plan; their messages were deleted.

    Brokers before 2.8 have no topic ids. `created` maps their topics to the zxids that created them, if the topics are
    in the ZooKeeper of the source.
    """
    topics = {row.topic for row in rows if is_recreated(row.topic, row.topic_id, ids) or _is_older(row, created or {})}
    return frozenset(row.at for row in rows if row.at is not None and row.topic in topics)


def _is_older(row: PlanRow, created: Mapping[str, int]) -> bool:
    """Return whether an offset is older than its topic, and was newer when the plan was made."""
    was_newer = row.is_commit or row.reason in (Reason.ALREADY_THERE, Reason.TARGET_AHEAD)
    if not was_newer or row.topic is None or row.topic_id is not None or row.zxid is None:
        return False
    return created.get(row.topic, 0) > row.zxid


def recreated_obstacles(rows: Iterable[PlanRow], recreated: Container[TopicPartition]) -> list[Obstacle]:
    """Return one obstacle for all rows in recreated partitions. It blocks the group, which is written as a whole."""
    changes = _Changes()
    for row in rows:
        if row.at is not None and row.at in recreated:
            changes.add(ObstacleKind.TOPICS_RECREATED, row.at)
    return changes.obstacles()
