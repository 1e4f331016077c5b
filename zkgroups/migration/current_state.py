"""Reading the current state of whole groups on both sides, in bulk."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import le
from typing import Any, NamedTuple

from ..core.columns import column
from ..core.kafka_values import NativeGroup, NativeOffset, OffsetRange
from ..core.layouts.layout import Layout, LayoutOffset
from ..core.layouts.legacy import LEGACY
from ..core.migration.changes_since_plan import OffsetNodes, PlanRows, SourceState, TargetState, TopicIds
from ..core.migration.obstacles import Obstacle, ObstacleKind
from ..core.migration.offset_decision import NoLog
from ..core.migration.plan_rows import Places, places
from ..core.znodes.codecs import decode_offset, is_plain_offset
from ..core.znodes.own_nodes import Mark
from ..core.znodes.paths import Part, broker_topic
from ..core.znodes.topic_partition import TopicPartition, parse_partition
from ..core.znodes.values import CommittedOffset, ForbiddenNode, UnreadableNode
from ..exceptions import NotConnectedError
from ..input_errors import InvalidNameError, ZkgroupsException
from ..kafka import Brokers
from ..kafka.errors import check_native_group
from ..zookeeper.reading import group_reader, layouts, tree_walk
from ..zookeeper.reading.tree_walk import PartDirectory
from ..zookeeper.registry import Registry
from ..zookeeper.requests import bulk_read
from ..zookeeper.requests.bulk_read import Block
from ..zookeeper.requests.node import Node
from ..zookeeper.session.session import context_of

# The log ranges of partitions on the brokers, each read once, and their meaning for an offset.


def topic_creation_zxids(registry: Registry, names: Iterable[str] | None = None) -> dict[str, int]:
    """Return the zxid that created each of these topics, or of all topics. Forbidden topics are left out."""
    wanted = registry.topics() if names is None else list(names)
    nodes = zip(wanted, bulk_read.nodes(context_of(registry), map(broker_topic, wanted)), strict=True)
    return {name: node.czxid for name, node in nodes if isinstance(node, Node)}


class LogColumns(NamedTuple):
    """The logs of some partitions: their ranges, topic ids, and the zxids that created their topics."""

    starts: Sequence[int]
    ends: Sequence[int]
    topic_ids: Sequence[str | None]
    created: Sequence[int]

    def contain(self, offsets: Sequence[int | None]) -> bool:
        """Return whether each offset is in its log."""
        return None not in offsets and _are_up_to(self.starts, offsets) and _are_up_to(offsets, self.ends)


def _are_up_to(numbers: Sequence[Any], limits: Sequence[Any]) -> bool:
    """Return whether each number is up to its limit."""
    return all(map(le, numbers, limits))


class LogRanges:
    """Log ranges and topic ids. `created` are the zxids that created the topics, as far as they are known."""

    def __init__(self, brokers: Brokers | None, created: Mapping[str, int]) -> None:
        self._brokers = brokers
        self._created = created
        self._found: dict[TopicPartition, OffsetRange | NoLog] = {}
        self._columns: dict[Places, LogColumns | None] = {}
        self._ids: dict[str, str] = {}
        self._partitions: dict[str, Sequence[int]] = {}

    def read(self, partitions: Iterable[TopicPartition]) -> None:
        """Read the ranges of these partitions in bulk, unless they are known. Does nothing without brokers."""
        new = [at for at in dict.fromkeys(partitions) if at not in self._found]
        if self._brokers is None or not new:
            return
        self._columns.clear()
        topics = {at.topic for at in new}
        known = self._brokers.partitions(topics)
        self._partitions |= known
        hidden = self._brokers.hidden_topics(topics - known.keys())
        # Read the ids before the ranges, so that a range is never from an earlier topic than its id.
        self._ids |= self._brokers.topic_ids(topic for topic in known if topic not in self._ids)
        there = [at for at in new if at.partition in known.get(at.topic, ())]
        ranges: Mapping[TopicPartition, OffsetRange | None] = {}
        with suppress(NotConnectedError):  # no leader answers, although the cluster answered just now
            ranges = self._brokers.ranges(there)
        for at in new:
            self._found[at] = ranges.get(at) or _absent(at, known, hidden)

    def partitions(self, topics: Iterable[str]) -> Iterator[TopicPartition]:
        """Yield all partitions of these topics that the brokers have, if their topics were read."""
        return (TopicPartition.checked(topic, number) for topic in topics for number in self._partitions.get(topic, ()))

    def columns(self, ats: Places, zxids: Sequence[int | None]) -> LogColumns | None:
        """Return the logs of these partitions, given the zxids of their offsets.

        Return None unless all logs are known and older than the offsets. `log` gives the reason for each partition.
        """
        if ats not in self._columns:  # most groups have the same partitions
            self._columns[ats] = self._known(ats)
        found = self._columns[ats]
        if found is None or None in zxids or not _are_up_to(found.created, zxids):
            return None
        return found

    def _known(self, ats: Places) -> LogColumns | None:
        logs = [self._found.get(at) for at in ats if at is not None]
        ranges = [each for each in logs if isinstance(each, OffsetRange)]
        topics = [at.topic for at in ats if at is not None]
        if len(ranges) < len(ats):
            return None
        return LogColumns(
            [each.start for each in ranges],
            [each.end for each in ranges],
            [*map(self._ids.get, topics)],
            [self._created.get(topic, 0) for topic in topics],
        )

    def contain(self, rows: PlanRows) -> bool:
        """Return True if all planned offsets are in their logs, and no topic was recreated. If not, check each row."""
        logs = self.columns(places(rows), column(rows, "zxid"))
        return logs is not None and logs.topic_ids == column(rows, "topic_id") and logs.contain(column(rows, "planned"))

    def ranges(self, ats: Iterable[TopicPartition | None]) -> list[OffsetRange | None]:
        """Return the log start and end of each partition, if known."""
        found = (None if at is None else self._found.get(at) for at in ats)
        return [each if isinstance(each, OffsetRange) else None for each in found]

    @property
    def topic_ids(self) -> TopicIds:
        """Kafka's ids of the topics that were read."""
        return self._ids

    def topic_id(self, topic: str | None) -> str | None:
        """Return Kafka's id of a topic, if it was read and the brokers have ids."""
        return None if topic is None else self._ids.get(topic)

    def log(self, at: TopicPartition | None, zxid: int | None, topic_id: str | None = None) -> OffsetRange | NoLog:
        """Return the log for `decide`, given the zxid of the offset and the topic id in the plan."""
        if at is None:
            return NoLog.UNKNOWN
        topic, found = at.topic, self._found.get(at, NoLog.NOT_CHECKED)
        is_known = isinstance(found, OffsetRange) or found is NoLog.NO_PARTITION or topic in self._ids
        if topic_id is not None and is_known and self._ids.get(topic) != topic_id:
            return NoLog.RECREATED
        created = self._created.get(topic)
        if created is None:
            return found
        is_newer = zxid is not None and zxid < created
        if found is NoLog.NO_TOPIC or (found is NoLog.NO_PARTITION and not is_newer):
            return NoLog.MISSING
        return NoLog.NEWER if is_newer and found is not NoLog.NO_PARTITION else found


