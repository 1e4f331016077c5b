"""A partition that cannot be read stands still, and the others go on."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from zkgroups import CommittedOffset, Consumergroup, EventKind, TopicPartition
from zkgroups.exceptions import CommittedOutOfRangeError, FetchFailedError
from zkgroups.messages.fetched_partitions import StandingPartitions
from zkgroups.testing import KafkaBroker

from ..looping import Topic
from .conftest import Loops

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
