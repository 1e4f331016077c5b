"""Failure 21: groups with live consumers of any kind are not changed, even if the consumers start after the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.consumer.scala import ScalaConsumer, await_members
from tests.testing.unique import unique_numbers
from tests.testing.waiting import eventually
from zkgroups import Member, Registry, TopicPartition
from zkgroups.core.migration.obstacles import texts
from zkgroups.core.migration.plan_rows import Outcome
from zkgroups.exceptions import GroupMigratedError
from zkgroups.testing import KafkaBroker

from .conftest import Join
from .moving import Move

_numbers = unique_numbers()

Live = Callable[[Move, str], AbstractContextManager[str]]
"""Joins the group of a migration and reads a topic. Yields the known part of the member's name."""


@pytest.fixture
def broker(legacy_kafka: KafkaBroker) -> KafkaBroker:
    """Groups stay on their cluster, so that members of all kinds can read its topics."""
    return legacy_kafka


@pytest.fixture
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield registry


def _group_of(broker: KafkaBroker, registry: Registry) -> tuple[Move, str]:
    """A group with offsets, and their topic."""
    topic = group = f"real-member-{next(_numbers)}"
    broker.create_topic(topic, 2)
    registry.group(group).offsets.set_many({TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0})
    return Move(registry, broker.address, group), topic


@contextmanager
def _scala(broker: KafkaBroker, registry: Registry, move: Move, topic: str) -> Iterator[str]:
    with ScalaConsumer(broker, move.group, "anna", {topic: 1}, config={"auto.commit.enable": "false"}) as scala:
        await_members(registry.group(move.group), [scala.id])
        yield scala.id


@contextmanager
def _ours(registry: Registry, move: Move, topic: str) -> Iterator[str]:
    with Member(registry.group(move.group), [topic]) as member:
        member.start()
        assert eventually(lambda: registry.group(move.group).instances())
        yield registry.group(move.group).instances()[0].id


@pytest.fixture(params=["Scala", "ours", "native"])
def live(request: pytest.FixtureRequest, broker: KafkaBroker, registry: Registry, join: Join) -> Live:
    @contextmanager
    def native(move: Move, topic: str) -> Iterator[str]:
        with join(move.group, topic):
            yield "anna"

    kinds: dict[str, Live] = {
        "Scala": lambda move, topic: _scala(broker, registry, move, topic),
        "ours": lambda move, topic: _ours(registry, move, topic),
        "native": native,
    }
    return kinds[request.param]


def test_a_group_with_an_active_member_is_refused_also_by_an_earlier_plan(
    broker: KafkaBroker, registry: Registry, live: Live
) -> None:
    before, topic = _group_of(broker, registry)
    after = Move(registry, broker.address, before.group)
    before.plan()
    assert before.obstacles == ()

    with live(before, topic) as name:
        after.plan()
        assert name in texts(after.obstacles)
        for move in (before, after):
            assert move.apply() == {Outcome.LEFT: 2}
            assert all(name in row.detail for row in move.reports)
        assert move.on_target() == {}
        assert move.mark() is None


def test_a_zkgroups_member_cannot_join_a_moved_group_until_it_is_rolled_back(
    broker: KafkaBroker, registry: Registry
) -> None:
    move, topic = _group_of(broker, registry)
    move.plan()
    assert move.apply() == {Outcome.WRITTEN: 2}

    with pytest.raises(GroupMigratedError), Member(registry.group(move.group), [topic]) as member:
        next(member.generations())

    assert move.roll_back() == {Outcome.WRITTEN: 2}
    with _ours(registry, move, topic):
        assert move.mark() is None
