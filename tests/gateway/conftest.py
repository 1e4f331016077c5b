"""Gateways in front of both brokers, which the tests share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from zkgroups.testing import KafkaBroker

from .running import RunningGateway, running

_numbers = itertools.count()

HERE = "here-.*"
"""The groups that the gateways of these fixtures answer for. All others stay with the broker."""


class Served(NamedTuple):
    """A broker and a gateway in front of it."""

    broker: KafkaBroker
    gateway: RunningGateway


@pytest.fixture(scope="module", params=["kafka_broker", "legacy_kafka"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A gateway in front of each of both brokers."""
    broker: KafkaBroker = request.getfixturevalue(request.param)
    with running(broker.address, pattern=HERE) as gateway:
        yield Served(broker, gateway)


@pytest.fixture
def make_topic(served: Served) -> Callable[..., str]:
    """Create a topic for one test, with a number of messages in each partition."""

    def make(partitions: int = 1, messages: int = 0) -> str:
        name = f"gateway-{next(_numbers)}"
        served.broker.create_topic(name, partitions)
        for partition in range(partitions if messages else 0):
            served.broker.write(name, partition, messages)
        return name

    return make
