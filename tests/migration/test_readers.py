"""Tests of the consumers and the judge that the migration tests rely on."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.consumer.scala import Message
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.testing import KafkaBroker

from .legacy import LegacyReader
from .native import NativeReader, NumberedProducer, judge

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
WRITTEN = [Message(A, 0, "0"), Message(B, 0, "1"), Message(A, 1, "2")]


def test_the_judge_accepts_messages_read_once_and_in_order() -> None:
    judge(WRITTEN, WRITTEN[:1], WRITTEN[1:])
    judge(WRITTEN, [WRITTEN[1]], [WRITTEN[0], WRITTEN[2]])


@pytest.mark.parametrize(
    "readings",
    [
        (WRITTEN[:1], WRITTEN[2:]),
        (WRITTEN, WRITTEN[2:]),
        ([WRITTEN[2], WRITTEN[1]], [WRITTEN[0]]),
        (WRITTEN, [Message(A, 2, "3")]),
    ],
    ids=["missing", "twice", "late", "from nowhere"],
)
def test_the_judge_finds_missing_repeated_late_and_unknown_messages(readings: tuple[list[Message], ...]) -> None:
    with pytest.raises(AssertionError, match="orders/"):
        judge(WRITTEN, *readings)


def test_a_legacy_reader_commits_its_messages_and_the_next_one_continues(legacy_kafka: KafkaBroker) -> None:
    group = topic = "readers-1"
    legacy_kafka.create_topic(topic, 3)
    producer = NumberedProducer(topic, 3, legacy_kafka.address)
    producer.write(120)
    with LegacyReader(legacy_kafka, group, topic, count=70) as legacy:
        first = legacy.finish()
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        found = list(registry.group(group).offsets.fetch_all())
    done = Counter(each.at.partition for each in first)
    assert len(done) == 3
    assert {each.at.partition: each.offset for each in found if isinstance(each, CommittedOffset)} == done

    with producer.going_on(), LegacyReader(legacy_kafka, group, topic) as legacy:
        legacy.until_done(80)
        second = legacy.finish()
    producer.write(10)
    left = len(producer.written) - len(first) - len(second)
    with LegacyReader(legacy_kafka, group, topic, count=left) as legacy:
        judge(producer.written, first, second, legacy.finish())

    with NativeReader(legacy_kafka.address, group, topic, 3) as native:
        judge(producer.written, native.do_all())  # it started at the beginning, because the group was not moved
