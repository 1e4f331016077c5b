"""`Consumer.run` with Kafka 1.1.1 and ZooKeeper."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer as Reader
from confluent_kafka import Message, Producer
from confluent_kafka import TopicPartition as Position

from zkgroups import (
    CommittedOffset,
    Consumer,
    Consumergroup,
    DeadLetter,
    EventKind,
    HandlerStats,
    MemberEvent,
    Registry,
    TopicPartition,
)
from zkgroups.exceptions import HandlerFailedError, InvalidOptionError
from zkgroups.testing import KafkaBroker

from ...docs.guides import ROOT
from ...seeds import seeds
from .dying import BAD, STEPS
from .running import LONG, Blocking, wait_until

_numbers = itertools.count()


class Topic:
    """A topic of one test, and the group that reads it."""

    def __init__(self, broker: KafkaBroker, registry: Registry, partitions: int) -> None:
        number = next(_numbers)
        self.name, self.dead = f"handled-{number}", f"failed-{number}"
        self.broker = broker
        self.partitions = partitions
        self.group: Consumergroup = registry.group(f"handlers-{number}")
        for name, count in ((self.name, partitions), (self.dead, 1)):
            broker.create_topic(name, count)
        self._producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
        self.sent = 0

    def send(self, value: bytes | None, *, key: bytes | None = None, partition: int = 0, **more: Any) -> None:
        self._producer.produce(self.name, value, key, partition, **more)
        self.sent += 1

    def flush(self) -> None:
        assert self._producer.flush(LONG) == 0

    def consumer(self, group: Consumergroup | None = None, **options: Any) -> Consumer:
        options = {"auto_commit_every": 0.1, "release_timeout": 2.0} | options
        return Consumer(group or self.group, [self.name], kafka=self.broker.address, **options)

    def committed(self) -> dict[int, int]:
        """The committed offset of each partition."""
        return {found.at.partition: found.offset for found in self.group.offsets if isinstance(found, CommittedOffset)}

    def is_finished(self) -> bool:
        return sum(self.committed().values()) == self.sent

    def letters(self) -> list[Message]:
        """All dead letters."""
        reader = Reader({"bootstrap.servers": self.broker.address, "group.id": "unused", "log_level": 0})
        _start, end = reader.get_watermark_offsets(Position(self.dead, 0), timeout=LONG)
        reader.assign([Position(self.dead, 0, 0)])
        found: list[Message] = []
        while len(found) < end:
            message = reader.poll(LONG)
            assert message is not None
            assert message.error() is None
            found.append(message)
        reader.close()
        return found


@pytest.fixture
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    with Registry.connect(legacy_kafka.zookeeper) as found:
        yield found


@pytest.fixture
def make_topic(legacy_kafka: KafkaBroker, registry: Registry) -> Iterator[Callable[[int], Topic]]:
    made: list[Topic] = []

    def make(partitions: int = 1) -> Topic:
        made.append(Topic(legacy_kafka, registry, partitions))
        return made[-1]

    yield make
    for topic in made:
        if topic.group.exists():
            topic.group.delete()


@contextmanager
def running(consumer: Consumer, handler: Any, **options: Any) -> Iterator[list[BaseException]]:
    """Run a consumer on a thread, and close it at the end. The list receives the error that `run` raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run(handler, **options)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    with consumer:
        thread.start()
        try:
            yield errors
        finally:
            consumer.stop()
            thread.join(LONG)
    assert not thread.is_alive()


def where(message: Message) -> tuple[int | None, int | None]:
    return message.partition(), message.offset()


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


# Dead letters


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


class Process:
    """`dying.py` in its own process."""

    def __init__(self, topic: Topic, folder: Path, *arguments: str) -> None:
        self.log = folder / "handled"
        command = [sys.executable, "-m", "tests.messages.handlers.dying"]
        command += ["--zookeeper", topic.broker.zookeeper, "--kafka", topic.broker.address, "--topic", topic.name]
        command += ["--dead", topic.dead, "--group", topic.group.name, "--log", str(self.log)]
        command += ["--session", str(folder / "session"), *arguments]
        self._up = folder / "up"
        self._up.unlink(missing_ok=True)
        command += ["--up", str(self._up)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def is_up(self) -> bool:
        """True if the process has partitions, and has not ended."""
        assert self.process.poll() is None
        return self._up.exists()

    def handled(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def has_handled_more(process: Process, count: int, topic: Topic) -> bool:
    return len(process.handled()) > count or topic.is_finished()


def origins(letters: list[Message]) -> Counter[tuple[int, int]]:
    """How many letters each message has."""
    found: Counter[tuple[int, int]] = Counter()
    for letter in letters:
        headers = dict(letter.headers() or ())
        found[int(headers["zkgroups.partition"]), int(headers["zkgroups.offset"])] += 1
    return found


def finish(topic: Topic, folder: Path) -> None:
    """Handle the rest in another process, and end it with SIGTERM."""
    with Process(topic, folder) as last:
        wait_until(lambda: last.is_up and topic.is_finished())
        last.process.send_signal(signal.SIGTERM)
        assert last.process.wait(LONG) == 0
    assert topic.is_finished()


@pytest.mark.parametrize("step", STEPS)
def test_no_dead_letter_is_lost_when_the_process_is_killed(
    make_topic: Callable[[int], Topic], step: str, tmp_path: Path
) -> None:
    """The killed process had one letter at most. Another process writes it again unless it was committed."""
    topic = make_topic(1)
    for value in (b"good", BAD, b"good"):
        topic.send(value, key=b"anna")
    topic.flush()
    with Process(topic, tmp_path, "--kill", step) as killed:
        assert killed.process.wait(LONG) == -signal.SIGKILL
    finish(topic, tmp_path)

    twice = step in ("after the write", "before the commit")
    assert origins(topic.letters()) == {(0, 1): 2 if twice else 1}


def test_processes_that_are_killed_at_any_time_lose_nothing_and_repeat_nothing_below_the_committed_offsets(
    make_topic: Callable[[int], Topic], tmp_path: Path
) -> None:
    topic, random, kills = make_topic(2), Random(seeds(1)[0]), 4
    sent: dict[tuple[int, int], bool] = {}  # whether it is bad
    for number in range(1000):
        partition, bad = number % 2, random.random() < 0.1
        topic.send(BAD if bad else b"good", key=b"%d" % random.randrange(20), partition=partition)
        sent[partition, number // 2] = bad
    topic.flush()
    most = dict.fromkeys(sent, 1)  # how often each may be handled, or written as a dead letter
    for number in range(kills):
        with Process(topic, tmp_path) as killed:
            wait_until(partial(has_handled_more, killed, len(killed.handled()), topic))
            time.sleep(random.random() * 0.1 * number)
        committed = topic.committed()
        for partition, offset in sent:
            most[partition, offset] += offset >= committed.get(partition, 0)
    finish(topic, tmp_path)

    lines = [line.split() for line in (tmp_path / "handled").read_text().splitlines()]
    handled = Counter((int(partition), int(offset)) for _key, offset, partition in lines)
    letters = origins(topic.letters())
    assert set(letters) == {place for place, bad in sent.items() if bad}
    assert set(handled) == {place for place, bad in sent.items() if not bad}
    assert all(count <= most[place] for place, count in (handled + letters).items())
    for lane in {(key, partition) for key, _offset, partition in lines}:
        first_times = list(dict.fromkeys(int(offset) for key, offset, at in lines if (key, at) == lane))
        assert first_times == sorted(first_times)