def _absent(at: TopicPartition, known: Mapping[str, Sequence[int]], hidden: Container[str]) -> NoLog:
    """Return why a partition has no range."""
    if at.topic in hidden or at.partition in known.get(at.topic, ()):
        return NoLog.UNKNOWN
    return NoLog.NO_PARTITION if at.topic in known else NoLog.NO_TOPIC


# ZooKeeper


def read_sources(registry: Registry, groups: Iterable[str], layout: Layout = LEGACY) -> dict[str, SourceState]:
    """Read the live instances and all offsets of these groups, as the ZooKeeper leader has them now."""
    names = list(dict.fromkeys(groups))
    registry.sync()
    instances: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    unreadable = dict.fromkeys(names, "")
    for siblings in tree_walk.instances(context_of(registry), names if layout.has_registrations else ()):
        group, hidden = siblings.key.group, siblings.key.forbidden
        instances[group] = tuple(siblings.names)
        unreadable[group] = "" if hidden is None else f"{hidden.path}: {hidden.reason}"
    registered = [group for group in names if instances[group]]
    for group, dead in group_reader.read_dead(context_of(registry), registered).items():
        ids = {instance.id for instance in dead}
        instances[group] = tuple(id for id in instances[group] if id not in ids)
    offsets = {group: OffsetNodes() for group in names}
    if layout == LEGACY:
        for block in tree_walk.leaves(context_of(registry), names, Part.OFFSETS):
            _add_nodes(block, offsets)
    else:
        for group, found in layouts.read_offsets(context_of(registry), layout, names):
            _add_offsets(found, offsets[group])
    return {group: SourceState(instances[group], offsets[group], unreadable[group]) for group in names}


