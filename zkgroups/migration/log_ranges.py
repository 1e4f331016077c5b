"""What the brokers have of the partitions whose offsets are to be moved, and what that means for an offset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from ..core.kafka_values import OffsetRange
from ..core.migration.apply_rules import TopicIds
from ..core.migration.plain_groups import Bounds, Shape
from ..core.migration.rules import Log
from ..core.znodes.paths import broker_topic
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import NotConnectedError
from ..kafka import Brokers
from ..zookeeper.registry import Registry
from ..zookeeper.requests import bulk_read
from ..zookeeper.requests.node import Node
from ..zookeeper.session.registry_context import context_of


def topics_made(registry: Registry, names: Iterable[str] | None = None) -> dict[str, int]:
    """When Kafka's topics were made, as zxids: of these, or of all; those that may not be looked at are left out."""
    wanted = registry.topics() if names is None else list(names)
    nodes = zip(wanted, bulk_read.nodes(context_of(registry), map(broker_topic, wanted)), strict=True)
    return {name: node.czxid for name, node in nodes if isinstance(node, Node)}


class Logs:
    """The logs that were asked for. `made` are the zxids that made the topics, as far as they are known."""

    def __init__(self, brokers: Brokers | None, made: Mapping[str, int]) -> None:
        self._brokers = brokers
        self._made = made
        self._found: dict[TopicPartition, OffsetRange | Log] = {}
        self._ids: dict[str, str] = {}

    def ask(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask for what is not known yet, in bulk; without brokers nothing ever is."""
        new = [at for at in dict.fromkeys(partitions) if at not in self._found]
        if self._brokers is None or not new:
            return
        known = self._brokers.partitions({at.topic for at in new})
        # Read the ids before the ranges, so that a range is never from an earlier topic than its id.
        self._ids |= self._brokers.topic_ids(topic for topic in known if topic not in self._ids)
        there = [at for at in new if at.partition in known.get(at.topic, ())]
        ranges: Mapping[TopicPartition, OffsetRange | None] = {}
        with suppress(NotConnectedError):  # of all their leaders none answers; brokers as such did, just now
            ranges = self._brokers.ranges(there)
        for at in new:
            absent = Log.UNKNOWN if at.partition in known.get(at.topic, ()) else Log.NO_PARTITION
            self._found[at] = ranges.get(at) or (absent if at.topic in known else Log.NO_TOPIC)

    def range(self, at: TopicPartition | None) -> OffsetRange | None:
        """Where a log starts and ends."""
        found = None if at is None else self._found.get(at)
        return found if isinstance(found, OffsetRange) else None

    def bounds(self, shape: Shape) -> Bounds | None:
        """Of all these partitions; None where any of them is not known."""
        known = [found for at in shape.ats if isinstance(found := self._found.get(at), OffsetRange)]
        if len(known) < len(shape):
            return None
        made = [self._made.get(topic, 0) for topic in shape.topics]
        ids = [self._ids.get(topic) for topic in shape.topics]
        return Bounds([found.start for found in known], [found.end for found in known], made, ids)

    @property
    def ids(self) -> TopicIds:
        """Kafka's ids of the topics that were asked for."""
        return self._ids

    def topic_id(self, topic: str | None) -> str | None:
        """Kafka's id of a topic that was asked for, where the brokers have one."""
        return None if topic is None else self._ids.get(topic)

    def log(self, at: TopicPartition | None, zxid: int | None, topic_id: str | None = None) -> OffsetRange | Log:
        """The log in the form that the rule needs, given the zxid of the offset and the topic id in the plan."""
        if at is None:
            return Log.NO_PARTITION
        found, made = self._found.get(at, Log.NOT_ASKED), self._made.get(at.topic)
        if topic_id is not None and found not in (Log.NO_TOPIC, Log.NOT_ASKED) and self.topic_id(at.topic) != topic_id:
            return Log.MADE_ANEW
        younger = made is not None and zxid is not None and zxid < made
        return Log.YOUNGER if younger and found not in (Log.NO_TOPIC, Log.NO_PARTITION) else found
