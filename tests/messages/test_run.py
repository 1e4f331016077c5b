"""`Consumer.run` in simulated time: rebalances, long handlers, and its end."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Message

from tests.simulation.kafka import Logs
from tests.simulation.world import World
from zkgroups import Consumer, Consumergroup, EventKind, HandlerStats, Registry, TopicPartition
from zkgroups.exceptions import HandlerFailedError, InvalidOptionError

from .conftest import LONGEST, Connect, offsets, plant_topic
from .looping import running

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def topic(logs: Logs, registry: Registry) -> Callable[..., None]:
    """Write messages to each of two partitions: their keys."""
    plant_topic(registry.client, "orders", 2)

    def write(*keys: bytes) -> None:
        for at, key in itertools.product((AT, OTHER), keys):
            logs.write(at, b"an order", key=key)

    return write


def make(group: Consumergroup, **options: Any) -> Consumer:
    return Consumer(group, ["orders"], kafka="simulated", **{"auto_commit_every": 0.5, **options})


def where(message: Message) -> tuple[int, int]:
    return message.partition() or 0, message.offset() or 0


def until_committed(world: World, group: Consumergroup, expected: dict[int, int]) -> None:
    world.machine.until(lambda: offsets(group) == expected, LONGEST, 0.1)


@pytest.mark.parametrize("kind", ["function", "coroutine function"])
@pytest.mark.parametrize("order", ["partition", "key", "none"])
def test_members_that_come_and_go_handle_each_message_once_and_in_its_order(
    world: World, topic: Callable[..., None], group: Consumergroup, connect: Connect, order: str, kind: str
) -> None:
    handled: list[tuple[int, int, bytes]] = []
    by: Counter[str] = Counter()

    def handler(member: str) -> Any:
        def handle(message: Message) -> None:
            time.sleep(world.random.random() * 0.05)
            handled.append((*where(message), message.key() or b""))
            by[member] += 1

        async def handle_async(message: Message) -> None:
            handle(message)

        return handle if kind == "function" else handle_async

    keys = [b"%d" % number for number in range(5)] * 40
    topic(*keys)
    options: dict[str, Any] = {"workers": 4, "order": order, "window": 30}
    with running(make(group, id="a", release_timeout=20.0), handler("a"), **options):
        for name in "bc":
            place = connect().group(group.name)
            with ExitStack() as stack:
                stack.enter_context(running(make(place, id=name, release_timeout=20.0), handler(name), **options))
                world.machine.until(lambda: by[name] > 20, LONGEST)  # noqa: B023
        until_committed(world, group, {0: 200, 1: 200})
    assert Counter(each[:2] for each in handled) == Counter(itertools.product((0, 1), range(200)))
    if order != "none":
        lanes = {
            each: [offset for n, offset, key in handled if (n, key)[: 2 if order == "key" else 1] == each]
            for each in {(n, key)[: 2 if order == "key" else 1] for n, _offset, key in handled}
        }
        assert all(lane == sorted(lane) for lane in lanes.values())


def test_the_error_of_a_handler_ends_run_and_the_next_run_begins_at_its_message(
    world: World, topic: Callable[..., None], group: Consumergroup
) -> None:
    handled: list[int] = []

    def handle(message: Message) -> None:
        if where(message) == (0, 5) and 5 not in handled:
            handled.append(5)
            raise ValueError("not yet")
        if message.partition() == 0:
            handled.append(message.offset() or 0)

    topic(*[b"anna"] * 10)
    with make(group) as consumer, pytest.raises(HandlerFailedError):
        consumer.run(handle, attempts=1)
    with running(make(group), handle, attempts=1):
        until_committed(world, group, {0: 10, 1: 10})
    assert handled == [0, 1, 2, 3, 4, 5, *range(5, 10)]


def test_a_handler_may_commit_what_is_finished_but_not_its_own_message(
    topic: Callable[..., None], group: Consumergroup
) -> None:
    """Messages before it may be unfinished."""
    refused: list[tuple[int, int, int]] = []

    def handle(message: Message) -> None:
        consumer.commit()
        with pytest.raises(InvalidOptionError):
            consumer.commit(message)
        at = AT if message.partition() == 0 else OTHER
        refused.append((message.offset() or 0, offsets(group).get(at.partition, 0), consumer.position(at)))
        if len(refused) == 6:
            consumer.stop()

    topic(b"a", b"b", b"c")
    consumer = make(group, auto_commit_every=None)
    with consumer:
        consumer.run(handle)
        assert consumer.stats().handlers == HandlerStats(handled=6)
    assert sorted(refused) == [(n, n, n) for n in (0, 0, 1, 1, 2, 2)]
    assert offsets(group) == {0: 3, 1: 3}


def test_a_handler_that_takes_longer_than_the_session_timeout_keeps_its_partition(
    world: World, topic: Callable[..., None], group: Consumergroup, connect: Connect
) -> None:
    events: list[EventKind] = []
    begun: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        begun.append(where(message))
        time.sleep(100)

    topic(b"anna")
    consumer = make(connect(session_timeout=10.0).group(group.name), on_event=lambda event: events.append(event.kind))
    with running(consumer, handle, workers=2):
        time.sleep(50)
        owners = list(group.owners())
        until_committed(world, group, {0: 1, 1: 1})
        assert list(group.owners()) == owners
    assert sorted(begun) == [(0, 0), (1, 0)]
    assert EventKind.LOST not in events


def test_a_handler_that_returns_after_a_rebalance_commits_nothing(
    world: World, topic: Callable[..., None], group: Consumergroup, connect: Connect
) -> None:
    """Its partition belongs to another member, which has handled the message again, and has gone on."""
    free, others = threading.Event(), list[tuple[int, int]]()
    topic(b"a", b"b", b"c")
    with running(make(group, id="a", release_timeout=1.0), lambda _message: free.wait(), workers=2):
        time.sleep(5)
        second = make(connect().group(group.name), id="b")
        with running(second, lambda message: others.append(where(message)), window=2):
            until_committed(world, group, {1: 3})
            free.set()
            until_committed(world, group, {0: 3, 1: 3})
            assert others == [(1, 0), (1, 1), (1, 2)]


def test_a_member_whose_session_expires_while_it_finishes_its_messages_begins_no_others(
    world: World, topic: Callable[..., None], group: Consumergroup, connect: Connect
) -> None:
    """Otherwise it would handle messages of partitions that belong to others now."""
    begun: list[tuple[int, int]] = []
    first, second = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.append(where(message))
        if message.offset() in (0, 1):
            (second if message.offset() else first).wait()

    topic(b"anna", b"anna", b"anna", b"ben")
    far = connect("far", session_timeout=10.0)
    consumer = make(far.group(group.name), release_timeout=20.0, id="a")
    with running(consumer, handle, workers=4, order="key"):
        world.machine.until(lambda: len(begun) == 4)
        with running(make(group, id="b"), lambda _message: None):
            world.machine.until(lambda: consumer._reading.is_revoking)
            [moved] = consumer._reading._held.gone
            first.set()
            world.machine.until(lambda: (moved.partition, 1) in begun)
            world.expire(far)
            world.machine.until(lambda: not consumer._reading.is_revoking, 15.0)  # it does not wait for the handlers
            second.set()
            until_committed(world, group, {0: 4, 1: 4})
    assert (moved.partition, 2) not in begun


def test_stop_waits_for_messages_that_are_being_handled_and_begins_no_others(
    topic: Callable[..., None], group: Consumergroup
) -> None:
    begun: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        begun.append(where(message))
        time.sleep(10)

    topic(*[b"anna"] * 5)
    consumer = make(group, release_timeout=20.0)
    with running(consumer, handle, workers=2):
        time.sleep(5)
        consumer.stop()
        time.sleep(2)
        assert group.instances() != []
    assert sorted(begun) == [(0, 0), (1, 0)]
    assert offsets(group) == {0: 1, 1: 1}
