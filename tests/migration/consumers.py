"""Consumers on both sides, a producer of numbered messages, and the judge of which messages were read.

    with LegacyReader(legacy_kafka, "billing", "orders", count=40) as legacy:
        done = legacy.finish()

`ScalaConsumer` reads while it lives, so its progress at the last commit is unknown. `LegacyReader` processes one
message after the other. It commits after the requested number of messages, or when asked to end, and then leaves.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Producer

from tests.consumer.scala import Message, ScalaConsumer
from tests.testing.unique import unique_numbers
from tests.waiting import LONGEST, eventually
from zkgroups import TopicPartition
from zkgroups.testing import KafkaBroker

_numbers = unique_numbers()


# It alternates between partitions, so that all of them are partly read, and often checks whether it should end.
_CONFIG = {"fetch.message.max.bytes": "400", "consumer.timeout.ms": "50", "queued.max.message.chunks": "1"}


class LegacyReader(ScalaConsumer):
    """Reads `count` messages of the topic and leaves. Without a count, it reads until `finish`."""

    program = Path(__file__).with_name("LegacyReader.java")

    def __init__(self, broker: KafkaBroker, group: str, topic: str, *, count: int = 0) -> None:
        super().__init__(broker, group, f"legacy-{next(_numbers)}", {}, config=_CONFIG)
        self._chosen = ["count", str(count), topic]
        self._count = count

    def until_done(self, count: int) -> None:
        """Wait until it has processed that many messages."""
        eventually(lambda: len(self.messages) >= count or not self.running)
        assert len(self.messages) >= count, self.log_tail()

    def finish(self) -> list[Message]:
        """Return its messages, once it has committed all of them and left."""
        if self._count:
            assert self._process.wait(LONGEST) == 0, self.log_tail()
            assert "left" in self.lines(), self.log_tail()
            assert len(self.messages) == self._count, self.log_tail()
        else:
            self.stop()
        return self.messages


class NumberedProducer:
    """Writes messages with the numbers 0, 1, 2 ... into the partitions of a topic.

    With several addresses it acts like a mirror that keeps offsets: each partition gets the same messages in the
    same order everywhere.
    """

    def __init__(self, topic: str, partitions: int, *addresses: str) -> None:
        self._topic = topic
        self._partitions = partitions
        # In small batches: the legacy consumer receives whole batches, and must get messages of all partitions.
        settings = {"log_level": 0, "linger.ms": 0, "batch.num.messages": 4, "max.in.flight": 1}
        self._producers = [Producer({"bootstrap.servers": address, **settings}) for address in addresses]
        self.written: list[Message] = []
        """All messages, in the order of writing."""
        self._ends: defaultdict[TopicPartition, int] = defaultdict(int)

    def write(self, count: int) -> None:
        """Write that many messages, and return when all of them are stored."""
        new = [self._next(number) for number in range(len(self.written), len(self.written) + count)]
        for producer in self._producers:
            for message in new:
                producer.produce(self._topic, message.text, partition=message.at.partition)
            assert producer.flush(LONGEST) == 0
        self.written += new

    def _next(self, number: int) -> Message:
        # Partitions get different numbers of messages, so that confusing two of them is detected.
        at = TopicPartition(self._topic, (number * number + number // 7) % self._partitions)
        self._ends[at] += 1
        return Message(at, self._ends[at] - 1, f"{number}")

    @contextmanager
    def going_on(self, *, every: float = 0.02, count: int = 3) -> Iterator[Self]:
        """Write a few messages repeatedly, for the duration of the block."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(every):
                self.write(count)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()


def judge(written: Sequence[Message], *readings: Sequence[Message]) -> None:
    """Check that consecutive consumers have read every message once and in order."""
    wanted, found = _by_partition(written), _by_partition([each for reading in readings for each in reading])
    assert found == wanted, _difference(wanted, found)


def _by_partition(messages: Iterable[Message]) -> dict[TopicPartition, list[tuple[int, str]]]:
    found: defaultdict[TopicPartition, list[tuple[int, str]]] = defaultdict(list)
    for message in messages:
        found[message.at].append((message.offset, message.text))
    return dict(found)


def _difference(wanted: Mapping[TopicPartition, Any], found: Mapping[TopicPartition, Any]) -> str:
    """Describe messages that were read twice or not at all."""
    lines = []
    for at in sorted({*wanted, *found}):
        should, did = Counter(wanted.get(at, ())), Counter(found.get(at, ()))
        if wanted.get(at) != found.get(at):
            lines.append(f"{at}: twice {sorted(did - should)}, missing {sorted(should - did)}")
    return "\n".join(lines)


class NativeReader:
    """A native consumer: starts at the committed offsets of its group, and commits when it leaves."""

    def __init__(self, address: str, group: str, topic: str, partitions: int) -> None:
        config = {"bootstrap.servers": address, "group.id": group, "log_level": 0, "enable.auto.commit": False}
        # Like the legacy consumer: if an offset is lost, messages are read twice, and the judge detects it.
        config |= {"auto.offset.reset": "smallest", "enable.partition.eof": True, "fetch.wait.max.ms": 20}
        self._consumer = Consumer(config)
        self._consumer.subscribe([topic])
        self._wanted = {TopicPartition(topic, number) for number in range(partitions)}
        self._ended: set[TopicPartition] = set()
        self._closed = False
        self.done: list[Message] = []

    def do(self, count: int) -> list[Message]:
        """Process that many more messages. Return all processed messages."""
        wanted = len(self.done) + count
        self._until(lambda: len(self.done) >= wanted)
        return self.done

    def do_all(self) -> list[Message]:
        """Process all messages up to the ends of all partitions."""
        self._ended.clear()
        self._until(lambda: self._ended == self._wanted)
        return self.done

    def _until(self, so: Callable[[], bool]) -> None:
        def goes_on() -> bool:
            if not so() and (found := self._consumer.poll(0.1)) is not None:
                self._take(found)
            return so()

        assert eventually(goes_on), f"{len(self.done)} messages came, and the ends of {self._ended}"

    def _take(self, found: Any) -> None:
        at = TopicPartition(found.topic(), found.partition())
        if found.error() is None:
            self.done.append(Message(at, found.offset(), found.value().decode()))
        else:
            assert found.error().code() == KafkaError._PARTITION_EOF, found.error()
            self._ended.add(at)

    def commit(self) -> None:
        """Commit all processed messages."""
        answers = self._consumer.commit(asynchronous=False)
        assert all(each.error is None for each in answers)

    def close(self) -> None:
        """Commit and leave; a second call does nothing."""
        if not self._closed:
            self._closed = True
            if self.done:
                self.commit()
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
