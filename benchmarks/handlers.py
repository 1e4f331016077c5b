"""Measure `Consumer.run` with a handler that does nothing.

    python -m benchmarks.handlers [--messages 200000] [--rounds 5]

It is compared with a bare confluent-kafka loop, `consume(500)`, on the same partitions: in time, and in CPU time of the
process, which depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer as BareConsumer
from confluent_kafka import Message, Producer, TopicPartition

from benchmarks import Times, every_round, medians, paired_ratios, result, table
from zkgroups import Consumer, Registry
from zkgroups.testing import KafkaBroker, ZooKeeperServer

PARTITIONS = 3
SIZES = (100, 1_000)
KEYS = 1_000
PATIENCE = 60.0


def topic_of(size: int) -> str:
    return f"messages-of-{size}-bytes"


def write(broker: KafkaBroker, size: int, messages: int) -> None:
    broker.create_topic(topic_of(size), PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.address, "queue.buffering.max.messages": 10**6})
    value = b"x" * size
    for number in range(messages):
        while True:
            try:
                producer.produce(topic_of(size), value, b"%d" % (number % KEYS), number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(PATIENCE) == 0


class Stopwatch:
    """Measures from the first message to the last."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self, size: int) -> Times:
        seconds, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        return {f"{size} bytes": seconds, f"{size} bytes, CPU": cpu}


def bare(broker: KafkaBroker, size: int, messages: int) -> Times:
    consumer = BareConsumer({"bootstrap.servers": broker.address, "group.id": "bare", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic_of(size), number, 0) for number in range(PARTITIONS)])
    watch, left = None, messages
    while left:
        found = consumer.consume(500, timeout=PATIENCE)
        watch = watch or Stopwatch()
        for message in found:
            assert message.error() is None
        left -= len(found)
    assert watch is not None
    times = watch.read(size)
    consumer.close()
    return times


def run(broker: KafkaBroker, size: int, messages: int, handler: object, **options: object) -> Times:
    with Registry.connect(broker.zookeeper) as registry:
        group = registry.group(f"run-{time.monotonic_ns()}")
        with Consumer(group, [topic_of(size)], kafka=broker.address) as consumer:
            thread = threading.Thread(target=lambda: consumer.run(handler, **options))  # type: ignore[arg-type]
            thread.start()
            while not handled(consumer):
                time.sleep(0.005)
            watch = Stopwatch()
            while handled(consumer) < messages:
                time.sleep(0.005)
            times = watch.read(size)
            consumer.stop()
            thread.join()
        group.delete()
    return times


def handled(consumer: Consumer) -> int:
    handlers = consumer.stats().handlers
    return handlers.handled if handlers is not None else 0


def nothing(_message: Message) -> None:
    """Handle a message."""


async def nothing_async(_message: Message) -> None:
    """Handle a message."""


def contender(measured: Callable[[int], Times]) -> Callable[[int], Times]:
    return lambda _round: {name: value for size in SIZES for name, value in measured(size).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    count = given.messages
    with ZooKeeperServer() as zookeeper, KafkaBroker(release="1.1.1", zookeeper=zookeeper.address) as broker:
        for size in SIZES:
            write(broker, size, count)
        found = every_round(
            {
                "bare consume(500)": contender(lambda size: bare(broker, size, count)),
                "order partition": contender(lambda size: run(broker, size, count, nothing)),
                "order partition, 4": contender(lambda size: run(broker, size, count, nothing, workers=4)),
                "order key, 4": contender(lambda size: run(broker, size, count, nothing, order="key", workers=4)),
                "order none, 4": contender(lambda size: run(broker, size, count, nothing, order="none", workers=4)),
                "coroutines": contender(lambda size: run(broker, size, count, nothing_async)),
            },
            rounds=given.rounds,
        )
    table(f"{count} messages", medians(found))
    bare_times = found.pop("bare consume(500)")
    result("handlers", **{name: paired_ratios(times, bare_times) for name, times in found.items()})


if __name__ == "__main__":
    main()
