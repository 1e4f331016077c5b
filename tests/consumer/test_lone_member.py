"""Members without a group: they work on all partitions, write nothing, and lose nothing with a session.

`test_topics.py` shows how they follow topics.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.simulation.world import World
from zkgroups import EventKind, LoneMember, Member, Registry, StartAt, TopicPartition
from zkgroups.exceptions import InvalidOptionError, NoGroupError, NotClaimedError, PastLogEndError

from .conftest import Connect, Running, plant_topic

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))

Alone = Callable[..., Running]


@pytest.fixture
def alone(connect: Connect) -> Iterator[Alone]:
    """Start members without a group, in the process `far`. They read the topics only after events."""
    with ExitStack() as stack:
        registry = connect("far", session_timeout=10.0)

        def alone(topics: Any = ("orders",), *, on: Registry = registry, **options: Any) -> Running:
            return stack.enter_context(Running(on, topics, make=LoneMember, **{"reconcile_every": 3600.0, **options}))

        yield alone


def test_lone_members_work_on_all_partitions_each_and_write_nothing(world: World, alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 2)
    zxid = {path: node.zxid for path, node in world.server.nodes.items()}
    a, b = alone().until_holding(P0, P1), alone().until_holding(P0, P1)
    a.generation.mark(P0, 5)
    assert dict(a.generation.partitions) == dict.fromkeys([P0, P1], StartAt.EARLIEST)
    assert set(a.generation.streams.values()) == {0}
    assert a.member.id != b.member.id
    assert len(a.generations) == 1
    a.close()
    assert {path: node.zxid for path, node in world.server.nodes.items()} == zxid


def test_a_read_only_registry_is_enough(alone: Alone, client: Any, connect: Connect) -> None:
    plant_topic(client, "orders", 2)
    a = alone(on=connect(read_only=True)).until_holding(P0, P1)
    plant_topic(client, "orders", 3)
    a.until_holding(P0, P1, P2)


# Offsets


def test_a_lone_member_cannot_commit(alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 1)
    generation = alone().until_holding(P0).generation
    assert generation.group == ""
    generation.mark(P0, 5)
    for offsets in ({P0: 5}, None):
        with pytest.raises(NoGroupError, match="no group to commit offsets to"):
            generation.commit(offsets)
    with pytest.raises(NotClaimedError):
        generation.commit({P1: 5})
    assert generation.active


def test_the_next_generation_begins_at_the_marks_of_the_previous_one(alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 2)
    a = alone(start_at="latest").until_holding(P0, P1)
    a.generation.mark(P0, 5)
    plant_topic(client, "orders", 3)
    a.until_holding(P0, P1, P2)
    assert dict(a.generation.partitions) == {P0: 5, P1: "latest", P2: "latest"}
    assert (a.member.stats.commits, a.told(EventKind.COMMITTED), a.told(EventKind.FAILED)) == (0, [], [])


def test_out_of_range_also_moves_marks(alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 1)
    a = alone(out_of_range="earliest").until_holding(P0)
    a.generation.mark(P0, 50)
    plant_topic(client, "orders", 2)
    a.until_holding(P0, P1)
    with pytest.raises(PastLogEndError):
        a.generation.start_offset(P0, log_start=2, log_end=20)
    time.sleep(2)
    assert a.generation.start_offset(P0, log_start=2, log_end=20) == 2
    a.generation.mark(P0, 3)
    plant_topic(client, "orders", 3)
    a.until_holding(P0, P1, P2)
    assert dict(a.generation.partitions) == {P0: 3, P1: "earliest", P2: "earliest"}


# The connection


@pytest.mark.parametrize("fault", ["expire", "cut"])
def test_an_expired_session_and_an_outage_interrupt_nothing_and_changes_are_noticed_afterwards(
    world: World, alone: Alone, connect: Connect, client: Any, fault: str
) -> None:
    plant_topic(client, "orders", 1)
    registry = connect("away", session_timeout=10.0)
    a = alone(on=registry).until_holding(P0)
    if fault == "expire":
        world.expire(registry)
    else:
        world.cut("away")
        time.sleep(100)
        assert a.generation.active
        assert a.member.assignment == {P0}
    plant_topic(client, "orders", 2)
    world.heal("away")
    a.until_holding(P0, P1)
    assert [dict(generation.partitions).keys() for generation in a.generations] == [{P0}, {P0, P1}]
    assert a.told(EventKind.LOST) == a.told(EventKind.REVOKED) == []


# Parts that it shares with members of groups


def test_its_public_api_is_that_of_a_member_without_the_parts_for_groups() -> None:
    public = {name for name in dir(Member) if not name.startswith("_")}
    assert {name for name in dir(LoneMember) if not name.startswith("_")} == public
    options = set(inspect.signature(LoneMember).parameters) - {"registry"}
    assert options < set(inspect.signature(Member).parameters)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"registry": None}, "registry is not given, but it must be a Registry"),
        ({"topics": ()}, "topics is {}, but a member needs at least one topic or a pattern"),
        ({"pattern": "o.*"}, "pattern is 'o.*', but topics are given, too"),
        ({"topics": (), "pattern": "("}, "topic pattern is"),
        ({"release_timeout": 0}, "release_timeout is 0"),
        ({"reconcile_every": -1}, "reconcile_every is -1"),
        ({"start_at": "begin"}, "start_at is 'begin'"),
        ({"partitions": 3}, "partitions is 3, but it must be a function"),
    ],
)
def test_an_option_out_of_bounds_is_refused_at_once(registry: Registry, options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidOptionError, match=told):
        LoneMember(**{"registry": registry, "topics": ["orders"], **options})
