"""Topics, logs and offsets read from a current broker and from a broker of 1.1."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups.core.kafka_values import NativeOffset, OffsetRange
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.exceptions import UnavailableError
from zkgroups.input_errors import InvalidInputError, InvalidNameError, InvalidOptionError
from zkgroups.kafka import Brokers
from zkgroups.kafka.requests import log_offsets
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Cluster
from zkgroups.testing import KafkaBroker

from .conftest import WIDE, Writer

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

MakeTopic = Callable[..., str]

# In milliseconds. A broker accepts neither old times nor times in the future.
NOON = int(time.time() * 1000) - 3_600_000


def test_partitions_of_topics_are_returned_and_unknown_topics_omitted(brokers: Brokers, make_topic: MakeTopic) -> None:
    one, three = make_topic(1), make_topic(3)

    assert brokers.partitions([three, "no-such-topic", one]) == {three: (0, 1, 2), one: (0,)}
    assert brokers.partitions([]) == {}


def test_without_names_all_topics_are_returned_in_order_including_internal_ones(
    brokers: Brokers, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)

    found = brokers.partitions()

    assert found[topic] == (0, 1)
    assert found["__consumer_offsets"] == (0, 1, 2, 3)
    assert list(found) == sorted(found)


def test_a_recreated_topic_has_another_id_if_the_broker_supports_ids(
    brokers: Brokers, broker: KafkaBroker, writer: Writer, make_topic: MakeTopic
) -> None:
    first, second = make_topic(), make_topic()
    before = brokers.topic_ids([first, second])
    if broker.release == "1.1.1":
        assert before == {}
        return
    assert len({before[first], before[second]}) == 2
    writer.admin.delete_topics([first])[first].result()
    assert eventually(lambda: first not in brokers.partitions())
    assert brokers.topic_ids([first, second]) == {second: before[second]}
    broker.create_topic(first)
    assert brokers.topic_ids([first])[first] not in before.values()


def test_an_empty_partition_starts_and_ends_at_zero(brokers: Brokers, make_topic: MakeTopic) -> None:
    at = TopicPartition(make_topic(), 0)

    assert brokers.ranges([at]) == {at: OffsetRange(0, 0)}


def test_messages_move_the_log_end_and_deletions_the_log_start(
    brokers: Brokers, writer: Writer, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    writer.produce(topic, 0, [NOON] * 5)
    writer.delete_before(topic, 0, 2)

    assert brokers.ranges([TopicPartition(topic, 1), TopicPartition(topic, 0)]) == {
        TopicPartition(topic, 1): OffsetRange(0, 0),
        TopicPartition(topic, 0): OffsetRange(2, 5),
    }


def test_unknown_partitions_have_neither_range_nor_offset_and_do_not_stop_others(
    brokers: Brokers, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    known, beyond, gone = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition("no-such-topic", 0)
    started = time.monotonic()

    assert brokers.ranges([gone, known, beyond]) == {gone: None, known: OffsetRange(0, 0), beyond: None}
    assert brokers.ranges([gone]) == {gone: None}
    assert brokers.offsets_at({gone: NOON, known: NOON, beyond: NOON}) == {gone: None, known: 0, beyond: None}
    assert time.monotonic() - started < 15  # the call does not wait for it


def test_reading_does_not_create_topics(brokers: Brokers) -> None:
    brokers.ranges([TopicPartition("not-made", 0)])

    assert brokers.partitions(["not-made"]) == {}
    assert "not-made" not in brokers.partitions()


def test_topics_with_impossible_names_are_unknown(brokers: Brokers) -> None:
    for name in ("a b", "größe", "x" * 300, "a:b"):
        assert brokers.ranges([TopicPartition(name, 0)]) == {TopicPartition(name, 0): None}


def test_the_offset_at_a_time_is_the_first_not_before_it_or_the_end(
    brokers: Brokers, writer: Writer, make_topic: MakeTopic
) -> None:
    at = TopicPartition(make_topic(), 0)
    writer.produce(at.topic, 0, [NOON, NOON + 1000, NOON + 2000])
    writer.delete_before(at.topic, 0, 1)
    wanted = {-5: 1, 0: 1, NOON: 1, NOON + 1000: 1, NOON + 1001: 2, NOON + 2000: 2, NOON + 2001: 3, 2**62: 3}
    assert {ms: brokers.offsets_at({at: ms})[at] for ms in wanted} == wanted


def test_the_time_of_a_message_is_found(brokers: Brokers, writer: Writer, make_topic: MakeTopic) -> None:
    at, empty = TopicPartition(make_topic(), 0), TopicPartition(make_topic(), 0)
    writer.produce(at.topic, 0, [NOON, NOON + 10_000, NOON + 20_000])
    wanted = {0: NOON, 1: NOON + 10_000, 2: NOON + 20_000}
    gone = TopicPartition("not-made", 0)
    for offset, ms in wanted.items():
        found = brokers.message_times({at: offset, empty: 0, gone: 0}, now_ms=NOON + 60_000)
        assert found == {at: pytest.approx(ms, abs=1000), empty: None, gone: None}


def _between_questions(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Actions of another client between the first answer and the second request."""
    ask, acts = log_offsets._offsets, iter([act])

    async def answered(*asked: Any) -> Any:
        found = await ask(*asked)
        for act in acts:
            act()
        return found

    monkeypatch.setattr(log_offsets, "_offsets", answered)


