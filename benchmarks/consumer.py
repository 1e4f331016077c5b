"""Messages per second of a `Consumer`, compared with other consumers on the same partitions.

    python -m benchmarks.consumer [--messages 400000] [--partitions 4] [--rounds 5]

- iteration: `for message in Consumer(...)`, which knows for each message whether it is finished, and commits
- bare: `consume(500)` of confluent-kafka in a loop, which commits nothing
- pykafka: `for message in consumer`, a BalancedConsumer, which shares partitions in ZooKeeper, too
- aiokafka: `async for message in consumer`, in Kafka's own group

Each round reads everything from the first to the last message, with messages of 100 bytes and of 1 kB (a fifth as
many). pykafka and aiokafka read a tenth of that, and their times are multiplied. The time begins with the first
message, so joining the group is left out. On a busy machine, compare the CPU time.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, Producer

from benchmarks import Times, every_round, medians, paired_ratios, result, table
from tests.consumer.pykafka_member import python_with_pykafka
from zkgroups import CommittedOffset, Consumer, Registry
from zkgroups.testing import KafkaBroker, ZooKeeperServer

_RELEASE = "1.1.1"
_SIZES = {"100 B": 100, "1 kB": 1_000}
_WAIT = 1.0
_FEWER = 10
"""The others read this many times fewer messages: they take so much longer."""

Clocks = tuple[float, float]
"""Seconds of the clock, and seconds of CPU of this process."""


class Contenders:
    """What reads the topics. Each topic has the name of its size."""

    def __init__(self, broker: KafkaBroker, registry: Registry, counts: dict[str, int], partitions: int) -> None:
        self._address = broker.address
        self._zookeeper = broker.zookeeper
        self._registry = registry
        self._counts = counts
        self._partitions = partitions
        self._numbers = itertools.count()

    def bare(self, _number: int) -> Times:
        """Confluent-kafka alone."""
        return _times({name: self._bare(_topic(name), count) for name, count in self._counts.items()})

    def iteration(self, _number: int) -> Times:
        """The loop of a `Consumer`, in a new group each time."""
        return _times({name: self._iterated(_topic(name), count) for name, count in self._counts.items()})

    def pykafka(self, _number: int) -> Times:
        """A BalancedConsumer of pykafka, in a process of its own."""
        return self._program(python_with_pykafka(), "_pykafka_loop.py")

    def aiokafka(self, _number: int) -> Times:
        """A consumer of aiokafka, in a process of its own."""
        return self._program(Path(sys.executable), "_aiokafka_loop.py")

    def _program(self, python: Path, name: str) -> Times:
        return _times({size: self._run(python, name, size, count) for size, count in self._counts.items()})

    def _run(self, python: Path, name: str, size: str, count: int) -> Clocks:
        arguments = [self._address, self._zookeeper, f"bench-{next(self._numbers)}", _topic(size), str(count // _FEWER)]
        command = [python, "-W", "ignore", Path(__file__).with_name(name), *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        took, cpu = (float(seconds) * _FEWER for seconds in done.stdout.split())
        return took, cpu

    def _bare(self, topic: str, count: int) -> Clocks:
        settings = {"bootstrap.servers": self._address, "group.id": "bench", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer(settings)
        partitions = range(self._partitions)
        consumer.assign([confluent_kafka.TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        began, seen, size = None, 0, 0
        while seen < count:
            batch = consumer.consume(500, _WAIT)
            began = began or _clocks()
            for message in batch:
                if message.error():
                    raise confluent_kafka.KafkaException(message.error())
                size += len(message)
                seen += 1
        took = _since(began)
        consumer.close()
        return took

    def _iterated(self, topic: str, count: int) -> Clocks:
        group = self._registry.group(f"bench-{next(self._numbers)}")
        seen, size = 1, 0
        with Consumer(group, [topic], kafka=self._address) as consumer:
            messages = itertools.islice(consumer, count)
            size += len(next(messages))
            began = _clocks()
            for message in messages:
                size += len(message)
                seen += 1
            took = _since(began)
        assert sum(found.offset for found in group.offsets if isinstance(found, CommittedOffset)) == count - 1
        return took


def _clocks() -> Clocks:
    return time.perf_counter(), time.process_time()


def _since(began: Clocks | None) -> Clocks:
    assert began is not None
    (clock, cpu), (clock_then, cpu_then) = _clocks(), began
    return clock - clock_then, cpu - cpu_then


def _times(found: dict[str, Clocks]) -> Times:
    return {name: took for name, (took, _cpu) in found.items()} | {
        f"{name} CPU": cpu for name, (_, cpu) in found.items()
    }


def _topic(name: str) -> str:
    return f"bench-{_SIZES[name]}"


def write(broker: KafkaBroker, name: str, count: int, partitions: int) -> None:
    """Write the messages of one size."""
    broker.create_topic(_topic(name), partitions)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 50, "queue.buffering.max.messages": 0})
    value = b"." * _SIZES[name]
    for number in range(count):
        producer.produce(_topic(name), value, partition=number % partitions)
        producer.poll(0)
    assert producer.flush(120) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    counts = {"100 B": given.messages, "1 kB": given.messages // 5}
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperServer())
        broker = stack.enter_context(KafkaBroker(release=_RELEASE, zookeeper=f"{zookeeper.address}/kafka"))
        registry = stack.enter_context(Registry.connect(broker.zookeeper))
        for name, count in counts.items():
            write(broker, name, count, given.partitions)
        contenders = Contenders(broker, registry, counts, given.partitions)
        others = {"bare": contenders.bare, "pykafka": contenders.pykafka, "aiokafka": contenders.aiokafka}
        found = every_round({"iteration": contenders.iteration, **others}, rounds=given.rounds)
    table(f"{given.messages} messages of 100 B, {counts['1 kB']} of 1 kB", medians(found))
    result(
        "consumer",
        **{
            f"iteration_vs_{other}_{name.replace(' B', 'B').replace(' k', 'k').replace(' ', '_')}": ratio
            for other in others
            for name, ratio in paired_ratios(found["iteration"], found[other]).items()
        },
    )


if __name__ == "__main__":
    main()
