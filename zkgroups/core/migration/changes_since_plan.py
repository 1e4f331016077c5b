"""Checks before and after writing: changes since the plan was made become obstacles.

Each function compares the rows of one group with the current state, and keeps nothing in memory. So a run that was
killed can start again and reach the same result.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from ..columns import column, grouped
from ..kafka_values import NativeOffset, OffsetRange
from ..znodes.topic_partition import TopicPartition
from .obstacles import GroupFacts, Obstacle, ObstacleKind, obstacles
from .offset_decision import NoLog, Reason
from .plan_rows import PlanRow, places
from .source_and_target_state import OffsetKey, SourceState, TargetState, TopicIds, is_recreated, key_text

PlanRows = Sequence[PlanRow]
"""All rows of one target."""

LogOf = Callable[[TopicPartition | None, int | None, str | None], OffsetRange | NoLog]
"""Return the log of a partition, given the zxid of its offset and the topic id in the plan."""


def by_target(rows: PlanRows) -> dict[str, PlanRows]:
    """Group rows by target, keeping their order."""
    return grouped(rows, "target")


def by_group(rows: PlanRows) -> dict[str, PlanRows]:
    """Group the rows of one target, which several groups may have."""
    return grouped(rows, "group")


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
    if Reason.ONLY_ON_TARGET not in column(rows, "reason") and state.offsets.are(places(rows), column(rows, "zxid")):
        return instance_obstacles(state)  # as usual, and faster
    changes = _Changes()
    keys = zip(column(rows, "topic"), column(rows, "partition"), strict=True)
    known = zip(keys, column(rows, "zxid"), column(rows, "reason"), strict=True)
    planned = {key: zxid for key, zxid, reason in known if reason is not Reason.ONLY_ON_TARGET}
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
    if not state.instances and not state.unreadable:
        return []  # as usual, and faster
    return obstacles(GroupFacts(legacy=state.instances, unreadable=state.unreadable))


def new_offsets(rows: PlanRows, state: SourceState) -> list[OffsetKey]:
    """Return the offset nodes that were created since the plan, of the topics that it covers."""
    keys = zip(column(rows, "topic"), column(rows, "partition"), strict=True)
    known = zip(keys, column(rows, "reason"), strict=True)
    planned = {key for key, reason in known if reason is not Reason.ONLY_ON_TARGET}
    is_chosen = _topic_filter(rows)
    return [key for key in state.offsets if key not in planned and is_chosen(key[0])]


def _topic_filter(rows: PlanRows) -> Callable[[str | None], bool]:
    """Return a function that checks whether the plan covers a topic. It may cover a topic with a hidden name."""
    expression = column(rows, "topics")[0]
    if expression is None:
        return lambda _topic: True
    matches = re.compile(expression, re.DOTALL).fullmatch
    return lambda topic: topic is None or matches(topic) is not None


# The target


def target_obstacles(rows: PlanRows, state: TargetState) -> list[Obstacle]:
    """Return the obstacles that a target has: active members, and commits since the plan."""
    if state.unreadable:  # its offsets are unknown
        return member_obstacles(state)
    if not state.committed and column(rows, "before").count(None) == len(rows):
        return member_obstacles(state)  # as usual, and faster
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
    if not state.members and not state.unreadable:
        return []  # as usual, and faster
    return obstacles(GroupFacts(native=state.members, unreadable=state.unreadable))


def overwritten(rows: PlanRows, written: Mapping[TopicPartition, int], state: TargetState) -> list[Obstacle]:
    """Return the differences between a target and the offsets just written: another client writes to it, too."""
    if written == {at: now.offset for at, now in state.committed.items()}:
        return []  # as usual, and faster
    changes = _Changes()
    for at, offset in written.items():
        now = state.committed.get(at)
        if now is None or now.offset != offset:
            changes.add(ObstacleKind.TARGET_OVERWRITTEN, at)
    for at in state.committed.keys() - set(places(rows)):
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
    """Return which planned offsets are no longer in their logs. Brokers report unknown partitions themselves."""
    changes = _Changes()
    keys = zip(column(rows, "topic"), column(rows, "partition"), strict=True)
    logs = map(log_of, places(rows), column(rows, "zxid"), column(rows, "topic_id"))
    for key, log, planned, end in zip(keys, logs, column(rows, "planned"), column(rows, "log_end"), strict=True):
        if isinstance(log, OffsetRange):
            if end is not None and (planned or 0) not in log:
                changes.add(ObstacleKind.OFFSETS_NOT_IN_LOG, key_text(key))
        elif log in (NoLog.NEWER, NoLog.RECREATED):
            changes.add(ObstacleKind.TOPICS_RECREATED, key_text(key))
    return changes.obstacles()


def recreated_partitions(
    rows: PlanRows, ids: TopicIds, created: Mapping[str, int] | None = None
) -> frozenset[TopicPartition]:
    """Return the partitions of topics that were recreated since the plan; their messages were deleted.

    Brokers before 2.8 have no topic ids. `created` maps their topics to the zxids that created them, if the topics are
    in the ZooKeeper of the source.
    """
    topics = recreated_topics(rows, ids)
    if created:
        topics |= {row.topic for row in rows if _is_older(row, created)}
    return frozenset(at for at in places(rows) if at is not None and at.topic in topics) if topics else frozenset()


def recreated_topics(rows: PlanRows, ids: TopicIds) -> set[str | None]:
    """Return the topics that were recreated since the plan, by their ids."""
    known = set(zip(column(rows, "topic"), column(rows, "topic_id"), strict=True))
    return {topic for topic, id in known if is_recreated(topic, id, ids)}


def _is_older(row: PlanRow, created: Mapping[str, int]) -> bool:
    """Return whether a topic was recreated since the plan: its offset is older now, but was newer in the plan."""
    was_newer = row.is_commit or row.reason in (Reason.ALREADY_THERE, Reason.TARGET_AHEAD)
    if not was_newer or row.topic is None or row.topic_id is not None or row.zxid is None:
        return False
    return created.get(row.topic, 0) > row.zxid


def recreated_obstacles(rows: PlanRows, recreated: Collection[TopicPartition]) -> list[Obstacle]:
    """Return one obstacle for all rows in recreated partitions. It blocks the group, which is written as a whole."""
    changes = _Changes()
    for at in places(rows) if recreated else ():
        if at is not None and at in recreated:
            changes.add(ObstacleKind.TOPICS_RECREATED, at)
    return changes.obstacles()
