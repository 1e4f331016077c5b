"""Dead letters on a broker: what they carry, and that none is lost or written without need."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as Reader
from confluent_kafka import Message
from confluent_kafka import TopicPartition as Position

from tests.waiting import eventually
from zkgroups import Consumer, Consumergroup, DeadLetter
from zkgroups.testing import ChildProcess, KafkaBroker

from ..conftest import offsets
from ..looping import LONGEST, ROOT, Topic, running
from .dying import BAD, STEPS


@pytest.fixture
def topic(make_topic: Callable[..., Topic]) -> Topic:
    return make_topic(1)


@pytest.fixture
def dead(make_topic: Callable[..., Topic]) -> Topic:
    return make_topic(1)


def letters(broker: KafkaBroker, dead: Topic) -> list[Message]:
    """All dead letters."""
    reader = Reader({"bootstrap.servers": broker.address, "group.id": "unused", "log_level": 0})
    _start, end = reader.get_watermark_offsets(Position(dead.name, 0), timeout=LONGEST)
    reader.assign([Position(dead.name, 0, 0)])
    found: list[Message] = []
    while len(found) < end:
        message = reader.poll(LONGEST)
        assert message is not None
        assert message.error() is None
        found.append(message)
    reader.close()
    return found


def consumer(group: Consumergroup, topic: Topic, kafka: Any) -> Consumer:
    return Consumer(group, [topic.name], kafka=kafka, auto_commit_every=0.1)


def test_a_dead_letter_carries_its_message_and_its_origin(
    legacy_kafka: KafkaBroker, group: Consumergroup, topic: Topic, dead: Topic
) -> None:
    topic.send(0, b"an order", b"anna", headers=[("trace", b"7")], timestamp=1_700_000_000_123)
    topic.send(0, None, b"ben")

    def handle(_message: Message) -> None:
        raise ValueError("no amount: \N{SNOWMAN}")

    options: dict[str, Any] = {"attempts": 2, "first_delay": 0.01, "then": DeadLetter(dead.name)}
    with running(consumer(group, topic, legacy_kafka.address), handle, **options):
        assert eventually(lambda: offsets(group) == {0: 2})
    first, second = letters(legacy_kafka, dead)
    assert (first.key(), first.value()) == (b"anna", b"an order")
    assert (second.key(), second.value()) == (b"ben", None)
    assert first.headers() == [
        ("trace", b"7"),
        ("zkgroups.topic", topic.name.encode()),
        ("zkgroups.partition", b"0"),
        ("zkgroups.offset", b"0"),
        ("zkgroups.timestamp", b"1700000000123"),
        ("zkgroups.group", group.name.encode()),
        ("zkgroups.attempts", b"2"),
        ("zkgroups.error", "ValueError: no amount: \N{SNOWMAN}".encode()),
    ]


def test_a_dead_letter_is_written_once_if_the_broker_confirms_it_late(
    legacy_kafka: KafkaBroker, group: Consumergroup, topic: Topic, dead: Topic
) -> None:
    begun, may_fail = threading.Event(), threading.Event()
    topic.write(1)

    def handle(_message: Message) -> None:
        begun.set()
        assert may_fail.wait(LONGEST)
        raise ValueError("no amount")

    mine = consumer(group, topic, legacy_kafka.address)
    with running(mine, handle, attempts=1, then=DeadLetter(dead.name)):
        assert begun.wait(LONGEST)
        legacy_kafka.suspend()
        try:
            may_fail.set()
            assert eventually(lambda: mine.stats().handlers.failed == 1)
            time.sleep(1)  # long enough for a letter that nobody confirms
            assert mine.stats().handlers.dead_letters == 0
            assert offsets(group).get(0, 0) == 0
        finally:
            legacy_kafka.resume()
        assert eventually(lambda: offsets(group) == {0: 1})
    assert len(letters(legacy_kafka, dead)) == 1


def test_a_dead_letter_that_is_too_large_leaves_its_message_behind(
    legacy_kafka: KafkaBroker, group: Consumergroup, topic: Topic, dead: Topic
) -> None:
    topic.send(0, b"x" * 990_000)
    topic.send(0, b"an order")

    def handle(_message: Message) -> None:
        raise ValueError("y" * 900)

    kafka = {"bootstrap.servers": legacy_kafka.address, "message.max.bytes": 500_000}
    mine = consumer(group, topic, kafka)
    with running(mine, handle, attempts=1, then=DeadLetter(dead.name), order="none"):
        assert eventually(lambda: len(letters(legacy_kafka, dead)) == 1)
    assert offsets(group).get(0, 0) == 0


@pytest.mark.parametrize("step", STEPS)
def test_no_dead_letter_is_lost_when_the_process_is_killed(
    legacy_kafka: KafkaBroker, group: Consumergroup, topic: Topic, dead: Topic, step: str, tmp_path: Path
) -> None:
    """The killed process had one letter. Another process writes it again unless it was committed."""
    for value in (b"good", BAD, b"good"):
        topic.send(0, value, b"anna")
    where = {"zookeeper": legacy_kafka.zookeeper, "kafka": legacy_kafka.address, "group": group.name}
    given = {**where, "topic": topic.name, "dead": dead.name, "session": str(tmp_path / "session")}

    def process(step: str) -> ChildProcess:
        command = [sys.executable, "-m", "tests.messages.brokers.dying", json.dumps({**given, "step": step})]
        return ChildProcess(command, log=tmp_path / f"{step}.log", directory=ROOT)

    with process(step) as killed:
        assert killed.wait(LONGEST) == 128 + signal.SIGKILL, killed.tail()
    with process("") as last:
        assert eventually(lambda: offsets(group) == {0: 3} and "up" in last.log.read_text()), last.tail()
        os.kill(last.pid, signal.SIGTERM)
        assert last.wait(LONGEST) == 0, last.tail()
    twice = step in ("after the write", "before the commit")
    origins = [dict(letter.headers() or ())["zkgroups.offset"] for letter in letters(legacy_kafka, dead)]
    assert origins == [b"1"] * (2 if twice else 1)
