"""Topics, and consumers whose loops run in a thread or in a process, with the messages that they have received."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Message, Producer

from tests.printing_consumer import PrintingProcess
from tests.waiting import LONGEST as LONGEST
from zkgroups import Consumer, Consumergroup, EventKind, InstanceState, MemberEvent, Registry, TopicPartition
from zkgroups.messages.broker_offsets import BrokerOffsets
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.session.session import context_of

ROOT = Path(__file__).parents[2]

LASTING = 20.0
"""The session of a consumer that nobody kills: a machine that stands still for seconds must not end it."""
SESSION = 4.0
"""The session of a process that is killed: others wait for its end."""

QUICK = {"fetch.wait.max.ms": 20, "log_level": 0}
QUICK_NATIVE = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
"""The shortest session that brokers allow. A machine that stands still for seconds must not end it."""


def at_of(message: Message) -> TopicPartition:
    return TopicPartition(str(message.topic()), message.partition() or 0)


class Topic:
    """A topic whose messages have different texts. `send` writes one: partition, value, and perhaps more."""

    def __init__(
        self, name: str, partitions: int, send: Callable[..., object], flush: Callable[[], object] = lambda: None
    ) -> None:
        self.name, self.send, self._flush = name, send, flush
        self.ats = [TopicPartition(name, number) for number in range(partitions)]
        self.texts: set[str] = set()

    def write(self, each: int, *partitions: int) -> None:
        """Write that many messages to each partition, or to each of these."""
        for partition in partitions or range(len(self.ats)):
            for _ in range(each):
                text = f"{partition}/{len(self.texts)}"
                self.send(partition, text.encode())
                self.texts.add(text)
        self._flush()


def topic_on(broker: KafkaBroker, name: str, partitions: int) -> Topic:
    """Create a topic on a broker."""
    broker.create_topic(name, partitions)
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0, "linger.ms": 5})

    def send(partition: int, value: bytes | None, key: bytes | None = None, **more: Any) -> None:
        producer.produce(name, value, key, partition, **more)

    def flush() -> None:
        assert producer.flush(LONGEST) == 0

    return Topic(name, partitions, send, flush)


@contextmanager
def written(topic: Topic) -> Iterator[Topic]:
    """Write a few messages to all partitions again and again."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.05):
            topic.write(2)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield topic
    finally:
        ended.set()
        thread.join(LONGEST)


class Loop:
    """A consumer whose loop runs in a thread. `body` is called with each message. An error of the loop fails the test
    when the consumer is stopped."""

    def __init__(
        self,
        group: Consumergroup,
        topics: Any,
        *,
        kafka: Any = "simulated",
        body: Callable[[Message], object] = lambda _message: None,
        **options: Any,
    ) -> None:
        self.events: list[MemberEvent] = []
        self.messages: list[tuple[TopicPartition, int, str]] = []
        self.errors: list[BaseException] = []
        self.client = context_of(group).session.client
        self._body = body
        self._news = threading.Condition()
        chosen: dict[str, Any] = {"join_backoff": 0.2, "auto_commit_every": 0.2, "on_event": self._hear} | options
        self.consumer = Consumer(group, topics, kafka=kafka, **chosen)
        self.id = self.consumer.id
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _hear(self, event: MemberEvent) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def _run(self) -> None:
        while not self.consumer._reading.member.closed:
            try:
                for message in self.consumer:
                    self._body(message)
                    with self._news:
                        self.messages.append((at_of(message), message.offset() or 0, (message.value() or b"").decode()))
                        self._news.notify_all()
            except BaseException as error:
                with self._news:
                    self.errors.append(error)
                    self._news.notify_all()

    def told(self, kind: EventKind) -> list[MemberEvent]:
        """The events of a kind so far."""
        return [event for event in list(self.events) if event.kind is kind]

    @property
    def texts(self) -> Counter[str]:
        """How often each message was received, and its body finished."""
        with self._news:
            return Counter(text for _at, _offset, text in self.messages)

    def until(self, so: Callable[[], object], what: str = "it") -> Self:
        """Wait for a condition. It is evaluated after each message and event, and every 50 ms."""
        end = time.monotonic() + LONGEST
        with self._news:
            while not so():
                told = f"{self.consumer!r}, {self.events[-5:]}, {self.errors}"
                assert time.monotonic() < end, f"{what} has not come: {told}"
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
        assert self.errors == []


@contextmanager
def running(consumer: Consumer, handler: Any, **options: Any) -> Iterator[list[BaseException]]:
    """Run a consumer on a thread, and close it at the end. The list receives the error that `run` raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run(handler, **options)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    with consumer:
        thread.start()
        try:
            yield errors
        finally:
            consumer.stop()
            thread.join(LONGEST)
    assert not thread.is_alive()


class LoopProcess(PrintingProcess):
    """A consumer in a process that can be killed. It prints the messages whose body is finished."""

    def __init__(
        self,
        broker: KafkaBroker,
        group: str,
        topic: str,
        id: str,
        *,
        every: float = 0.2,
        session: float = SESSION,
        kafka: Mapping[str, Any] | None = None,
        dies_between_writes: bool = False,
        session_file: Path | None = None,
        **options: Any,
    ) -> None:
        self.id = id
        arguments = {
            "zookeeper": broker.zookeeper,
            "session": {"session_timeout": session, "session_file": session_file and str(session_file)},
            "kafka": {"bootstrap.servers": broker.address, **(kafka or {})},
            "group": group,
            "topic": topic,
            "options": {"id": id, "auto_commit_every": every, **options},
            "dies_between_writes": dies_between_writes,
        }
        self._arguments = arguments

    def command(self, _folder: Path) -> list[str]:
        return [sys.executable, "-m", __name__, json.dumps(self._arguments)]

    @property
    def texts(self) -> Counter[str]:
        """How often each message was received, and its body finished."""
        return Counter(line.removeprefix("read ") for line in self.lines() if line.startswith("read "))

    def stop(self) -> None:
        """Ask it to end with SIGTERM, as a supervisor does, and wait."""
        os.kill(self._process.pid, signal.SIGTERM)
        assert self._process.wait(LONGEST) == 0, self._process.tail()


def main(
    zookeeper: str,
    session: dict[str, Any],
    kafka: dict[str, Any],
    group: str,
    topic: str,
    options: dict[str, Any],
    dies_between_writes: bool,
) -> None:
    """Consume until SIGTERM."""
    if dies_between_writes:
        BrokerOffsets.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    with Registry.connect(zookeeper, **session) as registry:
        consumer = Consumer(registry.group(group), [topic], kafka=QUICK | kafka, join_backoff=0.2, **options)
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        with consumer:
            for message in consumer:
                print("read", (message.value() or b"").decode(), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))


def places(loop: Loop) -> list[str]:
    """Where a consumer has followed its group to."""
    return ["brokers" if "brokers" in event.detail else "ZooKeeper" for event in loop.told(EventKind.MOVED)]


def shares(*loops: Loop) -> list[int]:
    return sorted(len(loop.consumer.assignment) for loop in loops)


def read_by(*loops: Loop | LoopProcess) -> dict[str, int]:
    found: dict[str, int] = {}
    for loop in loops:
        for text, count in loop.texts.items():
            found[text] = found.get(text, 0) + count
    return found
