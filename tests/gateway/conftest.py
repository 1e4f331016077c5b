"""Fixtures: in simulated time, a coordinator with its groups in ZooKeeper; and real gateways in front of real brokers.

The registry of tests here is a simulated one, unless a file has its own. All threads of a coordinator belong to the
process of its registry, so that a test can cut it off, stall it, or let its session expire (`tests/simulation`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest

from tests.simulation.world import World
from tests.waiting import eventually
from zkgroups import Consumergroup, Registry
from zkgroups.exceptions import OutcomeUnknownError
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.session.session import Session

from .kafka_member import KafkaMember
from .old_members import ALL, create_topic
from .running import GatewayProcess, RunningGateway, reserved, running
from .served import Script, Served

_numbers = itertools.count()

Serve = Callable[..., Served]
Join = Callable[..., KafkaMember]
Connect = Callable[..., Registry]
LoseReplies = Callable[..., AbstractContextManager[list[Any]]]


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=1).running() as world:
        yield world


@pytest.fixture
def connect(world: World) -> Connect:
    """Connect more registries, each in a process of its own. The options are those of `Registry.connect`."""
    return world.connect


@pytest.fixture
def registry(connect: Connect) -> Registry:
    """The registry of an administrator."""
    return connect("administrator", session_timeout=300.0)


@pytest.fixture
def group(registry: Registry) -> Consumergroup:
    return registry.group("billing")


@pytest.fixture
def orders(registry: Registry) -> None:
    """The topic `orders`, with six partitions."""
    create_topic(registry.client, "orders", 6)


@pytest.fixture
def serve(world: World) -> Serve:
    """Start a coordinator: with this registry or one of its own, and the options of the storage."""

    def start(own: Registry | None = None, **options: Any) -> Served:
        own = world.connect() if own is None else own
        with world.machine.process(own.process):  # type: ignore[attr-defined]
            return Served(own, **options).__enter__()

    return start


@pytest.fixture
def served(serve: Serve, orders: None) -> Served:
    """A coordinator whose members may be asked to rebalance at any time."""
    return serve()


@pytest.fixture
def join(served: Served) -> Join:
    """Start a member of the group `billing`: topics, by default `orders`, and options."""
    return lambda *topics, **options: KafkaMember(
        options.pop("served", served), "billing", *(topics or ("orders",)), **options
    ).__enter__()


@pytest.fixture
def alone(join: Join) -> Join:
    """Start a member, and wait until it has all partitions."""

    def start(*topics: str, **options: Any) -> KafkaMember:
        member = join(*topics, **options)
        assert eventually(lambda: member.assigned == ALL)
        return member

    return start


@pytest.fixture
def script(connect: Connect, orders: None) -> Script:
    return Script(connect())


@pytest.fixture
def lose_replies(monkeypatch: pytest.MonkeyPatch) -> LoseReplies:
    """Carry out some transactions without a reply, until the end of the block. Yields those that were lost."""

    @contextmanager
    def lose(is_lost: Callable[[Any], bool] = lambda _operations: True) -> Iterator[list[Any]]:
        transact, lost = Session.transact, list[Any]()

        def transact_without_reply(self: Session, operations: Any, **options: Any) -> Any:
            found = transact(self, operations, **options)
            if is_lost(operations):
                lost.append(operations)
                raise OutcomeUnknownError("the reply was lost")
            return found

        with monkeypatch.context() as patched:
            patched.setattr(Session, "transact", transact_without_reply)
            yield lost

    return lose


# Real gateways and brokers

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
