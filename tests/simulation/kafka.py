"""Logs of messages on a simulated machine, and the client of confluent-kafka that reads them.

    logs = Logs(world)
    logs.write(TopicPartition("orders", 0), b"an order", key=b"anna")
    with logs.installed():
        consumer = Consumer(group, ["orders"], kafka="simulated")     # reads these logs

The client has no messages in advance, which only a real one can show.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, Message

from zkgroups import TopicPartition

from .world import World

LATENCY = 0.005
"""In seconds: how long an answer of a broker takes."""


class Log:
    """The messages of one partition. Those before `start` are gone."""

    def __init__(self) -> None:
        self.start = 0
        self.messages: list[tuple[bytes, bytes | None] | None] = []
        """The value and the key of each. None stands for the control record of a transaction, which no client gets."""

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return len(self.messages)


class Logs:
    """All logs, and the clients that wait for messages."""

    def __init__(self, world: World) -> None:
        self.machine = world.machine
        self.of: defaultdict[TopicPartition, Log] = defaultdict(Log)
        self.waiting: list[Any] = []

    def write(self, at: TopicPartition, *values: bytes, key: bytes | None = None) -> None:
        """Write messages to a partition."""
        self._append(at, [(value, key) for value in values])

    def end_transaction(self, at: TopicPartition) -> None:
        """Write a control record."""
        self._append(at, [None])

    def _append(self, at: TopicPartition, records: Sequence[tuple[bytes, bytes | None] | None]) -> None:
        self.of[at].messages += records
        while self.waiting:
            self.machine.wake(self.waiting)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let consumers read these logs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(confluent_kafka, "Consumer", lambda _settings: LogClient(self))
            yield


class LogClient:
    """Stands for `confluent_kafka.Consumer`, as far as zkgroups uses it."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._told_end: dict[TopicPartition, int] = {}

    def incremental_assign(self, partitions: list[Any]) -> None:
        for each in partitions:
            at = _at(each)
            self._positions[at] = each.offset
            self._told_end.pop(at, None)

    def incremental_unassign(self, partitions: list[Any]) -> None:
        for each in partitions:
            del self._positions[_at(each)]

    def pause(self, partitions: list[Any]) -> None:
        self._paused.update(map(_at, partitions))

    def resume(self, partitions: list[Any]) -> None:
        self._paused.difference_update(map(_at, partitions))

    def position(self, partitions: list[Any]) -> list[Any]:
        found = [(each, self._positions.get(_at(each), -1001)) for each in partitions]
        return [confluent_kafka.TopicPartition(each.topic, each.partition, offset) for each, offset in found]

    def get_watermark_offsets(self, partition: Any, *, cached: bool = False, **_timeout: float) -> tuple[int, int]:
        if not cached:
            self._logs.machine.sleep(LATENCY)
        log = self._logs.of[_at(partition)]
        return log.start, log.end

    def consume(self, most: int, _timeout: float = 0.0) -> list[Message]:
        found: list[Message] = []
        for at in sorted(self._positions.keys() - self._paused):
            found += self._take(at, most - len(found))
        return found

    def poll(self, timeout: float) -> Message | None:
        end = self._logs.machine.now + timeout
        while not (found := self.consume(1)) and self._logs.machine.now < end:
            waiting = self._logs.waiting
            if not self._logs.machine.wait(waiting, end):
                break
            self._logs.machine.sleep(LATENCY)
        return found[0] if found else None

    def _take(self, at: TopicPartition, most: int) -> list[Message]:
        log, position = self._logs.of[at], self._positions[at]
        if not log.start <= position <= log.end:
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
            return [Message(topic=at.topic, partition=at.partition, offset=position, error=error)]
        found = []
        while len(found) < most and position < log.end:
            if (record := log.messages[position]) is not None:
                value, key = record
                place = {"topic": at.topic, "partition": at.partition, "offset": position}
                found.append(Message(**place, key=key, value=value, timestamp=(1, 1_700)))
            position += 1
        self._positions[at] = position
        if not found and most > 0 and self._told_end.get(at) != position:
            self._told_end[at] = position
            error = KafkaError(KafkaError._PARTITION_EOF)
            found = [Message(topic=at.topic, partition=at.partition, offset=position, error=error)]
        return found

    def close(self) -> None:
        self._positions.clear()


def _at(partition: Any) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)
