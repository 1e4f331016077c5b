"""`zkgroups offsets reset` with real brokers: targets for which brokers are needed, and log ranges."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.testing import KafkaBroker

from .conftest import Zkgroups

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]

BEGINNING = 1769860800000
"""2026-01-31T12:00:00Z, the time of the first message. One more follows every minute."""


@pytest.fixture(scope="module")
def topic(kafka_broker: KafkaBroker) -> str:
    """Partition 0 has the messages 2 to 9, partition 1 the messages 0 to 4, and partition 2 none."""
    name = f"orders-{uuid4().hex}"
    kafka_broker.create_topic(name, 3)
    producer = Producer({"bootstrap.servers": kafka_broker.address, "log_level": 0})
    for partition, messages in ((0, 10), (1, 5)):
        for number in range(messages):
            producer.produce(name, b"message", partition=partition, timestamp=BEGINNING + number * 60_000)
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": kafka_broker.address, "log_level": 0})
    for future in admin.delete_records([KafkaPartition(name, 0, 2)]).values():
        future.result(30)
    return name


@pytest.fixture
def invoices(registry: Registry, topic: str) -> Any:
    """A group that has read 5 messages of partition 0, and has another offset in partition 1."""
    group = registry.group("invoices")
    group.offsets.set_many({TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 100})
    return group


@pytest.fixture
def reset(zkgroups: Zkgroups, kafka: str, invoices: Any) -> Any:
    """The changes of the command: the old and the new offset of each partition."""

    def reset(*arguments: str, code: int = 0) -> dict[int, tuple[int | None, int | None, str | None]]:
        ended = zkgroups("-b", kafka, "offsets", "reset", "invoices", "-o", "json", *arguments)
        assert ended.code == code, ended
        return {row["partition"]: (row["old"], row["new"], row["note"]) for row in ended.json["changes"]}

    return reset


@pytest.mark.parametrize(
    ("target", "zero", "one"),
    [
        (("--to-earliest",), 2, 0),
        (("--to-latest",), 10, 5),
        (("--to-datetime", "2026-01-31T13:03:00.001+01:00"), 4, 4),
        (("--by-duration", "PT0S", "--forward"), 10, 5),
        (("--to-current",), 5, 100),
    ],
)
def test_offsets_move_to_the_targets_computed_by_the_brokers(
    reset: Any, invoices: Any, topic: str, target: tuple[str, ...], zero: int, one: int
) -> None:
    expected = {0: (5, zero, None), 1: (100, one, None)}
    assert reset("--all-topics", *target) == expected
    assert reset("--all-topics", *target, "--execute") == expected
    assert {each.at.partition: each.offset for each in invoices.offsets if isinstance(each, CommittedOffset)} == {
        0: zero,
        1: one,
    }


def test_a_time_moves_offsets_forward_past_unread_messages_only_with_forward(
    reset: Any, zkgroups: Zkgroups, kafka: str, invoices: Any, topic: str
) -> None:
    def there() -> set[int]:
        return {each.offset for each in invoices.offsets}

    invoices.offsets.reset({TopicPartition(topic, 1): 3})
    to = ("--all-topics", "--to-datetime", "2026-01-31T12:07:00.000")
    assert reset(*to, "--execute", code=4) == {0: (5, 7, "would go forward"), 1: (3, 5, "would go forward")}
    assert there() == {5, 3}
    ended = zkgroups("-b", kafka, "offsets", "reset", "invoices", *to)
    assert (
        "group 'invoices': 2 offsets are left unchanged: would go forward; --forward allows it, and skips messages"
        in ended.err
    )

    to = ("--all-topics", "--to-datetime", "2026-01-31T12:03:30.000", "--execute")
    assert reset(*to, code=9) == {0: (5, 4, None), 1: (3, 4, "would go forward")}
    assert there() == {4, 3}


def test_a_selected_topic_includes_partitions_without_offsets(reset: Any, topic: str) -> None:
    assert reset("--topic", topic, "--to-earliest")[2] == (None, 0, None)
    assert reset("--topic", topic, "--to-current") == {0: (5, 5, None), 1: (100, 100, None), 2: (None, 0, None)}
    assert set(reset("--topic", f"{topic}:2", "--to-latest", "--execute")) == {2}
    assert set(reset("--all-topics", "--to-latest")) == {0, 1, 2}


def test_partitions_unknown_to_the_brokers_stay_unchanged_and_are_reported(
    reset: Any, zkgroups: Zkgroups, kafka: str, invoices: Any, topic: str
) -> None:
    invoices.offsets.set(TopicPartition("gone", 9), 7)
    assert reset("--all-topics", "--to-latest", "--execute", code=9)[9] == (7, None, "log unknown")
    assert invoices.offsets.fetch(TopicPartition("gone", 9)).offset == 7
    assert reset("--topic", "gone", "--to-offset", "0", code=4) == {9: (7, None, "log unknown")}
    assert reset("--topic", f"{topic}:77", "--to-earliest", code=4) == {77: (None, None, "log unknown")}


def test_an_offset_outside_the_log_is_set_only_with_force(
    zkgroups: Zkgroups, kafka: str, invoices: Any, topic: str
) -> None:
    def put(partition: int, offset: int, *more: str) -> tuple[int, str]:
        ended = zkgroups("-b", kafka, "offsets", "set", "invoices", topic, str(partition), str(offset), *more)
        return ended.code, ended.err

    code, said = put(1, 6, "--backward")
    assert code == 4
    assert f"offset 6 of {topic}/1 is outside 0 to 5: choose an offset in this range" in said
    assert put(0, 1, "--backward")[0] == 4
    code, said = put(3, 0)
    assert (code, f"the brokers have no partition {topic}/3" in said) == (3, True)
    assert put(0, 10)[0] == 0
    assert put(0, 11, "--force")[0] == 0
