"""Both brokers, with new topics for each test, and a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.testing.unique import unique_numbers
from tests.testing.waiting import eventually
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker

_numbers = unique_numbers()

MakeTopic = Callable[..., str]
Join = Callable[[str, str], AbstractContextManager[Any]]


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> KafkaBroker:
    """The broker that groups are moved to: the current release, or the parameter of the test."""
    found: KafkaBroker = request.getfixturevalue(getattr(request, "param", "kafka_broker"))
    return found


@pytest.fixture
def brokers(broker: KafkaBroker) -> Iterator[Brokers]:
    with Brokers.connect(broker.address) as found:
        yield found


@pytest.fixture
def make_topic(broker: KafkaBroker) -> MakeTopic:
    """Create a topic for one test."""

    def make(partitions: int = 2) -> str:
        name = f"moved-{next(_numbers)}"
        broker.create_topic(name, partitions)
        return name

    return make


@pytest.fixture
def join(broker: KafkaBroker) -> Join:
    """Join a group on the brokers for the duration of the block."""

    @contextmanager
    def join(group: str, topic: str) -> Iterator[Any]:
        config = {"bootstrap.servers": broker.address, "group.id": group, "client.id": "anna", "log_level": 0}
        consumer = Consumer({**config, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])

        try:
            assert eventually(lambda: consumer.poll(0.1) or consumer.assignment(), timeout=60)
            yield consumer
        finally:
            consumer.close()

    return join
