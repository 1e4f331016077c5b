"""Fixtures: a group and topics on a broker of Kafka 1.1, and loops that consume them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.testing.unique import unique_numbers
from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker

from .looping import Loop
from .sides import Sides

_numbers = unique_numbers()

Loops = Callable[..., Loop]


class Topic:
    """A topic whose messages have different texts."""

    def __init__(self, broker: KafkaBroker, name: str, partitions: int, **config: str) -> None:
        broker.create_topic(name, partitions, {key.replace("_", "."): value for key, value in config.items()})
        self.name = name
        self.broker = broker
        self.ats = [TopicPartition(name, number) for number in range(partitions)]
        self.texts: set[str] = set()
        self._producer = Producer({"bootstrap.servers": broker.address, "log_level": 0, "linger.ms": 5})

    def write(self, each: int, *partitions: int, size: int = 0) -> None:
        """Write that many messages to each partition, or to each of these."""
        for number, partition in itertools.product(range(each), partitions or range(len(self.ats))):
            text = f"{partition}/{len(self.texts)}/{number}".ljust(size, ".")
            self._producer.produce(self.name, text.encode(), partition=partition)
            self.texts.add(text)
        assert self._producer.flush(60) == 0


@pytest.fixture(scope="module")
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    """A registry at the ZooKeeper of the old broker."""
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield registry


@pytest.fixture
def group(registry: Registry) -> Consumergroup:
    return registry.group(f"loops-{next(_numbers)}")


@pytest.fixture
def make_topic(legacy_kafka: KafkaBroker) -> Callable[..., Topic]:
    """Create a topic: partitions, configuration."""
    return lambda partitions, **config: Topic(legacy_kafka, f"loops-{next(_numbers)}", partitions, **config)


@pytest.fixture
def topic(make_topic: Callable[..., Topic]) -> Topic:
    """A topic of three partitions."""
    return make_topic(3)


@pytest.fixture
def loop(legacy_kafka: KafkaBroker, group: Consumergroup) -> Iterator[Loops]:
    """Start a consumer whose loop runs in a thread, with a session of its own: topic, options of `Consumer`."""
    with ExitStack() as stack:

        def start(topic: Topic, **options: Any) -> Loop:
            return stack.enter_context(Loop(legacy_kafka, group.name, topic.name, **options))

        yield start


@pytest.fixture
def brokers(legacy_kafka: KafkaBroker) -> Iterator[Brokers]:
    with Brokers.connect(legacy_kafka.address) as brokers:
        yield brokers


@pytest.fixture
def sides(group: Consumergroup, registry: Registry, brokers: Brokers) -> Sides:
    return Sides(group, registry, brokers)