def test_a_message_written_during_the_call_is_not_skipped(
    brokers: Brokers, writer: Writer, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = TopicPartition(make_topic(), 0)
    writer.produce(at.topic, 0, [NOON])
    _between_questions(monkeypatch, lambda: writer.produce(at.topic, 0, [NOON + 2000]))

    assert brokers.offsets_at({at: NOON + 1000}) == {at: 1}


def test_a_log_that_moves_during_the_call_never_starts_after_its_end(
    brokers: Brokers, writer: Writer, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = TopicPartition(make_topic(), 0)
    writer.produce(at.topic, 0, [NOON])

    def move_on() -> None:
        writer.produce(at.topic, 0, [NOON] * 3)
        writer.delete_before(at.topic, 0, 3)

    _between_questions(monkeypatch, move_on)

    assert brokers.ranges([at]) == {at: OffsetRange(0, 4)}


def test_more_than_a_thousand_partitions_take_few_requests(
    brokers: Brokers, wide_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    exchange = Cluster.exchange

    async def counted(self: Cluster, node: int, key: int, build: Any, **more: Any) -> Any:
        asked.append(key)
        return await exchange(self, node, key, build, **more)

    monkeypatch.setattr(Cluster, "exchange", counted)
    wanted = [TopicPartition(wide_topic, number) for number in range(WIDE)]
    brokers.ranges(wanted)  # a broker that has just created them may let the client ask again
    asked.clear()

    assert brokers.ranges(wanted) == dict.fromkeys(wanted, OffsetRange(0, 0))
    assert asked == [codec.LIST_OFFSETS] * 2
    assert brokers.offsets_at(dict.fromkeys(wanted, NOON)) == dict.fromkeys(wanted, 0)
    assert asked == [codec.LIST_OFFSETS] * 7  # also whether any message has a time, and which logs have any


def test_a_topic_that_was_just_created_is_waited_for(brokers: Brokers, writer: Writer) -> None:
    """A broker lists it before it serves it. All of its partitions are returned."""
    name = f"fresh-{time.monotonic_ns()}"
    writer.create_topic(name, [[1]] * 500)
    assert eventually(lambda: len(brokers.partitions([name]).get(name, ())) == 500, timeout=120)
    wanted = [TopicPartition(name, number) for number in range(500)]

    assert set(brokers.ranges(wanted).values()) == {OffsetRange(0, 0)}


def test_offsets_of_groups_come_with_their_notes(brokers: Brokers, writer: Writer, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    for group, note in (("native billing", "a note"), ("native:kosten", ""), ("größe/日本", "ü")):
        writer.commit(group, {(topic, 2): 7, (topic, 0): 2**62}, note)

    found = brokers.committed(["größe/日本", "nobody's group", "native billing", "native:kosten"])

    # confluent-kafka, which the writer uses, appends a NUL to each note. It is returned unchanged.
    first, last = TopicPartition(topic, 0), TopicPartition(topic, 2)
    assert list(found) == ["größe/日本", "nobody's group", "native billing", "native:kosten"]
    assert found["nobody's group"] == {}
    assert found["native billing"] == {
        first: NativeOffset("native billing", first, 2**62, "a note\0"),
        last: NativeOffset("native billing", last, 7, "a note\0"),
    }
    assert found["größe/日本"][last] == NativeOffset("größe/日本", last, 7, "ü\0")
    assert [each.offset for each in found["native:kosten"].values()] == [2**62, 7]
    assert list(found["native:kosten"]) == [first, last]


def test_many_groups_are_read_in_one_call(brokers: Brokers, writer: Writer, make_topic: MakeTopic) -> None:
    topic = make_topic()
    for number in (0, 99, 100, 499, 500, 699):
        writer.commit(f"many-{topic}-{number}", {(topic, 0): number})
    started = time.monotonic()

    found = brokers.committed(f"many-{topic}-{number}" for number in range(700))

    assert time.monotonic() - started < 15
    assert len(found) == 700
    at = TopicPartition(topic, 0)
    assert [int(name.rpartition("-")[2]) for name, offsets in found.items() if offsets] == [0, 99, 100, 499, 500, 699]
    assert found[f"many-{topic}-499"][at].offset == 499


def test_reading_no_groups_sends_no_request(brokers: Brokers) -> None:
    assert brokers.committed([]) == {}
    assert brokers.ranges([]) == {}
    assert brokers.offsets_at({}) == {}


def test_every_leader_is_queried_and_a_partition_without_a_leader_is_unknown(legacy_kafka: KafkaBroker) -> None:
    first, second = TopicPartition("spread", 0), TopicPartition("spread", 1)
    writer, ends = Writer(legacy_kafka.address), {first: NOON, second: NOON}
    with Brokers.connect(legacy_kafka.address, timeout=30) as brokers:
        with KafkaBroker(release="1.1.1", zookeeper=legacy_kafka.zookeeper, config={"broker.id": "2"}) as other:
            writer.create_topic("spread", [[1], [2]])
            assert eventually(lambda: set(brokers.ranges([first, second]).values()) == {OffsetRange(0, 0)})
            assert brokers.offsets_at(ends) == {first: 0, second: 0}
            other.stop()
        assert eventually(lambda: brokers.ranges([second]) == {second: None})
        started = time.monotonic()

        assert brokers.partitions(["spread"]) == {"spread": (0, 1)}
        assert brokers.ranges([first, second]) == {first: OffsetRange(0, 0), second: None}
        assert brokers.offsets_at(ends) == {first: 0, second: None}
        assert time.monotonic() - started < 15  # the call does not wait for it


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", None, b"billing"])
def test_an_impossible_group_name_is_refused(name: Any) -> None:
    with Brokers.connect("127.0.0.1:1") as brokers, pytest.raises(InvalidNameError, match="group"):
        brokers.committed(["billing", name])


def test_invalid_partitions_and_times_are_refused() -> None:
    at = TopicPartition("orders", 0)
    with Brokers.connect("127.0.0.1:1") as brokers:
        with pytest.raises(InvalidInputError):
            brokers.ranges([("orders", 0)])  # type: ignore[list-item]
        for ms in (1.5, True, "0", 2**63):
            with pytest.raises(InvalidOptionError, match="milliseconds"):
                brokers.offsets_at({at: ms})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("address", "timeout"), [("", 1), (" ", 1), ("127.0.0.1:1", -1), ("127.0.0.1:1", float("nan"))]
)
def test_an_invalid_address_or_timeout_is_refused(address: str, timeout: float) -> None:
    with pytest.raises(InvalidOptionError):
        Brokers.connect(address, timeout=timeout)


def test_a_call_after_close_is_an_error(kafka: str) -> None:
    with Brokers.connect(kafka) as brokers:
        brokers.partitions()

    with pytest.raises(UnavailableError, match="closed"):
        brokers.partitions()
    brokers.close()
