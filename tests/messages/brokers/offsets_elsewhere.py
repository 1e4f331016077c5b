"""Options of consumers that commit on the brokers, and what their tests ask."""

from __future__ import annotations

from typing import Any

from zkgroups import EventKind, TopicPartition

from ..looping import Loop, Topic
from .sides import Sides

BOTH: list[dict[str, Any]] = [{"offsets": "both", "truth": "zookeeper"}, {"offsets": "both", "truth": "kafka"}]
KAFKA: dict[str, Any] = {"offsets": "kafka"}
BRIEF = 7.0
"""A session that makes commits give up before the session of a suspended broker ends, and outlives a still machine."""
OTHER = {"zookeeper": "kafka", "kafka": "zookeeper"}


def of(options: dict[str, Any]) -> str:
    return ",".join(options.values())


def details(loop: Loop, kind: EventKind) -> list[str]:
    return [event.detail for event in loop.told(kind)]


def put(sides: Sides, at: TopicPartition, *, zookeeper: int | None = None, kafka: int | None = None) -> None:
    """Set the committed offsets of a stopped group."""
    if zookeeper is not None:
        sides.group.offsets.set(at, zookeeper)
    if kafka is not None:
        assert sides.brokers.commit({sides.group.name: {at: kafka}}) == {sides.group.name: {at: None}}


def finished(loop: Loop, topic: Topic) -> Loop:
    """Wait until the loop has asked for a message after the last one."""
    loop.until_read(topic.texts)
    return loop.until(lambda: sum(loop.consumer._reading.positions().values()) == len(topic.texts), "the last message")
