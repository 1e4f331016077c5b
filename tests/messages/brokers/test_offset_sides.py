"""Consumers in ZooKeeper that commit their offsets on the brokers, or on both sides."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.waiting import eventually
from zkgroups import Consumer, Consumergroup, EventKind, Registry, TopicPartition
from zkgroups.core.znodes.values import Side
from zkgroups.exceptions import (
    InvalidOptionError,
    NotConnectedError,
    OutcomeUnknownError,
)
from zkgroups.kafka import Brokers
from zkgroups.messages.broker_offsets import BrokerOffsets
from zkgroups.testing import KafkaBroker

from ..looping import LONGEST, QUICK, Loop, Topic, topic_on
from .conftest import Loops
from .offsets_elsewhere import BOTH, BRIEF, KAFKA, OTHER, details, finished, of, put
from .sides import Sides

# Where offsets are


@pytest.mark.parametrize("options", [*BOTH, KAFKA], ids=of)
def test_offsets_are_committed_where_the_option_says_and_the_next_consumer_begins_there(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    topic.write(20)
    first = loop(topic, **options).until_read(topic.texts)
    first.stop()
    committed = {0: 20, 1: 20, 2: 20}
    assert (sides.zookeeper, sides.kafka) == ({} if options is KAFKA else committed, committed)
    known = set(topic.texts)
    topic.write(5)
    second = loop(topic, **options).until_read(topic.texts - known)
    assert not known & second.texts.keys()
    assert details(second, EventKind.DIFFER) == []


def test_on_brokers_without_zookeeper_offsets_are_committed_too(
    kafka_broker: KafkaBroker, zookeeper_hosts: str, registry: Registry
) -> None:
    topic = topic_on(kafka_broker, f"sides-{zookeeper_hosts.rpartition('/')[2]}", 1)
    topic.write(3)
    group = registry.group(topic.name)
    settings = QUICK | {"bootstrap.servers": kafka_broker.address}
    with Consumer(group, [topic.name], kafka=settings, partitions=lambda _topic: [0], **BOTH[1]) as consumer:
        for _ in range(3):
            assert consumer.poll(LONGEST) is not None
        consumer.commit()
    with Brokers.connect(kafka_broker.address) as brokers:
        sides = Sides(group, registry, brokers)
        assert (sides.zookeeper, sides.kafka) == ({0: 3}, {0: 3})


@pytest.mark.parametrize("options", BOTH, ids=of)
def test_the_truth_is_read_both_numbers_are_reported_and_a_copy_that_is_ahead_does_not_go_back(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    truth, other = options["truth"], OTHER[options["truth"]]
    at = topic.ats[0]
    topic.write(8, 0)
    put(sides, at, **{truth: 4, other: 10})
    mine = loop(topic, **options)
    mine.until(lambda: len(mine.messages) == 4, "the messages from the truth on")
    mine.until(lambda: sides.offsets(Side(truth)) == {0: 8}, "the commit")
    mine.until(lambda: details(mine, EventKind.DIFFER), "the report")  # copies are compared on another thread
    numbers = {truth: 4, other: 10}
    text = f"{at}: {numbers['zookeeper']} in ZooKeeper, {numbers['kafka']} on the brokers"
    [detail] = details(mine, EventKind.DIFFER)
    assert detail == f"{text}; reading those of {'the brokers' if truth == 'kafka' else 'ZooKeeper'}"
    mine.stop()
    assert sides.offsets(Side(other)) == {0: 10}
    topic.write(4, 0)
    again = loop(topic, **options)
    again.until(lambda: len(again.messages) == 4, "the rest")
    again.stop()
    assert (sides.zookeeper, sides.kafka) == ({0: 12}, {0: 12})


@pytest.mark.parametrize("options", BOTH, ids=of)
def test_a_copy_that_is_behind_is_reported_and_brought_up_to_date_without_a_message(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    """It is behind after a crash between the two writes."""
    truth, other = options["truth"], OTHER[options["truth"]]
    topic.write(6)
    for at in topic.ats:
        put(sides, at, **{truth: 6})
    put(sides, topic.ats[1], **{other: 5})
    mine = loop(topic, **options)
    mine.until(lambda: sides.offsets(Side(other)) == {0: 6, 1: 6, 2: 6}, "the copies")
    mine.until(lambda: details(mine, EventKind.DIFFER), "the report")
    [detail] = details(mine, EventKind.DIFFER)
    assert detail.startswith(f"{topic.ats[1]}: ")
    assert mine.messages == []


@pytest.mark.parametrize("options", BOTH, ids=of)
def test_an_offset_outside_of_the_log_goes_back_on_both_sides(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    topic.write(3, 0)
    put(sides, topic.ats[0], **{options["truth"]: 5_000, OTHER[options["truth"]]: 6_000})
    mine = loop(topic, out_of_range="earliest", **options).until_read(topic.texts)
    mine.until(lambda: (sides.zookeeper, sides.kafka) == ({0: 3}, {0: 3}), "the commits")


# The first start on the brokers


@pytest.mark.parametrize("options", [KAFKA, BOTH[1]], ids=of)
def test_the_first_start_on_the_brokers_begins_at_the_offsets_in_zookeeper_and_copies_them(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    topic.write(5)
    put(sides, topic.ats[0], zookeeper=5)
    put(sides, topic.ats[1], zookeeper=2, kafka=4)
    first = loop(topic, initial="zookeeper", **options)
    first.until(lambda: len(first.messages) == 6, "the rest")
    assert sorted(offset for at, offset, _text in first.messages if at == topic.ats[1]) == [4]
    assert sides.kafka[0] == 5
    first.stop()
    assert sides.kafka == {0: 5, 1: 5, 2: 5}


def test_an_offset_in_zookeeper_that_cannot_be_read_is_left_alone_until_it_is_repaired(
    topic: Topic, sides: Sides, loop: Loops, registry: Registry
) -> None:
    topic.write(3)
    registry.client.create(f"/consumers/{sides.group.name}/offsets/{topic.name}/1", b"many", makepath=True)
    mine = loop(topic, initial="zookeeper", reconcile_every=0.2, **KAFKA)
    mine.until(lambda: len(mine.messages) == 6, "the other partitions")
    assert list(mine.consumer.stats().unreadable) == [topic.ats[1]]
    registry.client.set(f"/consumers/{sides.group.name}/offsets/{topic.name}/1", b"2")
    mine.until(lambda: len(mine.messages) == 7, "the repaired partition")
    assert mine.messages[-1][:2] == (topic.ats[1], 2)


def test_without_commits_nothing_is_written_on_either_side(topic: Topic, sides: Sides, loop: Loops) -> None:
    topic.write(3)
    put(sides, topic.ats[0], zookeeper=1)
    put(sides, topic.ats[1], kafka=1)
    before = sides.zookeeper, sides.kafka
    for options in (*BOTH, {**KAFKA, "initial": "zookeeper"}):
        looking = loop(topic, commits=False, **options)
        looking.until(lambda: len(looking.messages) >= 7, "the messages")  # noqa: B023
        looking.stop()
    assert (sides.zookeeper, sides.kafka) == before


# Brokers that do not answer


def test_while_brokers_do_not_answer_commits_in_zookeeper_count_and_their_copies_follow_later(
    topic: Topic, sides: Sides, loop: Loops, legacy_kafka: KafkaBroker
) -> None:
    topic.write(4, 0)
    mine = finished(loop(topic, session=BRIEF, auto_commit_every=None, **BOTH[0]), topic)
    legacy_kafka.suspend()
    try:
        mine.consumer.commit()
        assert sides.zookeeper == {0: 4}
        mine.until(lambda: details(mine, EventKind.FAILED), "the report")
    finally:
        legacy_kafka.resume()
    mine.until(lambda: sides.kafka == {0: 4}, "the copy")


def test_without_the_answer_of_a_broker_a_commit_does_not_count_if_the_truth_is_there(
    topic: Topic, sides: Sides, loop: Loops, legacy_kafka: KafkaBroker
) -> None:
    topic.write(4, 0)
    mine = finished(loop(topic, session=BRIEF, auto_commit_every=None, **BOTH[1]), topic)
    legacy_kafka.suspend()
    try:
        with pytest.raises(OutcomeUnknownError, match="the brokers have not confirmed a commit"):
            mine.consumer.commit()
        assert sides.zookeeper == {0: 4}
    finally:
        legacy_kafka.resume()
    assert eventually(lambda: commits(mine))
    assert sides.kafka == {0: 4}


def commits(loop: Loop) -> bool:
    """Whether the broker answers a commit: it may still be busy with what came while it was suspended.

    If this process stands still for long, its claims are not certain for a moment.
    """
    with suppress(OutcomeUnknownError, NotConnectedError):
        loop.consumer.commit()
        return True
    return False


def test_a_request_that_was_given_up_is_not_sent_later_and_a_late_answer_does_not_end_the_process(
    topic: Topic, sides: Sides, legacy_kafka: KafkaBroker
) -> None:
    """librdkafka itself aborts the process then: an assertion about `eonce->refcnt` fails."""
    at = topic.ats[0]
    brokers = BrokerOffsets({"bootstrap.servers": legacy_kafka.address}, sides.group.name, 1.0)

    def read() -> dict[TopicPartition, int | None] | None:
        with suppress(NotConnectedError):
            return brokers.committed([at])
        return None

    def while_suspended(request: Callable[[], object], error: type[Exception]) -> None:
        legacy_kafka.suspend()
        try:
            with pytest.raises(error):
                request()
        finally:
            legacy_kafka.resume()

    while_suspended(lambda: brokers.commit({at: 4}), OutcomeUnknownError)  # nothing is connected, so it was not sent
    for _ in range(3):
        assert eventually(lambda: read() == {at: None})
        while_suspended(lambda: brokers.committed([at]), NotConnectedError)
    assert eventually(lambda: read() == {at: None})
    brokers.close()


# Options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"offsets": "brokers"}, "offsets is 'brokers', but it must be one of kafka, zookeeper, both"),
        ({"offsets": "both"}, "truth is not given, but with offsets="),
        ({"offsets": "kafka", "truth": "kafka"}, "truth is 'kafka', but it is only for"),
        ({"initial": "zookeeper"}, "initial is 'zookeeper', but it is only for"),
        ({"offsets": "kafka", "initial": "kafka"}, "initial is 'kafka', but it must be zookeeper"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    group: Consumergroup, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        Consumer(group, ["orders"], kafka="127.0.0.1:1", **options)
