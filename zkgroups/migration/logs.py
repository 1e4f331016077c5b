"""What the brokers have of the partitions whose offsets are to be carried, asked just before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from ..core.migration import Decision, Log, Rule, Unknown, decide
from ..core.model import OffsetRange, TopicPartition
from ..core.paths import broker_topic
from ..exceptions import NotConnectedError
from ..kafka import Brokers
from ..zookeeper import bulk
from ..zookeeper.node import Node
from ..zookeeper.registry import Registry


class Logs:
    """The logs of some partitions; of others nothing is known."""

    def __init__(self, brokers: Brokers, registry: Registry, partitions: Collection[TopicPartition]) -> None:
        topics = sorted({at.topic for at in partitions})
        self._known = brokers.partitions(topics) if topics else {}
        self._ranges: Mapping[TopicPartition, OffsetRange | None] = {}
        with suppress(NotConnectedError):  # of all their leaders none answers
            self._ranges = brokers.ranges(at for at in partitions if self._has(at))
        self._made = {
            topic: node.czxid
            for topic, node in zip(topics, bulk.nodes(registry.handle, map(broker_topic, topics)), strict=True)
            if isinstance(node, Node)
        }

    def _has(self, at: TopicPartition) -> bool:
        return at.partition in self._known.get(at.topic, ())

    def decide(self, at: TopicPartition, zxid: int, offset: int, there: int | Unknown | None, rule: Rule) -> Decision:
        """What becomes of an offset that was written with that zxid."""
        return decide(offset, self._log(at, zxid), there, rule)

    def _log(self, at: TopicPartition, zxid: int) -> OffsetRange | Log:
        if at.topic not in self._known:
            return Log.NO_TOPIC
        if not self._has(at):
            return Log.NO_PARTITION
        if self._made.get(at.topic, 0) > zxid:
            return Log.YOUNGER
        return self._ranges.get(at) or Log.UNKNOWN
