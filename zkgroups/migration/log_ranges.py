"""The log ranges of partitions on the brokers, each read once, and their meaning for an offset."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import le
from typing import Any, NamedTuple

from ..core.columns import column
from ..core.kafka_values import OffsetRange
from ..core.migration.changes_since_plan import PlanRows
from ..core.migration.offset_decision import NoLog
from ..core.migration.plan_rows import Places, places
from ..core.migration.source_and_target_state import TopicIds
from ..core.znodes.paths import broker_topic
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import NotConnectedError
from ..kafka import Brokers
from ..zookeeper.registry import Registry
from ..zookeeper.requests import bulk_read
from ..zookeeper.requests.node import Node
from ..zookeeper.session.registry_context import context_of


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

    def read(self, partitions: Iterable[TopicPartition]) -> None:
        """Read the ranges of these partitions in bulk, unless they are known. Does nothing without brokers."""
        new = [at for at in dict.fromkeys(partitions) if at not in self._found]
        if self._brokers is None or not new:
            return
        self._columns.clear()
        topics = {at.topic for at in new}
        known = self._brokers.partitions(topics)
        hidden = self._brokers.hidden_topics(topics - known.keys())
        # Read the ids before the ranges, so that a range is never from an earlier topic than its id.
        self._ids |= self._brokers.topic_ids(topic for topic in known if topic not in self._ids)
        there = [at for at in new if at.partition in known.get(at.topic, ())]
        ranges: Mapping[TopicPartition, OffsetRange | None] = {}
        with suppress(NotConnectedError):  # no leader answers, although the cluster answered just now
            ranges = self._brokers.ranges(there)
        for at in new:
            self._found[at] = ranges.get(at) or _absent(at, known, hidden)

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
            return NoLog.NO_PARTITION
        topic, found = at.topic, self._found.get(at, NoLog.NOT_CHECKED)
        is_known = isinstance(found, OffsetRange) or found is NoLog.NO_PARTITION or topic in self._ids
        if topic_id is not None and is_known and self._ids.get(topic) != topic_id:
            return NoLog.RECREATED
        created = self._created.get(topic)
        is_newer = created is not None and zxid is not None and zxid < created
        is_there = found is not NoLog.NO_TOPIC and found is not NoLog.NO_PARTITION
        return NoLog.NEWER if is_newer and is_there else found


def _absent(at: TopicPartition, known: Mapping[str, Sequence[int]], hidden: Container[str]) -> NoLog:
    """Return why a partition has no range."""
    if at.topic in hidden or at.partition in known.get(at.topic, ()):
        return NoLog.UNKNOWN
    return NoLog.NO_PARTITION if at.topic in known else NoLog.NO_TOPIC
