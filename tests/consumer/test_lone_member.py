"""Members without a group: they work on all partitions, write nothing, and lose nothing with a session."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from zkgroups import EventKind, Generation, InstanceState, LoneMember, Member, Registry, StartAt, TopicPartition
from zkgroups.core.offsets import start_offset
from zkgroups.exceptions import (
    InvalidOptionError,
    MemberClosedError,
    NoGroupError,
    NotClaimedError,
    PastLogEndError,
)
from zkgroups.testing import TcpProxy, expire_session
from zkgroups.testing.proxy.frames import Op

from .conftest import LONGEST, Running, ats, plant_topic

pytestmark = pytest.mark.zookeeper

NEVER = 3600.0
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
READS = {Op.EXISTS, Op.GET_DATA, Op.GET_CHILDREN, Op.GET_CHILDREN2, Op.MULTI_READ, Op.SYNC}

Alone = Callable[..., Running]


@pytest.fixture
def client(registry: Registry) -> Any:
    return registry.client


@pytest.fixture
def alone(registry: Registry) -> Iterator[Alone]:
    """Start members without a group in the background. They read the topics only after events."""
    with ExitStack() as stack:

        def alone(topics: Any = ("orders",), *, on: Registry = registry, **options: Any) -> Running:
            return stack.enter_context(Running(on, topics, make=LoneMember, **{"reconcile_every": NEVER, **options}))

        yield alone


def everything(client: Any, path: str = "/") -> dict[str, tuple[bytes, int]]:
    """All nodes, each with its number of writes."""
    data, stat = client.get(path)
    found = {path: (data, stat.version)}
    for name in client.get_children(path):
        found |= everything(client, f"{path.rstrip('/')}/{name}")
    return found


# Partitions


def test_a_lone_member_works_on_all_partitions_and_writes_nothing(
    alone: Alone, client: Any, zookeeper: Any, zookeeper_hosts: str, connect: Callable[..., Registry]
) -> None:
    plant_topic(client, "orders", 2)
    plant_topic(client, "refunds", 1)
    before = everything(client)
    with TcpProxy(zookeeper.address) as proxy:
        registry = connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}")
        a = alone(["orders", "refunds"], on=registry).until_holding(P0, P1, ats("refunds", 0))
        generation = a.generations[-1]
        generation.mark(P0, 5)
        plant_topic(client, "refunds", 2)
        a.until_holding(P0, P1, ats("refunds", 0, 1))
        a.close()
        assert set(proxy.requests_by_type) <= READS
    assert dict(generation.partitions) == dict.fromkeys([P0, P1, *ats("refunds", 0)], StartAt.EARLIEST)
    assert set(generation.streams.values()) == {0}
    assert everything(client).keys() == before.keys()


def test_a_second_lone_member_works_on_all_partitions_too(alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 2)
    a, b = alone().until_holding(P0, P1), alone().until_holding(P0, P1)
    assert a.member.id != b.member.id
    assert a.generations[-1].active
    assert len(a.generations) == 1


def test_a_read_only_registry_is_enough_for_a_lone_member(
    alone: Alone, client: Any, connect: Callable[..., Registry]
) -> None:
    plant_topic(client, "orders", 2)
    a = alone(on=connect(read_only=True)).until_holding(P0, P1)
    plant_topic(client, "orders", 3)
    a.until_holding(P0, P1, P2)


def test_added_and_removed_topics_and_partitions_cause_another_generation(alone: Alone, client: Any) -> None:
    a = alone((), pattern="orders.*").until_holding()
    assert a.member.state is InstanceState.STABLE
    plant_topic(client, "orders", 1)
    a.until_holding(P0)
    plant_topic(client, "orders", 2)
    plant_topic(client, "orders-eu", 1)
    plant_topic(client, "refunds", 1)
    a.until_holding(P0, P1, ats("orders-eu", 0))
    client.delete("/brokers/topics/orders-eu")
    a.until_holding(P0, P1)
    numbers = [generation.number for generation in a.generations]
    assert numbers == sorted(set(numbers))


def test_a_pattern_excludes_internal_topics_unless_requested(alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 1)
    plant_topic(client, "__transaction_state", 1)
    alone((), pattern=".*").until_holding(P0)
    alone((), pattern=".*", include_internal=True).until_holding(P0, ats("__transaction_state", 0))


def test_with_a_partitions_function_nothing_is_read_from_zookeeper(alone: Alone, client: Any) -> None:
    count = 1
    a = alone(partitions=lambda _topic: range(count), reconcile_every=0.05).until_holding(P0)
    count = 2
    a.until_holding(P0, P1)
    assert list(everything(client)) == ["/"]


def test_an_unreadable_topic_is_reported_and_does_not_stop_others(alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 1)
    client.create("/brokers/topics/refunds", b"{")
    a = alone(["orders", "refunds"]).until_holding(P0)
    [told] = [event for event in a.events if event.kind is EventKind.MALFORMED]
    assert told.detail.startswith("/brokers/topics/refunds: ")
    plant_topic(client, "refunds", 1)
    a.until_holding(P0, ats("refunds", 0))


# Starting offsets


def test_a_lone_member_cannot_commit(alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 1)
    [generation] = alone().until_holding(P0).generations
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
    a.generations[0].mark(P0, 5)
    plant_topic(client, "orders", 3)
    a.until_holding(P0, P1, P2)
    assert dict(a.generations[-1].partitions) == {P0: 5, P1: "latest", P2: "latest"}
    assert a.member.stats.commits == 0
    assert not {event.kind for event in a.events} & {EventKind.COMMITTED, EventKind.FAILED}


def test_out_of_range_also_moves_marks_of_a_lone_member(
    alone: Alone, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_offset, "CONFIRM_AFTER", 0.0)
    plant_topic(client, "orders", 1)
    a = alone(out_of_range="earliest").until_holding(P0)
    a.generations[0].mark(P0, 50)
    plant_topic(client, "orders", 2)
    a.until_holding(P0, P1)
    with pytest.raises(PastLogEndError):
        a.generations[-1].start_offset(P0, log_start=2, log_end=20)
    assert a.generations[-1].start_offset(P0, log_start=2, log_end=20) == 2
    a.generations[-1].mark(P0, 3)
    plant_topic(client, "orders", 3)
    a.until_holding(P0, P1, P2)
    assert dict(a.generations[-1].partitions) == {P0: 3, P1: "earliest", P2: "earliest"}


def test_a_failed_worker_is_reported_and_the_next_generation_continues_at_its_marks(alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 1)
    trouble = [RuntimeError("no disk")]

    def work(generation: Generation) -> None:
        if trouble:
            generation.mark(P0, 7)
            raise trouble.pop()
        generation.wait()

    a = alone(work=work)
    a.until(lambda: len(a.generations) == 2, "another generation")
    assert str(a.until_error(RuntimeError)) == "no disk"
    assert len(a.errors) == 1
    assert dict(a.generations[-1].partitions) == {P0: 7}


def test_a_topic_recreated_with_more_partitions_is_worked_on_as_a_whole(alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 2)
    a = alone().until_holding(P0, P1)
    transaction = client.transaction()
    transaction.delete("/brokers/topics/orders")
    transaction.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1]}}')
    transaction.commit()
    a.until_holding(P0, P1, P2)
    assert len(a.generations) == 2


def test_a_recreated_topic_does_not_begin_at_the_marks_of_the_old_one(alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 2)
    a = alone().until_holding(P0, P1)
    a.generations[0].mark(P0, 1000)
    transaction = client.transaction()
    transaction.delete("/brokers/topics/orders")
    transaction.create("/brokers/topics/orders", b'{"partitions":{"0":[1]}}')
    transaction.commit()
    a.until_holding(P0)
    assert dict(a.generations[-1].partitions) == {P0: "earliest"}


# The connection


def test_an_expired_session_interrupts_nothing_and_watches_are_set_again(
    alone: Alone, client: Any, connect: Callable[..., Registry]
) -> None:
    plant_topic(client, "orders", 1)
    registry = connect()
    a = alone(on=registry).until_holding(P0)
    looks = a.member.stats.looks
    expire_session(registry.client)
    a.until(lambda: a.member.stats.looks > looks, "a look in the new session")
    plant_topic(client, "orders", 2)
    a.until_holding(P0, P1)
    assert [dict(generation.partitions).keys() for generation in a.generations] == [{P0}, {P0, P1}]
    assert not {event.kind for event in a.events} & {EventKind.LOST, EventKind.REVOKED}


def test_work_continues_while_disconnected_and_changes_are_noticed_after_the_reconnect(
    alone: Alone, client: Any, zookeeper: Any, zookeeper_hosts: str, connect: Callable[..., Registry]
) -> None:
    plant_topic(client, "orders", 1)
    with TcpProxy(zookeeper.address) as proxy:
        hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        registry = connect(hosts, session_timeout=6.0)
        a = alone(on=registry).until_holding(P0)
        [generation] = a.generations
        session = registry.session_id
        assert session is not None
        proxy.refuse()
        proxy.cut()
        a.until(lambda: not registry._context.session.alive(session), "the end of what the session lasts")
        assert generation.active
        assert a.member.assignment == {P0}
        plant_topic(client, "orders", 2)
        proxy.accept()
        a.until_holding(P0, P1)
        a.close()
    assert generation.wait(0)


def test_a_change_without_a_watch_event_is_noticed_within_the_reconcile_period(
    alone: Alone, client: Any, zookeeper: Any, zookeeper_hosts: str, connect: Callable[..., Registry]
) -> None:
    plant_topic(client, "orders", 1)
    with TcpProxy(zookeeper.address) as proxy:
        proxy.swallow_watch_events()
        registry = connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}")
        a = alone(on=registry, reconcile_every=0.2).until_holding(P0)
        plant_topic(client, "orders", 2)
        a.until_holding(P0, P1)
        a.close()


# Parts that it shares with members of groups


def test_its_public_api_is_that_of_a_member_without_the_parts_for_groups() -> None:
    public = {name for name in dir(Member) if not name.startswith("_")}
    assert {name for name in dir(LoneMember) if not name.startswith("_")} == public
    options = set(inspect.signature(LoneMember).parameters) - {"registry"}
    assert options < set(inspect.signature(Member).parameters)


def test_callbacks_report_added_and_removed_partitions(alone: Alone, client: Any) -> None:
    plant_topic(client, "orders", 2)
    told: list[tuple[str, set[TopicPartition]]] = []
    a = alone(on_assigned=lambda at: told.append(("+", set(at))), on_revoked=lambda at: told.append(("-", set(at))))
    a.until_holding(P0, P1)
    plant_topic(client, "orders", 3)
    a.until_holding(P0, P1, P2)
    plant_topic(client, "orders", 1)
    a.until_holding(P0)
    a.close()
    assert told == [("+", {P0, P1}), ("+", {P2}), ("-", {P1, P2}), ("-", {P0})]


def test_closing_it_waits_for_its_workers_and_ends_its_generations(registry: Registry, client: Any) -> None:
    plant_topic(client, "orders", 1)
    begun, ended = threading.Event(), threading.Event()

    def work(generation: Generation) -> None:
        begun.set()
        generation.wait()
        ended.set()

    with LoneMember(registry, ["orders"]) as member:
        generation = member.next_generation(LONGEST)
        assert generation is not None
        assert "no group, Stable, 1 partitions" in repr(member)
        generation.start(work)
        assert begun.wait(LONGEST)
    assert ended.is_set()
    assert not generation.active
    with pytest.raises(MemberClosedError, match=r"^member '.*' is closed: create a new one$"):
        member.next_generation()
    member.close()


def test_stop_ends_a_lone_member_within_its_timeout(registry: Registry, client: Any) -> None:
    member = LoneMember(registry, ["orders"])
    assert member.next_generation(0.05) is None
    member.cancel()
    assert member.next_generation(LONGEST) is None
    member.stop()
    with pytest.raises(MemberClosedError):
        member.next_generation(LONGEST)


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


def test_the_release_timeout_of_a_lone_member_has_no_upper_bound(registry: Registry) -> None:
    LoneMember(registry, ["orders"], release_timeout=600.0)
