"""Members, with and without a group, and the topics they subscribe to: topics are created, extended, deleted and
recreated. Failures 12 and 13.

Unless stated otherwise, `reconcile_every` is an hour: changes are noticed by watch events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.simulation.world import World
from zkgroups import (
    Consumergroup,
    EventKind,
    Generation,
    InstanceState,
    LoneMember,
    Pattern,
    Registration,
    Registry,
    TopicPartition,
)
from zkgroups.core.znodes.paths import GroupPaths
from zkgroups.exceptions import InvalidNameError, NotClaimedError
from zkgroups.zookeeper.reading.observers import GroupObserver
from zkgroups.zookeeper.requests.watches import WatchDispatcher

from .conftest import Connect, Partitions, Run, Running, ats, committed, plant_topic

NEVER = 3600.0
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))


def delete_topic(client: Any, name: str) -> None:
    client.delete(f"/brokers/topics/{name}", recursive=True)


def replace_topic(client: Any, name: str, data: bytes) -> None:
    """Delete a topic and recreate it, too quickly for anyone to see it missing."""
    transaction = client.transaction()
    transaction.delete(f"/brokers/topics/{name}")
    transaction.create(f"/brokers/topics/{name}", data)
    assert not [result for result in transaction.commit() if isinstance(result, Exception)]


@pytest.fixture(params=["member", "lone member"])
def any_member(request: pytest.FixtureRequest, connect: Connect) -> Iterator[Callable[..., Running]]:
    """Start the only member of a group, or one without a group, in the process `far`."""
    with ExitStack() as stack:

        def start(topics: Any = ("orders",), *, on: Registry | None = None, **options: Any) -> Running:
            registry = on or connect("far", session_timeout=10.0)
            lone = request.param == "lone member"
            place, make = (registry, {"make": LoneMember}) if lone else (registry.group("billing"), {})
            return stack.enter_context(Running(place, topics, **{"reconcile_every": NEVER, **make, **options}))

        yield start


Start = Callable[..., Running]


# Topics and patterns


def test_added_and_removed_topics_and_partitions_are_followed(any_member: Start, client: Any) -> None:
    a = any_member((), pattern="orders.*").until_holding()
    assert (a.member.state, a.generations) == (InstanceState.STABLE, [])
    plant_topic(client, "orders", 0)
    plant_topic(client, "orders", 1)
    a.until_holding(P0)
    plant_topic(client, "orders", 2)
    plant_topic(client, "orders-eu", 1)
    plant_topic(client, "refunds", 1)
    a.until_holding(P0, P1, ats("orders-eu", 0))
    delete_topic(client, "orders-eu")
    a.until_holding(P0, P1)
    numbers = [generation.number for generation in a.generations]
    assert numbers == sorted(numbers)
    looks, generations = a.member.stats.looks, len(a.generations)
    plant_topic(client, "returns", 1)  # matches no pattern
    a.until(lambda: a.member.stats.looks > looks, "a look")
    a.until_holding(P0, P1)
    assert len(a.generations) == generations


@pytest.mark.parametrize("subscribed", ["name", "pattern"])
@pytest.mark.parametrize("kafka_has_been_here", [True, False])
def test_a_missing_topic_is_reported_once_and_has_no_partitions_until_it_is_created(
    any_member: Start, client: Any, kafka_has_been_here: bool, subscribed: str, caplog: pytest.LogCaptureFixture
) -> None:
    if kafka_has_been_here:
        client.ensure_path("/brokers/topics")
    a = any_member(["absent"]) if subscribed == "name" else any_member((), pattern="absent.*")
    a.until_holding()
    plant_topic(client, "refunds", 1)
    time.sleep(10)
    [event] = a.told(EventKind.MISSING)
    what = "absent" if subscribed == "name" else "topic that matches absent.*"
    assert event.detail.startswith(f"{what} not found in /brokers/topics; ")
    assert caplog.text.count("is the chroot right?") == 1
    plant_topic(client, "absent", 2)
    a.until_holding(ats("absent", 0, 1))


def test_a_pattern_excludes_internal_topics_unless_requested(
    any_member: Start, client: Any, run: Run, registry: Registry
) -> None:
    internal = ats("__consumer_offsets", 0)
    plant_topic(client, "orders", 1)
    plant_topic(client, "__consumer_offsets", 1)
    any_member((), pattern=".*").until_holding(P0)
    audit = {"on": registry.group("audit"), "include_internal": True}
    run((), pattern=".*", **audit).until_holding(P0, internal)
    run(["__consumer_offsets"], on=registry.group("named")).until_holding(internal)


def test_an_unreadable_topic_is_reported_and_does_not_stop_others(any_member: Start, client: Any) -> None:
    plant_topic(client, "orders", 1)
    client.create("/brokers/topics/refunds", b"{")
    a = any_member(["orders", "refunds"]).until_holding(P0)
    [told] = a.told(EventKind.MALFORMED)
    assert told.detail.startswith("/brokers/topics/refunds: ")
    plant_topic(client, "refunds", 1)
    a.until_holding(P0, ats("refunds", 0))


def test_partitions_that_are_added_are_worked_on_without_a_restart(run: Run, client: Any) -> None:
    plant_topic(client, "orders", 2)
    a, b = run(id="a", reconcile_every=NEVER), run(id="b", reconcile_every=NEVER)
    a.until_holding(P0)
    b.until_holding(P1)
    plant_topic(client, "orders", 5)
    a.until_holding(ats("orders", 0, 1, 2))
    b.until_holding(ats("orders", 3, 4))


def test_a_member_is_not_interrupted_by_changes_of_a_topic_that_it_has_no_partition_of(run: Run, client: Any) -> None:
    plant_topic(client, "orders", 2)
    a = run(["orders"], id="a", reconcile_every=NEVER).until_holding(P0, P1)
    b = run({"refunds": 1}, id="b", reconcile_every=NEVER).until_holding()
    plant_topic(client, "refunds", 3)
    b.until_holding(ats("refunds", 0, 1, 2))
    delete_topic(client, "refunds")
    b.until_holding()
    assert len(a.generations) == 1
    assert a.generation.active


# From a function


class Numbers:
    """A function of the user that returns the partitions of a topic."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.error: Exception | None = None

    def __call__(self, _topic: str) -> Iterator[int]:
        if (error := self.error) is not None:  # read once: the test resets it meanwhile
            raise error
        return iter(range(self.count))