def _add_nodes(block: Block[PartDirectory], offsets: Mapping[str, OffsetNodes]) -> None:
    """Add the offset nodes in a block to those of their groups."""
    if (plain := tree_walk.plain_offsets(block)) is not None:
        for part in plain:
            offsets[part.group].add(part.places, part.zxids, part.offsets)
        return
    for place, name, node in tree_walk.nodes([block]):
        partition = parse_partition(name)
        if isinstance(node, ForbiddenNode):
            offsets[place.group].add([(place.topic or None, partition)], [None], [None])
        elif partition is not None:
            offsets[place.group].add([(place.topic, partition)], [node.mzxid], [_offset(node)])


def _add_offsets(found: Iterable[LayoutOffset], offsets: OffsetNodes) -> None:
    """Add the offsets of a group in another layout. A node that does not name its partition is left out."""
    for each in found:
        if each.node is None or each.partition is not None:
            offset = each.found.offset if isinstance(each.found, CommittedOffset) else None
            offsets.add([(each.topic, each.partition)], [None if each.node is None else each.node.zxid], [offset])


def _offset(node: Node) -> int | None:
    if is_plain_offset(node.data):
        return int(node.data)
    found = decode_offset(node.path, node.data)
    return None if isinstance(found, UnreadableNode) else found


def mark_obstacles(mark: Mark | UnreadableNode, plan: str) -> list[Obstacle]:
    """Return an obstacle if this is not the mark of this plan."""
    if isinstance(mark, UnreadableNode):
        text = f"the migration mark cannot be read, {mark.path}: {mark.reason}"
    elif mark.plan != plan:
        text = f"the group {mark.shown}"
    else:
        return []
    return [Obstacle(ObstacleKind.OTHER_MARK, detail=text)]


# Brokers


def read_targets(brokers: Brokers, targets: Iterable[str], *, members: bool = True) -> dict[str, TargetState]:
    """Read the committed offsets and the members of these targets. Without `members`, this takes half the time."""
    names, states = _valid_names(targets)
    groups = brokers.groups(names) if members else {}
    committed = brokers.committed_or_error(names)
    return states | {name: _target_state(groups.get(name), committed[name]) for name in names}


def _valid_names(targets: Iterable[str]) -> tuple[list[str], dict[str, TargetState]]:
    """Return the names that can be sent to brokers, and the states of all others."""
    names, invalid = [], {}
    for target in dict.fromkeys(targets):
        try:
            names.append(check_native_group(target))
        except InvalidNameError as error:
            invalid[target] = TargetState(unreadable=str(error))
    return names, invalid


def _target_state(
    group: NativeGroup | ZkgroupsException | None, committed: Mapping[TopicPartition, NativeOffset] | ZkgroupsException
) -> TargetState:
    unreadable = "; ".join(str(each) for each in (group, committed) if isinstance(each, ZkgroupsException))
    if isinstance(group, ZkgroupsException) or isinstance(committed, ZkgroupsException):
        return TargetState(unreadable=unreadable)
    return TargetState(() if group is None else active_members(group), committed)


def active_members(group: NativeGroup) -> tuple[str, ...]:
    """Return the members of a group on the brokers. If it is in use but its members are unknown, name its state."""
    if not group.in_use:
        return ()
    return tuple(map(str, group.members)) or (f"unknown members, state {group.state}",)


def read_topic_ids(brokers: Brokers, plans: Mapping[str, PlanRows]) -> TopicIds:
    """Read the current ids of the topics in these plans. Topics without an id in the plan are left out."""
    ids = (zip(column(rows, "topic"), column(rows, "topic_id"), strict=True) for rows in plans.values())
    known = set(chain.from_iterable(ids))
    names = [topic for topic, id in known if topic is not None and id is not None]
    return brokers.topic_ids(brokers.partitions(names))
