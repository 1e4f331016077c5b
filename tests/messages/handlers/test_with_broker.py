"""`Consumer.run` with Kafka 1.1.1 and ZooKeeper."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from confluent_kafka import Message

from zkgroups import EventKind, HandlerStats, MemberEvent, Registry, TopicPartition
from zkgroups.exceptions import HandlerFailedError, InvalidOptionError
from zkgroups.testing import KafkaBroker, expire_session

from ...seeds import seeds
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


def test_the_error_of_a_handler_ends_run_and_the_next_run_begins_at_its_message(
    make_topic: Callable[[int], Topic],
) -> None:
    topic, handled = make_topic(1), []

    def handle(message: Message) -> None:
        if message.offset() == 5 and 5 not in handled[-1:]:
            handled.append(5)
            raise ValueError("not yet")
        handled.append(message.offset() or 0)

    for _ in range(10):
        topic.send(b"an order")
    topic.flush()
    with topic.consumer() as consumer:
        with pytest.raises(HandlerFailedError):
            consumer.run(handle, attempts=1)
        threading.Thread(target=lambda: (wait_until(topic.is_finished), consumer.stop()), daemon=True).start()
        consumer.run(handle, attempts=1)
    assert handled == [0, 1, 2, 3, 4, 5, *range(5, 10)]
    assert topic.committed() == {0: 10}


class Numbers:
    """Handlers that note the numbers of each key, in the order in which they were called."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._lock = threading.Lock()
        self.handled: defaultdict[bytes, list[int]] = defaultdict(list)
        self.by_member: Counter[str] = Counter()
        self.total = 0

    def of(self, member: str) -> Callable[[Message], None]:
        def handle(message: Message) -> None:
            time.sleep(self._random.random() * 0.008)
            with self._lock:
                self.handled[message.key() or b""].append(int(message.value() or b""))
                self.by_member[member] += 1
                self.total += 1

        return handle


def test_members_that_come_and_go_handle_each_message_once_and_in_the_order_of_its_key(
    make_topic: Callable[[int], Topic], legacy_kafka: KafkaBroker
) -> None:
    topic, random = make_topic(4), Random(seeds(1)[0])
    numbers, expected = Numbers(random), Counter[bytes]()
    keys = Random(seeds(1)[0])

    def send(count: int) -> None:
        for _ in range(count):
            key = b"%d" % keys.randrange(40)
            topic.send(b"%d" % expected[key], key=key, partition=int(key) % 4)
            expected[key] += 1
        topic.flush()

    def has_handled(member: str, count: int) -> bool:
        """There are always messages left, however long the member takes to join."""
        if topic.sent - numbers.total < 1000:
            send(1000)
        return numbers.by_member[member] >= count

    send(2000)
    options: dict[str, Any] = {"workers": 8, "order": "key", "window": 200}
    others = ("b", "c", "d")
    with running(topic.consumer(release_timeout=20.0), numbers.of("a"), **options):
        for name in others:
            with Registry.connect(legacy_kafka.zookeeper) as registry:
                consumer = topic.consumer(registry.group(topic.group.name), release_timeout=20.0)
                with running(consumer, numbers.of(name), **options):
                    wait_until(partial(has_handled, name, 100))
        wait_until(topic.is_finished)

    assert numbers.handled == {key: list(range(count)) for key, count in expected.items()}
    assert all(numbers.by_member[name] for name in others)


def test_a_handler_may_commit_what_is_finished_but_not_its_own_message(make_topic: Callable[[int], Topic]) -> None:
    """Messages before it may be unfinished."""
    topic, refused = make_topic(1), []

    def handle(message: Message) -> None:
        consumer.commit()
        with pytest.raises(InvalidOptionError):
            consumer.commit(message)
        refused.append((message.offset(), topic.committed().get(0, 0), consumer.position(at)))
        if message.offset() == 2:
            consumer.stop()

    for _ in range(3):
        topic.send(b"an order")
    topic.flush()
    consumer, at = topic.consumer(auto_commit_every=None), TopicPartition(topic.name, 0)
    with consumer:
        consumer.run(handle)
        assert consumer.stats().handlers == HandlerStats(handled=3)
    assert refused == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]
    assert topic.committed() == {0: 3}


# Long handlers


