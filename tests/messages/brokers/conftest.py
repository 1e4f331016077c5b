"""Fixtures: a group and topics on a broker of Kafka 1.1, and loops that consume them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.testing.unique import unique_numbers
from zkgroups import Consumergroup, Registry
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker

from ..looping import LASTING, QUICK, Loop, Topic, topic_on
from .sides import Sides

_numbers = unique_numbers()

Loops = Callable[..., Loop]


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
    """Create a topic: partitions."""
    return lambda partitions: topic_on(legacy_kafka, f"loops-{next(_numbers)}", partitions)


@pytest.fixture
def topic(make_topic: Callable[..., Topic]) -> Topic:
    """A topic of three partitions."""
    return make_topic(3)


@pytest.fixture
def loop(legacy_kafka: KafkaBroker, group: Consumergroup) -> Iterator[Loops]:
    """Start a consumer whose loop runs in a thread, with a session of its own: topic, options of `Consumer`."""
    with ExitStack() as stack:

        def start(topic: Topic, *, session: float = LASTING, kafka: Any = (), topics: Any = (), **options: Any) -> Loop:
            registry = stack.enter_context(Registry.connect(legacy_kafka.zookeeper, session_timeout=session))
            settings = {"bootstrap.servers": legacy_kafka.address, **QUICK, **dict(kafka)}
            return stack.enter_context(
                Loop(registry.group(group.name), topics or topic.name, kafka=settings, **options)
            )

        yield start


@pytest.fixture
def brokers(legacy_kafka: KafkaBroker) -> Iterator[Brokers]:
    with Brokers.connect(legacy_kafka.address) as brokers:
        yield brokers


@pytest.fixture
def sides(group: Consumergroup, registry: Registry, brokers: Brokers) -> Sides:
    return Sides(group, registry, brokers)
