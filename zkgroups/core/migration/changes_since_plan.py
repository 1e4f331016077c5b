"""The current state of a group on both sides, what has changed since its plan was made, and what that means for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import repeat
from types import MappingProxyType
from typing import Final, NamedTuple

from ..columns import column, grouped
from ..kafka_values import NativeOffset, OffsetRange
from ..znodes.topic_partition import TopicPartition
from .obstacles import GroupFacts, Obstacle, ObstacleKind, obstacles
from .offset_decision import Action, NoLog, Reason
from .plan_rows import PlanRow, all_commit, places

# The current state of a group on both sides: ZooKeeper (the source) and the brokers (the target).


OffsetKey = tuple[str | None, int | None]
"""Topic and partition of an offset node. The partition of a topic that may not be listed is None. Both are None if the
topics may not be listed."""


class OffsetNode(NamedTuple):
    """An offset node. A forbidden node has no zxid, and a node without a valid number has no offset."""

    zxid: int | None
    offset: int | None


class OffsetNodes(Mapping[OffsetKey, OffsetNode]):
    """The offset nodes of a group, as columns. They become objects when one of them is looked up.

    >>> nodes = OffsetNodes({("orders", 0): OffsetNode(41, 7)})
    >>> nodes.add([("orders", 1)], [42], [None])
    >>> nodes["orders", 1], nodes.are([("orders", 0), ("orders", 1)], [41, 42])
    (OffsetNode(zxid=42, offset=None), True)
    """

    __slots__ = ("_keys", "_nodes", "_zxids", "offsets")

    def __init__(self, nodes: Mapping[OffsetKey, OffsetNode] = MappingProxyType({})) -> None:
        self._keys = [*nodes]
        self._zxids = [node.zxid for node in nodes.values()]
        self.offsets = [node.offset for node in nodes.values()]
        """The offset of each node, in the order in which they were added."""
        self._nodes: dict[OffsetKey, OffsetNode] | None = None

    def add(self, keys: Sequence[OffsetKey], zxids: Sequence[int | None], offsets: Sequence[int | None]) -> None:
        """Add nodes that are not there yet."""
        self._nodes = None
        self._keys += keys
        self._zxids += zxids
        self.offsets += offsets

    def are(self, keys: Sequence[OffsetKey | None], zxids: Sequence[int | None]) -> bool:
        """Return whether these are all nodes, in the order in which they were added."""
        return len(keys) == len(self._keys) and self._zxids == [*zxids] and self._keys == [*keys]

    def __getitem__(self, key: OffsetKey) -> OffsetNode:
        if self._nodes is None:
            nodes = map(tuple.__new__, repeat(OffsetNode), zip(self._zxids, self.offsets, strict=True))
            self._nodes = dict(zip(self._keys, nodes, strict=True))
        return self._nodes[key]

    def __iter__(self) -> Iterator[OffsetKey]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


@dataclass(frozen=True, slots=True)
class SourceState:
    """A group in ZooKeeper."""

    instances: tuple[str, ...] = ()
    offsets: OffsetNodes = field(default_factory=OffsetNodes)
    unreadable: str = ""
    """Why the state could not be read; empty if it was."""


@dataclass(frozen=True, slots=True)
class TargetState:
    """A group on the brokers."""

    members: tuple[str, ...] = ()
    """The members; if only the group's state shows that it is in use, that state."""
    committed: Mapping[TopicPartition, NativeOffset] = field(default_factory=dict)
    unreadable: str = ""
    """Why the state could not be read; empty if it was."""


TopicIds = Mapping[str, str]
"""Kafka's topic ids, by topic name. Brokers before 2.8 have none."""


def is_recreated(topic: str | None, planned_id: str | None, ids: TopicIds) -> bool:
    """Return whether a topic was recreated since the plan: the brokers know its name under another id.

    >>> is_recreated("orders", "a", {"orders": "b"}), is_recreated("orders", "a", {}), is_recreated("orders", None, {})
    (True, False, False)
    """
    now = None if topic is None else ids.get(topic)
    return None not in (planned_id, now) and planned_id != now