def test_a_handler_that_takes_longer_than_the_session_timeout_keeps_its_partition(
    make_topic: Callable[[int], Topic], legacy_kafka: KafkaBroker
) -> None:
    topic, blocked = make_topic(1), Blocking()
    events: list[EventKind] = []

    def tell(event: MemberEvent) -> None:
        events.append(event.kind)

    topic.send(b"an order")
    topic.flush()
    with Registry.connect(legacy_kafka.zookeeper, session_timeout=10.0) as registry, blocked.ended():
        consumer = topic.consumer(registry.group(topic.group.name), on_event=tell)
        with running(consumer, blocked):
            wait_until(lambda: blocked.begun == 1)
            owner = topic.group.owner(TopicPartition(topic.name, 0))
            time.sleep(12)  # longer than the session: the time itself is tested
            assert topic.group.owner(TopicPartition(topic.name, 0)) == owner
            blocked.let_return()
            wait_until(topic.is_finished)
    assert blocked.begun == 1
    assert EventKind.LOST not in events


def test_a_handler_that_returns_after_a_rebalance_commits_nothing(
    make_topic: Callable[[int], Topic], legacy_kafka: KafkaBroker
) -> None:
    """Its partition belongs to another member, which has handled the message again, and has gone on."""
    topic, blocked = make_topic(2), Blocking()
    others: list[tuple[int | None, int | None]] = []
    for partition in range(2):
        for _ in range(3):
            topic.send(b"an order", partition=partition)
    topic.flush()
    with blocked.ended(), running(topic.consumer(id="a", release_timeout=1.0), blocked, workers=2):
        wait_until(lambda: blocked.begun == 2)
        with Registry.connect(legacy_kafka.zookeeper) as registry:
            second = topic.consumer(registry.group(topic.group.name), id="b")
            with running(second, lambda message: others.append(where(message)), window=2):
                wait_until(lambda: sum(topic.committed().values()) == 3)
                committed = topic.committed()
                [moved] = [partition for partition, offset in committed.items() if offset == 3]
                assert others == [(moved, 0), (moved, 1), (moved, 2)]
                blocked.let_return()
                wait_until(topic.is_finished)
                assert others == [(moved, 0), (moved, 1), (moved, 2)]
                owner = topic.group.owner(TopicPartition(topic.name, moved))
                assert owner is not None
                assert owner.id.startswith("b")
    assert topic.committed() == {0: 3, 1: 3}


def test_a_member_whose_session_expires_while_it_finishes_its_messages_begins_no_others(
    make_topic: Callable[[int], Topic], legacy_kafka: KafkaBroker
) -> None:
    """Otherwise it would handle messages of partitions that belong to others now."""
    topic, first, second = make_topic(2), Blocking(), Blocking()
    begun: list[tuple[int | None, int | None]] = []
    for partition, key in itertools.product(range(2), (b"anna", b"anna", b"anna", b"ben")):
        topic.send(b"an order", key=key, partition=partition)
    topic.flush()

    def handle(message: Message) -> None:
        begun.append(where(message))
        if message.offset() in (0, 1):
            (second if message.offset() else first)(message)

    with first.ended(), second.ended(), Registry.connect(legacy_kafka.zookeeper) as registry:
        consumer = topic.consumer(registry.group(topic.group.name), release_timeout=20.0, id="a")
        reading = consumer._reading
        with running(consumer, handle, workers=4, order="key"):
            wait_until(lambda: len(begun) == 4)
            with running(topic.consumer(id="b"), lambda _message: None):
                wait_until(lambda: reading.is_revoking)
                since = time.monotonic()
                [moved] = reading._held.gone
                first.let_return()
                wait_until(lambda: (moved.partition, 1) in begun)
                expire_session(registry.client)
                wait_until(lambda: not reading.is_revoking)
                assert time.monotonic() - since < 15.0  # otherwise it lasts until the handlers have returned, or 20 s
                second.let_return()
                wait_until(topic.is_finished)
    assert (moved.partition, 2) not in begun


def test_stop_waits_for_messages_that_are_being_handled_and_begins_no_others(
    make_topic: Callable[[int], Topic],
) -> None:
    topic, blocked = make_topic(1), Blocking()
    for _ in range(5):
        topic.send(b"an order")
    topic.flush()
    consumer = topic.consumer(release_timeout=20.0)
    with blocked.ended(), running(consumer, blocked):
        wait_until(lambda: blocked.begun == 1)
        consumer.stop()
        time.sleep(0.5)  # long enough to end without the message
        assert topic.group.instances() != []
        blocked.let_return()
    assert blocked.begun == 1
    assert topic.committed() == {0: 1}
