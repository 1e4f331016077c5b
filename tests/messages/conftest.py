"""Consumers in simulated time: a ZooKeeper server and logs of messages in memory.

The folders `brokers`, `handlers` and `accounting` have real brokers.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self

import pytest
from confluent_kafka import Message

from tests.consumer.conftest import Connect, committed, connect, group, plant_topic, registry, world
from tests.simulation.kafka import Logs
from tests.simulation.loop import Loop as EventLoop
from tests.simulation.loop import Network
from tests.simulation.world import World
from tests.waiting import LONGEST
from zkgroups import Consumer, Consumergroup, EventKind, InstanceState, MemberEvent, Registry, TopicPartition

__all__ = ["LONGEST", "Connect", "Loop", "Topic", "committed", "connect", "group", "registry", "world"]

Loops = Callable[..., "Loop"]


def at_of(message: Message) -> TopicPartition:
    return TopicPartition(str(message.topic()), message.partition() or 0)


def offsets_of(messages: list[Message]) -> list[int]:
    return [message.offset() or 0 for message in messages]


class Topic:
    """A topic whose messages have different texts."""

    def __init__(self, logs: Logs, client: Any, name: str, partitions: int) -> None:
        plant_topic(client, name, partitions)
        self.name, self.logs = name, logs
        self.ats = [TopicPartition(name, number) for number in range(partitions)]
        self.texts: set[str] = set()

    def write(self, each: int, *partitions: int) -> None:
        """Write that many messages to each partition, or to each of these."""
        for number, partition in itertools.product(range(each), partitions or range(len(self.ats))):
            text = f"{partition}/{len(self.texts)}/{number}"
            self.logs.write(self.ats[partition], text.encode())
            self.texts.add(text)


class Loop:
    """A consumer whose loop runs in a thread. `body` is called with each message."""

    def __init__(
        self,
        group: Consumergroup,
        topic: str,
        *,
        body: Callable[[Message], object] = lambda _message: None,
        **options: Any,
    ) -> None:
        self.events: list[MemberEvent] = []
        self.messages: list[tuple[TopicPartition, int, str]] = []
        self._body = body
        self._news = threading.Condition()
        chosen: dict[str, Any] = {"auto_commit_every": 0.2, "on_event": self._hear} | options
        self.consumer = Consumer(group, [topic], kafka="simulated", **chosen)
        self._thread = threading.Thread(target=self._run)

    def _hear(self, event: MemberEvent) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def _run(self) -> None:
        for message in self.consumer:
            self._body(message)
            with self._news:
                self.messages.append((at_of(message), message.offset() or 0, (message.value() or b"").decode()))
                self._news.notify_all()

    @property
    def texts(self) -> Counter[str]:
        """How often each message was received, and its body finished."""
        return Counter(text for _at, _offset, text in self.messages)

    def told(self, kind: EventKind) -> list[MemberEvent]:
        """The events of a kind so far."""
        return [event for event in self.events if event.kind is kind]

    def until(self, so: Callable[[], object], what: str = "it") -> Self:
        """Wait for a condition. It is evaluated after each message and event, and every 50 ms."""
        end = time.monotonic() + LONGEST
        with self._news:
            while not so():
                assert time.monotonic() < end, f"{what} has not come: {self.consumer!r}, {self.events[-5:]}"
                self._news.wait(0.05)
        return self

    def until_holding(self, *partitions: TopicPartition) -> Self:
        """Wait until the consumer holds exactly these partitions, and nothing moves."""

        def settled() -> bool:
            stats = self.consumer.stats()
            return stats.state is InstanceState.STABLE and stats.partitions.keys() == set(partitions)

        return self.until(settled, f"{len(partitions)} partitions")

    def until_read(self, texts: set[str]) -> Self:
        """Wait until these messages were received."""
        return self.until(lambda: texts <= self.texts.keys(), f"{len(texts)} messages")

    def stop(self) -> None:
        """Leave the group after the message in hand."""
        self.consumer.stop()
        self._thread.join(LONGEST)
        assert not self._thread.is_alive(), f"{self.consumer!r} does not end"
        self.consumer.close()

    def __enter__(self) -> Self:
        self.consumer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


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
    return lambda name, partitions: Topic(logs, registry.client, name, partitions)


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
