"""Brokers that are down, and partitions that cannot be read: they are reported, and the others go on."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tests.waiting import eventually
from zkgroups import CommittedOffset, Consumer, Consumergroup, EventKind, MemberEvent, TopicPartition
from zkgroups.deadline import uptime
from zkgroups.exceptions import CommittedOutOfRangeError, FetchFailedError
from zkgroups.messages import fetcher
from zkgroups.messages.fetched_partitions import StandingPartitions
from zkgroups.messages.fetcher import Outage
from zkgroups.testing import KafkaBroker

from ..looping import Topic
from .conftest import Loops

AWAY = "127.0.0.1:1,127.0.0.1:2"
MANY = 60
"""So many lines come within a few seconds."""
KINDS = 2
"""Of errors: one broker is down, and all are."""

DOWN = KafkaError(KafkaError._TRANSPORT)
ALL_DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN)


def lines(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == name]


def poll_until(consumer: Consumer, so: Callable[[], object]) -> None:
    assert eventually(lambda: consumer.poll(0.05) or so()), consumer.stats()


def test_while_brokers_are_down_the_consumer_reports_it_and_its_client_only_logs_at_debug(
    group: Consumergroup, topic: Topic, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    group.offsets.set(topic.ats[0], 0)  # the other partitions ask for their log ends, with another client
    events: list[MemberEvent] = []
    begun = uptime()
    with Consumer(group, [topic.name], kafka=AWAY, on_event=events.append) as consumer:
        poll_until(consumer, lambda: consumer.stats().partitions.keys() == {*topic.ats})
        poll_until(consumer, lambda: len(lines(caplog, "zkgroups.librdkafka")) > MANY)
        poll_until(consumer, lambda: isinstance(consumer.stats().partitions[topic.ats[1]].error, FetchFailedError))
        poll_until(consumer, lambda: [event for event in events if event.detail.endswith("brokers are down")])
    assert {record.levelno for record in lines(caplog, "zkgroups.librdkafka")} == {logging.DEBUG}
    warned = [record.getMessage() for record in lines(caplog, "zkgroups.member") if record.levelno == logging.WARNING]
    unreachable = [text for text in warned if "could not reach the brokers" in text]
    assert 1 <= len(unreachable) <= KINDS * (1 + (uptime() - begun) // fetcher._AGAIN)
    assert [text for text in warned if text.endswith("brokers are down")]
    heard = [event for event in events if event.kind is EventKind.FAILED and not event.at]
    assert 1 <= len(heard) < MANY / 4
    assert capfd.readouterr().err == ""
    assert [found.offset for found in group.offsets if isinstance(found, CommittedOffset)] == [0]


def test_the_users_logger_gets_the_log_of_the_client(
    group: Consumergroup, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    group.offsets.set_many(dict.fromkeys(topic.ats, 0))
    settings: dict[str, Any] = {"bootstrap.servers": AWAY, "logger": logging.getLogger("mine")}
    with Consumer(group, [topic.name], kafka=settings) as consumer:
        poll_until(consumer, lambda: lines(caplog, "mine"))
    assert lines(caplog, "mine")[0].levelno == logging.ERROR
    assert lines(caplog, "zkgroups.librdkafka") == []


# Which errors are reported


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(fetcher, "uptime", found)
    return found


def test_each_kind_of_error_is_reported_once_and_again_after_a_while(clock: Clock) -> None:
    outage = Outage()
    assert [outage.failed(each) for each in (DOWN, DOWN, ALL_DOWN, DOWN)] == [True, False, True, False]
    clock.now += 31
    assert [outage.failed(each) for each in (DOWN, DOWN, ALL_DOWN)] == [True, False, True]


def test_an_outage_ends_with_an_answer_or_after_a_minute_without_errors(clock: Clock) -> None:
    outage = Outage()
    assert not outage.ended(answered=True)
    outage.failed(DOWN)
    assert not outage.ended(answered=False)
    assert outage.ended(answered=True)
    assert not outage.ended(answered=True)
    assert outage.failed(DOWN)  # a new outage is reported at once
    clock.now += 61
    assert outage.ended(answered=False)


P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def committed(group: Consumergroup) -> dict[int, int]:
    return {found.at.partition: found.offset for found in group.offsets if isinstance(found, CommittedOffset)}


def test_an_offset_outside_of_the_log_lets_only_its_partition_stand_still(
    topic: Topic, loop: Loops, group: Consumergroup
) -> None:
    topic.write(10)
    group.offsets.set(topic.ats[0], 5_558)
    mine = loop(topic, out_of_range="error")
    mine.until(lambda: len(mine.messages) == 20, "the other partitions")
    mine.until(lambda: isinstance(_error(mine, topic), CommittedOutOfRangeError), "the error")
    assert mine.errors == []
    mine.until(lambda: [event for event in mine.events if event.kind is EventKind.FAILED], "the event")
    assert [event.at for event in mine.events if event.kind is EventKind.FAILED][-1] == {topic.ats[0]}
    mine.stop()
    assert committed(group) == {0: 5_558, 1: 10, 2: 10}


def _error(mine: object, topic: Topic) -> object:
    partitions = mine.consumer.stats().partitions  # type: ignore[attr-defined]
    return partitions[topic.ats[0]].error if topic.ats[0] in partitions else None


def test_a_damaged_message_is_never_passed_over(
    make_topic: Callable[..., Topic], loop: Loops, group: Consumergroup, legacy_kafka: KafkaBroker
) -> None:
    topic = make_topic(2)
    topic.write(5, 0)
    topic.write(5, 0)
    topic.write(5)
    [segment] = Path(legacy_kafka.data_dir).rglob(f"{topic.name}-0/*.log")
    damaged = _damage_second_batch(segment)
    mine = loop(topic, kafka={"check.crcs": True})
    mine.until(lambda: isinstance(_error(mine, topic), FetchFailedError), "the error")
    mine.until(lambda: len([1 for at, _o, _t in mine.messages if at == topic.ats[1]]) == 5, "the other partition")
    mine.until(lambda: committed(group) == {0: damaged, 1: 5}, "the commit up to the damage")
    assert {offset for at, offset, _text in mine.messages if at == topic.ats[0]} == set(range(damaged))
    assert mine.errors == []


def test_errors_can_be_read_while_another_thread_adds_one() -> None:
    standing, error = StandingPartitions(), FetchFailedError(P0, "no leader")

    class Failure:
        """Another thread adds an error when this one is read."""

        @property
        def error(self) -> FetchFailedError:
            standing.failed(P1, error, 0.0)
            return error

    standing._failures[P0] = Failure()  # type: ignore[assignment]
    assert standing.errors == {P0: error}


def _damage_second_batch(segment: Path) -> int:
    """Change a byte in the second batch of a segment, and return the first offset of that batch."""
    data = segment.read_bytes()
    _first, length = struct.unpack_from(">qi", data)
    second = 12 + length
    offset, length = struct.unpack_from(">qi", data, second)
    with segment.open("r+b") as file:
        file.seek(second + 12 + length - 1)
        file.write(bytes([data[second + 12 + length - 1] ^ 0xFF]))
    return int(offset)