def test_a_partitions_function_is_called_with_each_look_and_broker_nodes_are_not_needed(
    any_member: Start, client: Any
) -> None:
    numbers = Numbers(1)
    a = any_member(partitions=numbers, reconcile_every=5.0).until_holding(P0)
    numbers.count = 3
    a.until_holding(P0, P1, P2)
    numbers.count = 2
    a.until_holding(P0, P1)
    assert not client.exists("/brokers")


def test_a_failing_partitions_function_changes_nothing_and_is_called_again(any_member: Start) -> None:
    numbers = Numbers(2)
    a = any_member(partitions=numbers, reconcile_every=5.0).until_holding(P0, P1)
    numbers.error = LookupError("no broker answers")
    assert a.until_told(EventKind.FAILED).detail == "no broker answers"
    assert a.member.assignment == {P0, P1}
    assert a.generation.active
    numbers.error, numbers.count = None, 3
    a.until_holding(P0, P1, P2)  # the error is over, so it is not raised


def test_an_invalid_result_of_the_partitions_function_is_an_error(any_member: Start) -> None:
    any_member(partitions=lambda _topic: [-1]).until_error(InvalidNameError)


# Missed changes


def test_a_change_without_a_watch_event_is_noticed_within_the_reconcile_period(
    world: World, any_member: Start, client: Any
) -> None:
    plant_topic(client, "orders", 1)
    a = any_member((), pattern="o.*", reconcile_every=20.0).until_holding(P0)
    world.deafen("far")
    plant_topic(client, "orders", 2)
    plant_topic(client, "offers", 1)
    a.until_holding(P0, P1, ats("offers", 0))
    delete_topic(client, "offers")
    a.until_holding(P0, P1)


def test_changes_while_disconnected_are_noticed_after_the_reconnect(
    world: World, any_member: Start, client: Any
) -> None:
    plant_topic(client, "orders", 1)
    a = any_member((), pattern="o.*").until_holding(P0)
    world.cut("far")
    plant_topic(client, "orders", 2)
    plant_topic(client, "offers", 1)
    time.sleep(4)
    world.heal("far")
    a.until_holding(P0, P1, ats("offers", 0))
    plant_topic(client, "orders", 3)  # and watches are set again
    a.until_holding(ats("orders", 0, 1, 2), ats("offers", 0))
    assert a.told(EventKind.LOST) == []


