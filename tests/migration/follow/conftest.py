"""Fixtures: groups that are followed in a thread, on either broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker

from ..conftest import MakeTopic
from .following import Meddling, Run, Running


@pytest.fixture
def run(broker: KafkaBroker, registry: Registry) -> Iterator[Run]:
    """Follow in the background, with separate connections to the brokers."""
    started: list[Running] = []

    def run(rows: list[PlanRow], *, on: Registry = registry, kind: Any = Brokers, **options: Any) -> Running:
        started.append(Running(rows, kind.connect(broker.address), on, **options))
        return started[-1]

    yield run
    for each in started:
        each.close()


@pytest.fixture
def topic(broker: KafkaBroker, make_topic: MakeTopic) -> list[TopicPartition]:
    """A topic of three partitions, with a hundred messages in each."""
    name = make_topic(3)
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for number in range(300):
        producer.produce(name, b"message", partition=number % 3)
    assert producer.flush(30) == 0
    return [TopicPartition(name, number) for number in range(3)]


@pytest.fixture
def meddling() -> Iterator[type[Meddling]]:
    yield Meddling
    Meddling.before = Meddling.after = None
