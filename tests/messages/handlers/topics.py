"""Topics on Kafka 1.1.1, and consumers that handle their messages on a thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer as Reader
from confluent_kafka import Message, Producer
from confluent_kafka import TopicPartition as Position

from zkgroups import CommittedOffset, Consumer, Consumergroup, Registry
from zkgroups.testing import KafkaBroker

from .running import LONG

_numbers = itertools.count()


class Topic:
    """A topic of one test, and the group that reads it."""

    def __init__(self, broker: KafkaBroker, registry: Registry, partitions: int) -> None:
        number = next(_numbers)
        self.name, self.dead = f"handled-{number}", f"failed-{number}"
        self.broker = broker
        self.partitions = partitions
        self.group: Consumergroup = registry.group(f"handlers-{number}")
        for name, count in ((self.name, partitions), (self.dead, 1)):
            broker.create_topic(name, count)
        self._producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
        self.sent = 0

    def send(self, value: bytes | None, *, key: bytes | None = None, partition: int = 0, **more: Any) -> None:
        self._producer.produce(self.name, value, key, partition, **more)
        self.sent += 1

    def flush(self) -> None:
        assert self._producer.flush(LONG) == 0

    def consumer(self, group: Consumergroup | None = None, **options: Any) -> Consumer:
        options = {"auto_commit_every": 0.1, "release_timeout": 2.0} | options
        return Consumer(group or self.group, [self.name], kafka=self.broker.address, **options)

    def committed(self) -> dict[int, int]:
        """The committed offset of each partition."""
        return {found.at.partition: found.offset for found in self.group.offsets if isinstance(found, CommittedOffset)}

    def is_finished(self) -> bool:
        return sum(self.committed().values()) == self.sent

    def letters(self) -> list[Message]:
        """All dead letters."""
        reader = Reader({"bootstrap.servers": self.broker.address, "group.id": "unused", "log_level": 0})
        _start, end = reader.get_watermark_offsets(Position(self.dead, 0), timeout=LONG)
        reader.assign([Position(self.dead, 0, 0)])
        found: list[Message] = []
        while len(found) < end:
            message = reader.poll(LONG)
            assert message is not None
            assert message.error() is None
            found.append(message)
        reader.close()
        return found


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
            thread.join(LONG)
    assert not thread.is_alive()


def where(message: Message) -> tuple[int | None, int | None]:
    return message.partition(), message.offset()
