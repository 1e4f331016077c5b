"""Fixtures: a coordinator with its groups in ZooKeeper, and gateways in front of both brokers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from zkgroups import Consumergroup, Registry
from zkgroups.testing import KafkaBroker

from .running import RunningGateway, running
from .served import Served

_numbers = itertools.count()

Serve = Callable[..., Served]


@pytest.fixture
def group(registry: Registry) -> Consumergroup:
    return registry.group("billing")


@pytest.fixture
def serve(registry: Registry) -> Iterator[Serve]:
    """Start a coordinator: a registry of its own, and the options of the storage."""
    with ExitStack() as stack:

        def start(own: Registry | None = None, **options: Any) -> Served:
            return stack.enter_context(Served(registry if own is None else own, **options))

        yield start


HERE = "here-.*"
"""The groups that the gateways of these fixtures answer for. All others stay with the broker."""


class Front(NamedTuple):
    """A broker and a gateway in front of it."""

    broker: KafkaBroker
    gateway: RunningGateway


@pytest.fixture(scope="module", params=["kafka_broker", "legacy_kafka"])
def front(request: pytest.FixtureRequest) -> Iterator[Front]:
    """A gateway in front of each of both brokers."""
    broker: KafkaBroker = request.getfixturevalue(request.param)
    with running(broker.address, pattern=HERE) as gateway:
        yield Front(broker, gateway)


@pytest.fixture
def make_topic(front: Front) -> Callable[..., str]:
    """Create a topic for one test, with a number of messages in each partition."""

    def make(partitions: int = 1, messages: int = 0) -> str:
        name = f"gateway-{next(_numbers)}"
        front.broker.create_topic(name, partitions)
        for partition in range(partitions if messages else 0):
            front.broker.write(name, partition, messages)
        return name

    return make