def test_a_directory_created_between_the_read_and_the_watch_is_not_missed(
    registry: Registry, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[Partitions]()
    other = connect().client
    observer = GroupObserver(GroupPaths("billing"), registry._context, lambda _at: heard.append(frozenset()))
    watch = registry.client.exists_async

    def watch_late(path: str, **options: Any) -> Any:
        if path == "/brokers/topics" and not other.exists(path):
            plant_topic(other, "orders", 1)
        return watch(path, **options)

    monkeypatch.setattr(registry.client, "exists_async", watch_late)
    chosen = Registration({".*": 1}, Pattern.WHITE_LIST)
    assert set(observer.topics(chosen).partitions) == {"orders"}
    time.sleep(1)
    heard.clear()
    plant_topic(other, "refunds", 1)
    time.sleep(1)
    assert heard
    assert set(observer.topics(chosen).partitions) == {"orders", "refunds"}
    observer.close()


def test_a_closed_member_receives_no_topic_events(run: Run, client: Any, registry: Registry) -> None:
    plant_topic(client, "orders", 1)
    run((), pattern="o.*", id="a").until_holding(P0).close()
    assert WatchDispatcher.of(registry._context.session)._listeners == {}  # nothing public shows a leak


# Failure 13: a topic that is deleted and recreated


def marking(offset: int) -> Callable[[Generation], object]:
    """Return a worker that processes everything up to an offset at once, and marks it."""

    def work(generation: Generation) -> None:
        for at in generation.partitions:
            generation.mark(at, offset)
        generation.wait()

    return work


def test_a_deleted_topic_is_released_without_further_commits(run: Run, client: Any, group: Consumergroup) -> None:
    plant_topic(client, "orders", 2)
    plant_topic(client, "refunds", 1)
    a = run(["orders", "refunds"], id="a", work=marking(1000), reconcile_every=NEVER)
    a.until_holding(P0, P1, ats("refunds", 0))
    delete_topic(client, "orders")
    a.until_holding(ats("refunds", 0))
    assert committed(group).keys() == ats("refunds", 0)
    assert a.errors == []


def test_a_recreated_topic_starts_again_and_offsets_of_the_old_one_are_not_written(
    run: Run, client: Any, group: Consumergroup
) -> None:
    plant_topic(client, "orders", 3)
    refused: list[str] = []

    def work(generation: Generation) -> None:
        if len(a.generations) == 1:
            marking(1000)(generation)
            try:
                generation.commit({P0: 999})
            except NotClaimedError as error:
                refused.append(str(error))
        generation.wait()

    a = run(["orders"], id="a", reconcile_every=NEVER).until_holding(P0, P1, P2)
    a.generation.start(work)
    time.sleep(1)
    replace_topic(client, "orders", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    a.until_holding(P0, P1)
    a.until(lambda: refused, "the refusal")
    assert committed(group) == {}
    assert refused == ["orders/0 belongs to a topic that was deleted: stop working on it"]
    [_first, second] = a.generations
    assert dict(second.partitions) == {P0: "earliest", P1: "earliest"}
    second.commit({P0: 5})
    assert committed(group) == {P0: 5}


@pytest.mark.parametrize("assignor", ["range", "sticky"])
def test_a_topic_recreated_with_the_same_partitions_starts_again_for_all_members(
    run: Run, client: Any, assignor: str
) -> None:
    plant_topic(client, "orders", 2)
    options: dict[str, Any] = {"work": marking(7), "reconcile_every": NEVER, "assignors": [assignor]}
    a, b = run(id="a", **options).until_holding(P0, P1), run(id="b", **options)
    b.until_holding_some(1)
    a.until_holding_some(1)
    mine, other, before = a.member.assignment, b.member.assignment, (len(a.generations), len(b.generations))
    replace_topic(client, "orders", client.get("/brokers/topics/orders")[0])
    a.until(lambda: len(a.generations) > before[0], "another generation")
    b.until(lambda: len(b.generations) > before[1], "another generation")
    a.until_holding(mine)
    b.until_holding(other)


def test_a_topic_that_is_recreated_with_more_partitions_is_worked_on_as_a_whole_and_begins_anew(
    any_member: Start, client: Any
) -> None:
    """A member does not claim the new partitions while it holds old ones: they would count as old, too."""
    plant_topic(client, "orders", 2)
    a = any_member(work=marking(7)).until_holding(P0, P1)
    a.until(lambda: len(a.generation.marked) == 2)
    replace_topic(client, "orders", b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1]}}')
    a.until(lambda: len(a.generations) > 1, "another generation")
    a.until_holding(P0, P1, P2)
    assert dict(a.generations[1].partitions) == dict.fromkeys([P0, P1, P2], "earliest")
    assert len(a.generations) == 2
