"""Topics, logs and offsets read from a current broker and from a broker of 1.1."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.waiting import eventually
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.exceptions import UnavailableError
from zkgroups.input_errors import InvalidInputError, InvalidOptionError
from zkgroups.kafka import Brokers
from zkgroups.kafka.requests import log_offsets
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Cluster
from zkgroups.testing import KafkaBroker

from .conftest import Writer

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

MakeTopic = Callable[..., str]

# In milliseconds. A broker accepts neither old times nor times in the future.
NOON = int(time.time() * 1000) - 3_600_000


def test_partitions_of_topics_are_returned_and_unknown_topics_omitted(brokers: Brokers, make_topic: MakeTopic) -> None:
    one, three = make_topic(1), make_topic(3)
    assert brokers.partitions([three, "no-such-topic", one]) == {three: (0, 1, 2), one: (0,)}
    everything = brokers.partitions()
    assert (everything[three], everything["__consumer_offsets"]) == ((0, 1, 2), (0, 1, 2, 3))
    assert list(everything) == sorted(everything)
    assert brokers.cluster_id()


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


def test_unknown_partitions_have_neither_range_nor_offset_and_are_not_created(
    brokers: Brokers, make_topic: MakeTopic
) -> None:
    """The call does not wait for them."""
    topic = make_topic()
    known, beyond = TopicPartition(topic, 0), TopicPartition(topic, 1)
    strange = [TopicPartition(name, 0) for name in ("no-such-topic", "a b", "größe", "a:b", "x" * 300, "x" * 40_000)]
    unknown = dict.fromkeys([beyond, *strange])
    assert brokers.ranges([*unknown, known]) == unknown | {known: OffsetRange(0, 0)}
    assert brokers.offsets_at(dict.fromkeys([*unknown, known], NOON)) == unknown | {known: 0}
    assert "no-such-topic" not in brokers.partitions()


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


def test_many_partitions_take_few_requests(
    brokers: Brokers, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    exchange = Cluster.exchange

    async def counted(self: Cluster, node: int, key: int, build: Any, **more: Any) -> Any:
        asked.append(key)
        return await exchange(self, node, key, build, **more)

    monkeypatch.setattr(Cluster, "exchange", counted)
    topic = make_topic(20)
    wanted = [TopicPartition(topic, number) for number in range(20)]
    brokers.ranges(wanted)  # a broker that has just created them may let the client ask again
    asked.clear()

    assert brokers.ranges(wanted) == dict.fromkeys(wanted, OffsetRange(0, 0))
    assert asked == [codec.LIST_OFFSETS] * 2
    assert brokers.offsets_at(dict.fromkeys(wanted, NOON)) == dict.fromkeys(wanted, 0)
    assert asked == [codec.LIST_OFFSETS] * 7  # also whether any message has a time, and which logs have any


def test_a_topic_that_was_just_created_is_waited_for(brokers: Brokers, writer: Writer) -> None:
    """A broker lists it before it serves it. All of its partitions are returned."""
    name = f"fresh-{time.monotonic_ns()}"
    writer.create_topic(name, [[1]] * 50)
    assert eventually(lambda: len(brokers.partitions([name]).get(name, ())) == 50)
    wanted = [TopicPartition(name, number) for number in range(50)]

    assert set(brokers.ranges(wanted).values()) == {OffsetRange(0, 0)}


def test_every_leader_is_queried_and_a_partition_without_a_leader_is_unknown(legacy_kafka: KafkaBroker) -> None:
    first, second = TopicPartition("spread", 0), TopicPartition("spread", 1)
    ends = {first: NOON, second: NOON}
    with Writer(legacy_kafka.address) as writer, Brokers.connect(legacy_kafka.address, timeout=30) as brokers:
        with KafkaBroker(release="1.1.1", zookeeper=legacy_kafka.zookeeper, config={"broker.id": "2"}) as other:
            writer.create_topic("spread", [[1], [2]])
            assert eventually(lambda: set(brokers.ranges([first, second]).values()) == {OffsetRange(0, 0)})
            assert brokers.offsets_at(ends) == {first: 0, second: 0}
            other.stop()
        assert eventually(lambda: brokers.ranges([second]) == {second: None})
        assert brokers.partitions(["spread"]) == {"spread": (0, 1)}
        assert brokers.ranges([first, second]) == {first: OffsetRange(0, 0), second: None}
        assert brokers.offsets_at(ends) == {first: 0, second: None}


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