def key_text(key: OffsetKey) -> str:
    """Return the name of an offset node for a message.

    >>> key_text(("orders", 0)), key_text(("orders", None)), key_text((None, None))
    ('orders/0', 'orders', 'all')
    """
    return "/".join(str(part) for part in key if part is not None) or "all"


# Checks before and after writing: changes since the plan was made become obstacles.
#
# Each function compares the rows of one group with the current state, and keeps nothing in memory. So a run that was
# killed can start again and reach the same result.


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
    return row.reason not in _WITHOUT_NODE


_WITHOUT_NODE: Final = frozenset({Reason.ONLY_ON_TARGET, Reason.NEVER_COMMITTED})


def source_obstacles(rows: PlanRows, state: SourceState) -> list[Obstacle]:
    """Return the obstacles that a group has in ZooKeeper: live instances, and offsets changed since the plan."""
    if _WITHOUT_NODE.isdisjoint(column(rows, "reason")) and state.offsets.are(places(rows), column(rows, "zxid")):
        return instance_obstacles(state)  # as usual, and faster
    changes = _Changes()
    keys = zip(column(rows, "topic"), column(rows, "partition"), strict=True)
    known = zip(keys, column(rows, "zxid"), column(rows, "reason"), strict=True)
    planned = {key: zxid for key, zxid, reason in known if reason not in _WITHOUT_NODE}
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
    planned = {key for key, reason in known if reason not in _WITHOUT_NODE}
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
    known = zip(column(rows, "zxid"), column(rows, "reason"), strict=True)
    # The plan knew that the node of a clamped offset is older than its topic.
    zxids = (None if reason is Reason.CLAMPED_ANEW else zxid for zxid, reason in known)
    logs = map(log_of, places(rows), zxids, column(rows, "topic_id"))
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
    if row.reason is Reason.CLAMPED_ANEW:
        return False
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


# Applying a plan: which offsets to write, and which groups to mark.
#
# Every decision follows from the plan and the current state, so a run that was killed can start again:
#
#     | on the target now               | apply               | rollback                    |
#     |---------------------------------|---------------------|-----------------------------|
#     | the planned offset              | done                | restore the earlier offset  |
#     | the earlier offset              | write               | done                        |
#     | none, but there was one earlier | leave the group     | restore the earlier offset  |
#     | anything else                   | leave the group     | leave the group             |


class WriteState(StrEnum):
    """Whether a planned offset still has to be written."""

    TO_WRITE = "to write"
    DONE = "done"
    CHANGED = "changed"
    """The target has neither the earlier nor the planned offset: another client has committed."""


def write_state(now: int | None, before: int | None, planned: int) -> WriteState:
    """Compare the current offset of the target with the offset before the plan and the planned one.

    >>> [write_state(now, before=3, planned=7).value for now in (3, 7, 5, None)]
    ['to write', 'done', 'changed', 'changed']
    """
    if now == planned:
        return WriteState.DONE
    return WriteState.TO_WRITE if now == before else WriteState.CHANGED


def offsets_to_write(rows: PlanRows, committed: Mapping[TopicPartition, NativeOffset]) -> dict[TopicPartition, int]:
    """Return the offsets still to be written for a group without obstacles."""
    ats = places(rows)
    if not committed and None not in ats and all_commit(rows) and column(rows, "before").count(None) == len(rows):
        return dict(zip(ats, column(rows, "planned"), strict=True))  # type: ignore[arg-type]  # as usual, and faster
    found = {}
    for row in rows:
        if row.planned is not None and row.is_commit and (at := row.at) is not None:
            now = committed.get(at)
            if write_state(None if now is None else now.offset, row.before, row.planned) is WriteState.TO_WRITE:
                found[at] = row.planned
    return found


def needs_mark(rows: PlanRows) -> bool:
    """Return whether the group has, or will have, offsets on the target. If all are skipped, it does not move."""
    if not _ARRIVED.isdisjoint(column(rows, "reason")):
        return True
    known = zip(column(rows, "action"), column(rows, "planned"), strict=True)
    return any(action is Action.COMMIT and planned is not None for action, planned in known)


_ARRIVED: Final = frozenset({Reason.ALREADY_THERE, Reason.TARGET_AHEAD})


