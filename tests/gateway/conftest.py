"""Fixtures: a coordinator with its groups in ZooKeeper, and gateways in front of both brokers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from zkgroups import Consumergroup, Registry
from zkgroups.testing import KafkaBroker, Server, TcpProxy

from .gateway_process import GatewayProcess
from .kafka_member import KafkaMember
from .old_members import create_topic
from .running import RunningGateway, reserved, running
from .served import Served

_numbers = itertools.count()

Serve = Callable[..., Served]
Join = Callable[..., KafkaMember]
Connect = Callable[..., Registry]


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


@pytest.fixture
def connect(zookeeper_hosts: str) -> Iterator[Connect]:
    """Connect more registries in the chroot of this test. The options are those of `Registry.connect`."""
    with ExitStack() as stack:
        yield lambda hosts=zookeeper_hosts, **options: stack.enter_context(Registry.connect(hosts, **options))


@pytest.fixture
def proxy(zookeeper: Server) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy(zookeeper.address) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: TcpProxy, zookeeper_hosts: str, connect: Connect) -> Registry:
    """A registry whose connection goes through the proxy."""
    return connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2])


@pytest.fixture
def orders(registry: Registry) -> None:
    """The topic `orders`, with six partitions."""
    create_topic(registry.client, "orders", 6)


@pytest.fixture
def served(serve: Serve, orders: None) -> Served:
    """A coordinator whose members may be asked to rebalance at any time."""
    return serve()


@pytest.fixture
def join(served: Served) -> Iterator[Join]:
    """Start a member of the group `billing`: topics, by default `orders`, and options."""
    with ExitStack() as stack:
        yield lambda *topics, **options: stack.enter_context(
            KafkaMember(options.pop("served", served), "billing", *(topics or ("orders",)), **options)
        )


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


@pytest.fixture(scope="module")
def pair(zkgroups_legacy_kafka: KafkaBroker) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    with ExitStack() as stack:
        broker = zkgroups_legacy_kafka
        first, second = (GatewayProcess(broker, stack.enter_context(reserved(2)), stack) for _ in range(2))
        yield first, second


@pytest.fixture
def gateways(pair: tuple[GatewayProcess, GatewayProcess]) -> tuple[GatewayProcess, GatewayProcess]:
    """Two gateways, started at the same time. Those that still run from the last test are used again."""
    stopped = [each for each in pair if not each.runs]
    for each in stopped:
        each.start()
    for each in stopped:
        each.wait_ready()
    return pair
