"""`Consumer.run` and its dead letters with Kafka 1.1.1 and ZooKeeper. `tests/messages/test_run.py` has rebalances."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message

from zkgroups import Consumer, DeadLetter, HandlerStats

from .running import Blocking, wait_until
from .topics import Topic, running, where


@pytest.mark.parametrize("kind", ["function", "coroutine function"])
def test_all_messages_are_handled_once_and_committed(make_topic: Callable[[int], Topic], kind: str) -> None:
    topic, handled = make_topic(3), []

    def handle(message: Message) -> None:
        handled.append(where(message))

    async def handle_async(message: Message) -> None:
        handle(message)

    for number in range(3000):
        topic.send(b"an order", key=b"%d" % (number % 50), partition=number % 3)
    topic.flush()
    handler: Any = handle if kind == "function" else handle_async
    with running(topic.consumer(), handler, workers=4, order="key", window=300) as errors:
        wait_until(topic.is_finished)
        assert errors == []

    assert sorted(handled) == [(partition, offset) for partition in range(3) for offset in range(1000)]


def test_a_dead_letter_carries_its_message_and_its_origin(make_topic: Callable[[int], Topic]) -> None:
    topic = make_topic(2)
    topic.send(b"an order", key=b"anna", partition=1, headers=[("trace", b"7")], timestamp=1_700_000_000_123)
    topic.send(None, key=b"ben", partition=1)
    topic.flush()

    def handle(_message: Message) -> None:
        raise ValueError("no amount: \N{SNOWMAN}")

    with running(topic.consumer(), handle, attempts=2, first_delay=0.01, then=DeadLetter(topic.dead)):
        wait_until(topic.is_finished)

    first, second = topic.letters()
    assert (first.key(), first.value()) == (b"anna", b"an order")
    assert (second.key(), second.value()) == (b"ben", None)
    assert first.headers() == [
        ("trace", b"7"),
        ("zkgroups.topic", topic.name.encode()),
        ("zkgroups.partition", b"1"),
        ("zkgroups.offset", b"0"),
        ("zkgroups.timestamp", b"1700000000123"),
        ("zkgroups.group", topic.group.name.encode()),
        ("zkgroups.attempts", b"2"),
        ("zkgroups.error", "ValueError: no amount: \N{SNOWMAN}".encode()),
    ]


def test_a_dead_letter_is_written_once_if_the_broker_confirms_it_late(make_topic: Callable[[int], Topic]) -> None:
    topic, blocked = make_topic(1), Blocking()
    topic.send(b"an order")
    topic.flush()

    def handle(message: Message) -> None:
        blocked(message)
        raise ValueError("no amount")

    consumer = topic.consumer()
    with blocked.ended(), running(consumer, handle, attempts=1, then=DeadLetter(topic.dead)):
        wait_until(lambda: blocked.begun == 1)
        topic.broker.suspend()
        try:
            blocked.let_return()
            wait_until(lambda: handlers(consumer).failed == 1)
            time.sleep(1)  # long enough for a letter that nobody confirms
            assert handlers(consumer).dead_letters == 0
            assert topic.committed().get(0, 0) == 0
        finally:
            topic.broker.resume()
        wait_until(topic.is_finished)
    assert len(topic.letters()) == 1


def handlers(consumer: Consumer) -> HandlerStats:
    found = consumer.stats().handlers
    assert found is not None
    return found


def test_a_dead_letter_that_is_too_large_leaves_its_message_behind(make_topic: Callable[[int], Topic]) -> None:
    topic = make_topic(1)
    topic.send(b"x" * 990_000)
    topic.send(b"an order")
    topic.flush()

    def handle(_message: Message) -> None:
        raise ValueError("y" * 900)

    kafka = {"bootstrap.servers": topic.broker.address, "message.max.bytes": 500_000}
    consumer = Consumer(topic.group, [topic.name], kafka=kafka, auto_commit_every=0.1)
    with running(consumer, handle, order="none", attempts=1, then=DeadLetter(topic.dead)) as errors:
        wait_until(lambda: len(topic.letters()) == 1)
        assert errors == []
    assert topic.committed().get(0, 0) == 0