def is_begun(rows: PlanRows, committed: Mapping[TopicPartition, NativeOffset]) -> bool:
    """Return whether any planned offset is on the target."""
    return any(is_as_planned(row, committed.get(row.at)) for row in rows if row.at)


# The progress of each group through its plan.


class MigrationStage(StrEnum):
    """The progress of a group through its plan."""

    NOT_BEGUN = "not begun"
    PARTLY = "partly"
    """Only some offsets are as planned: apply or rollback was killed, rows failed, or offsets were deleted since."""
    DONE = "done"
    NOT_MARKED = "not marked"
    """The target is as planned, but the group has no mark: legacy members may join and continue from ZooKeeper."""
    NOTHING = "nothing to do"
    """The target is as before, and the plan writes no offset of this group."""
    ROLLED_BACK = "rolled back"
    """The target is as before, because a rollback was the last step that wrote to this group."""
    MOVED_ON = "moved on"
    """Other clients have committed on the target."""
    BLOCKED = "blocked"
    """The target is as before, and the plan has obstacles."""
    UNKNOWN = "unknown"
    """The target could not be read."""


class GroupStatus(NamedTuple):
    """The progress of one group of a plan."""

    plan: str
    group: str
    target: str
    stage: MigrationStage
    as_planned: int
    """The number of planned offsets that the target has."""
    as_before: int
    """The number of planned offsets that are not written yet."""
    otherwise: int
    """The number of other offsets on the target: changed by other clients, or new."""
    mark: str
    """The mark of the group in ZooKeeper; empty if it has none, or ZooKeeper was not read."""
    detail: str


def group_status(rows: PlanRows, target: TargetState, mark: str, *, moved: bool | None) -> GroupStatus:
    """Return the progress of a group. Only reports show whether it was rolled back.

    `moved` says whether the group's mark says that this plan has moved it. None: marks cannot be read.
    """
    counts = _Counts.of(rows, target.committed)
    stage = MigrationStage.UNKNOWN if target.unreadable else _stage(rows, counts, moved=bool(moved))
    stage = MigrationStage.NOT_MARKED if stage is MigrationStage.DONE and moved is False else stage
    return GroupStatus(
        plan=rows[0].plan,
        group=rows[0].group,
        target=rows[0].target,
        stage=stage,
        as_planned=counts.as_planned,
        as_before=counts.as_before,
        otherwise=counts.otherwise,
        mark=mark,
        detail="; ".join(filter(None, [target.unreadable, _STAGE_DETAILS.get(stage), *map(str, rows[0].obstacles)])),
    )


_STAGE_DETAILS: Final = {
    MigrationStage.NOT_MARKED: "the group has no mark of this plan in ZooKeeper: legacy members may join"
}


@dataclass(frozen=True, slots=True)
class _Counts:
    as_planned: int
    as_before: int
    otherwise: int
    is_missing: bool

    @classmethod
    def of(cls, rows: PlanRows, committed: Mapping[TopicPartition, NativeOffset]) -> _Counts:
        as_planned = as_before = otherwise = 0
        is_missing = False
        for row in rows:
            now = None if row.at is None else committed.get(row.at)
            if row.is_commit and now is not None and now.offset == row.planned:
                as_planned += 1
            elif is_as_before(row, now):
                as_before += row.is_commit
            elif now is None:
                is_missing = True
            else:
                otherwise += 1
        new = len(committed.keys() - {row.at for row in rows})
        return cls(as_planned, as_before, otherwise + new, is_missing)


def _stage(rows: PlanRows, counts: _Counts, *, moved: bool) -> MigrationStage:
    if counts.otherwise:
        return MigrationStage.MOVED_ON
    if counts.is_missing or (counts.as_planned and counts.as_before):
        return MigrationStage.PARTLY
    if counts.as_planned:
        return MigrationStage.DONE
    if rows[0].obstacles:  # if the group was followed and moved, its offsets were deleted since
        return MigrationStage.PARTLY if moved else MigrationStage.BLOCKED
    return MigrationStage.NOT_BEGUN if counts.as_before else MigrationStage.NOTHING
