"""Both sides of a migration: a registry, and a broker with new topics for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.testing.unique import unique_numbers
from tests.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.plan_rows import PlanRow, ReportRow
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.kafka import Brokers
from zkgroups.migration.apply import apply_groups
from zkgroups.migration.rollback import rollback_groups
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.admin import migration_marks as marks

from .rows import PLAN, numbers, plan_of, states

_numbers = unique_numbers()

MakeTopic = Callable[..., str]
Join = Callable[[str, str], AbstractContextManager[Any]]
BOTH = pytest.mark.parametrize("broker", ["kafka_broker", "legacy_kafka"], indirect=True)


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
            assert eventually(lambda: consumer.poll(0.1) or consumer.assignment())
            yield consumer
        finally:
            consumer.close()

    return join


class Sides:
    """Both sides, and a topic with two partitions."""

    def __init__(self, registry: Registry, broker: KafkaBroker, brokers: Brokers, topic: str, stack: ExitStack) -> None:
        self.registry, self.broker, self.brokers, self.topic = registry, broker, brokers, topic
        self.first, self.second = (TopicPartition(topic, number) for number in range(2))
        self._stack = stack

    def target(self, group: str) -> str:
        """The name of a group on the brokers, which no other test uses."""
        return f"{group}-{self.topic}"

    def plan(self, *groups: str, offsets: Mapping[TopicPartition, int] | None = None, **options: Any) -> list[PlanRow]:
        """Plan groups with these offsets; without any, with one of 7."""
        for group in groups:
            self.registry.group(group).offsets.set_many(offsets or {self.first: 7})
        return plan_of(self.registry, self.brokers, {group: self.target(group) for group in groups}, **options)

    def apply(self, rows: list[PlanRow], **chosen: Any) -> list[ReportRow]:
        given = {"brokers": self.brokers, "registry": self.registry, "execute": True} | chosen
        return apply_groups(rows, **given)

    def rollback(self, rows: list[PlanRow], **chosen: Any) -> list[ReportRow]:
        given = {"brokers": self.brokers, "registry": self.registry, "execute": True} | chosen
        return rollback_groups(rows, **given)

    def numbers(self, group: str) -> dict[TopicPartition, int]:
        """The offsets of the target of a group."""
        return numbers(self.brokers, self.target(group))

    def states(self, *groups: str) -> dict[str, MarkState]:
        return states(self.registry, groups)

    def mark(self, group: str, state: MarkState = MarkState.MOVING, *, plan: str = PLAN, target: str = "") -> None:
        """Mark a group like a run of a plan."""
        marks.put(self.registry._context, {group: target or self.target(group)}, plan=plan, state=state)

    def register(self, group: str) -> None:
        """Register a member of another client, which ignores marks."""
        self.registry.client.create(f"/consumers/{group}/ids/scala-1", b"{}", ephemeral=True, makepath=True)

    def another(self) -> Registry:
        """Connect a second time."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.registry.client.hosts)
        return self._stack.enter_context(Registry.connect(f"{hosts}{self.registry.client.chroot}"))

    def meddling(self, **around: Callable[..., Any]) -> Brokers:
        """Brokers with some methods replaced by functions, which get the usual method and its arguments."""
        brokers = self._stack.enter_context(Brokers.connect(self.broker.address))
        for name, function in around.items():
            setattr(brokers, name, partial(function, getattr(brokers, name)))
        return brokers


@pytest.fixture
def sides(registry: Registry, broker: KafkaBroker, brokers: Brokers, make_topic: MakeTopic) -> Iterator[Sides]:
    with ExitStack() as stack:
        yield Sides(registry, broker, brokers, make_topic(), stack)
