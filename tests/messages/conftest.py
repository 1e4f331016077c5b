"""Consumers in simulated time: a ZooKeeper server and logs of messages in memory.

The folders `brokers`, `handlers` and `accounting` have real brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Message

from tests.consumer.conftest import Connect, committed, connect, group, plant_topic, registry, world
from tests.simulation.kafka import Logs
from tests.simulation.loop import Loop as EventLoop
from tests.simulation.loop import Network
from tests.simulation.world import World
from tests.waiting import LONGEST
from zkgroups import Consumergroup, Registry, TopicPartition

from .looping import Loop, Topic, at_of

__all__ = ["LONGEST", "Connect", "Loop", "Topic", "at_of", "committed", "connect", "group", "registry", "world"]

Loops = Callable[..., Loop]


def offsets_of(messages: list[Message]) -> list[int]:
    return [message.offset() or 0 for message in messages]


@pytest.fixture
def logs(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Logs]:
    """The logs of all topics."""
    logs = Logs(world)
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: EventLoop(Network(world.machine)))  # of handlers
    with logs.installed():
        yield logs


@pytest.fixture
def make_topic(logs: Logs, registry: Registry) -> Callable[[str, int], Topic]:
    """Create a topic: name, partitions."""

    def make(name: str, partitions: int) -> Topic:
        plant_topic(registry.client, name, partitions)
        return Topic(name, partitions, lambda number, value: logs.write(TopicPartition(name, number), value))

    return make


@pytest.fixture
def topic(make_topic: Callable[[str, int], Topic]) -> Topic:
    """A topic of three partitions."""
    return make_topic("orders", 3)


@pytest.fixture
def loop(logs: Logs, connect: Connect, group: Consumergroup) -> Iterator[Loops]:
    """Start a consumer whose loop runs in a thread: topic, options of `Consumer`, and its registry `on`."""
    with ExitStack() as stack:

        def start(topic: Topic, *, on: Registry | None = None, **options: Any) -> Loop:
            place = (on or connect()).group(group.name)
            return stack.enter_context(Loop(place, topic.name, **options))

        yield start


def offsets(group: Consumergroup) -> dict[int, int]:
    """The committed offsets by partition."""
    return {at.partition: offset for at, offset in committed(group).items()}
