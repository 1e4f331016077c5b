"""Messages, commits and owners of a group that has members of both kinds."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import Any

from confluent_kafka import Producer

from zkgroups import Change, CommittedOffset, Consumergroup, TopicPartition, Watched
from zkgroups.testing import KafkaBroker

from ..reader import Reader
from ..scala import ScalaConsumer, whose

# In seconds. A rebalance that takes longer counts as finished.
STILL = 1.0


# The default settings: four tries, two seconds apart.
AS_IT_COMES = {"rebalance.backoff.ms": "2000", "rebalance.max.retries": "4"}


class OffsetLog:
    """The offsets committed in a group, in order, as far as a watch reports them."""

    def __init__(self, group: Consumergroup) -> None:
        self.seen: dict[TopicPartition, list[int]] = {}
        self._watch = group.watch(Watched.OFFSETS)

    @property
    def fallen(self) -> dict[TopicPartition, list[int]]:
        """The partitions in which an offset went back."""
        return {at: offsets for at, offsets in self._so_far() if offsets != sorted(offsets)}

    @property
    def last(self) -> dict[TopicPartition, int]:
        """The offset of each partition that has one."""
        return {at: offsets[-1] for at, offsets in self._so_far()}

    def _so_far(self) -> list[tuple[TopicPartition, list[int]]]:
        """A copy, because the thread of the watch adds partitions meanwhile."""
        return list(self.seen.items())

    def _note(self, change: Change) -> None:
        if isinstance(change.now, CommittedOffset):
            self.seen[change.now.at] = [*self.seen.get(change.now.at, []), change.now.offset]

    def __enter__(self) -> OffsetLog:
        self._watch.follow(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()


class Feed:
    """Writes different messages to all seven partitions of a topic: a number of them, or continuously in a `with`
    block."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        self.texts: list[str] = []
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": broker.address, "log_level": 0, "linger.ms": 0})
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def some(self, rounds: int) -> list[str]:
        """Write that many messages to each partition."""
        new = []
        for number, partition in itertools.product(range(rounds), range(7)):
            new.append(f"message {partition}/{len(self.texts) + number}")
            self._producer.produce(self._topic, new[-1].encode(), partition=partition)
        assert self._producer.flush(30) == 0
        self.texts += new
        return new

    def _go_on(self) -> None:
        while not self._enough.wait(0.02):
            self.some(1)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


def texts(*readers: Any) -> Counter[str]:
    """How often each message was read."""
    return Counter(message.text for reader in readers for message in reader.messages)


def standing(*members: ScalaConsumer | Reader) -> list[tuple[int, ...]]:
    """The number of rebalances of each member, and other counters that change with them."""
    return [_stood(member) for member in members]


def _stood(member: ScalaConsumer | Reader) -> tuple[int, ...]:
    if isinstance(member, ScalaConsumer):
        return (member.rebalances,)
    stats = member.member.stats
    return stats.rebalances, stats.generations, stats.gained, stats.lost, stats.waits, stats.conflicts


def named(owners: dict[TopicPartition, str]) -> set[str]:
    """The instances that own partitions, without the numbers of streams."""
    return set(map(whose, owners.values()))


def first_offsets(reader: Any, owners: dict[TopicPartition, str], *, of: Any) -> set[int]:
    """Where the reader began in the partitions that another member had."""
    first = {message.at: message.offset for message in reversed(reader.messages)}
    return {first[at] for at, id in owners.items() if whose(id) == of.id}
