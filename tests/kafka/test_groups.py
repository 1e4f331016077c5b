"""Kafka's own groups on both brokers: offsets with exact notes, states, deletions, and refusals for live groups."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.waiting import eventually
from zkgroups.core.kafka_values import NativeGroup, NativeOffset, NativeState
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.exceptions import (
    GroupInUseError,
    GroupNotFoundError,
    TooLargeError,
    UnknownPartitionError,
)
from zkgroups.input_errors import InvalidInputError, InvalidNameError, InvalidOptionError
from zkgroups.kafka import BrokerOptions, Brokers
from zkgroups.kafka.requests import commit_offsets
from zkgroups.testing import KafkaBroker

from .conftest import Writer

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

MakeTopic = Callable[..., str]

NAMES = ("a b", "kosten:2024", "größe/日本", " ", "a\nb", "\x01", "x" * 32_000)


@contextmanager
def a_member(broker: KafkaBroker, group: str, topic: str, protocol: str = "classic") -> Iterator[None]:
    """A member of a group, once the group has settled."""
    config = {"bootstrap.servers": broker.address, "group.id": group, "client.id": "anna", "log_level": 0}
    consumer = Consumer(config | {"enable.auto.commit": False, "group.protocol": protocol})
    consumer.subscribe([topic])
    try:
        assert eventually(lambda: consumer.poll(0.1) or consumer.assignment())
        yield
    finally:
        consumer.close()


def _group(brokers: Brokers, name: str) -> NativeGroup:
    found = brokers.groups([name])[name]
    assert isinstance(found, NativeGroup)
    return found


def test_an_offset_can_be_committed_for_any_group_name(brokers: Brokers, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    first, last = TopicPartition(topic, 0), TopicPartition(topic, 2)
    for group in NAMES:
        assert brokers.commit({group: {last: 2**63 - 1, first: 0}}) == {group: {last: None, first: None}}
        found = brokers.committed([group])[group]
        assert {at: offset for at, offset in found.items() if at.topic == topic} == {
            first: NativeOffset(group, first, 0),
            last: NativeOffset(group, last, 2**63 - 1),
        }
        assert _group(brokers, group) == NativeGroup(group, NativeState.EMPTY)
        assert brokers.delete_groups([group]) == {group: None}
        assert _group(brokers, group) == NativeGroup(group, NativeState.DEAD)
        assert brokers.committed([group]) == {group: {}}


@pytest.mark.parametrize("note", ["note", "with a NUL\0", "\0", "ü \n\t\"\\'日本🎉", "{}", "x" * 4096])
def test_metadata_and_leader_epoch_are_restored_exactly(
    brokers: Brokers, broker: KafkaBroker, make_topic: MakeTopic, note: str
) -> None:
    """The old broker stores no leader epochs."""
    at, group = TopicPartition(make_topic(), 0), "notes"
    epoch = None if broker.release == "1.1.1" else 5
    kept = {group: {at: NativeOffset(group, at, 7, note, epoch)}}
    assert brokers.commit(kept) == {group: {at: None}}
    assert brokers.committed([group])[group][at] == kept[group][at]

    brokers.commit({group: {at: 8}})
    assert brokers.committed([group])[group][at] == NativeOffset(group, at, 8)
    brokers.commit(kept)

    assert brokers.committed([group])[group][at] == kept[group][at]


def test_a_note_of_another_client_keeps_its_last_byte(brokers: Brokers, writer: Writer, make_topic: MakeTopic) -> None:
    """confluent_kafka appends a NUL, and removes it when it reads. A Java consumer would see it."""
    at = TopicPartition(make_topic(), 0)
    writer.commit("noted", {(at.topic, 0): 7}, "note")

    assert brokers.committed(["noted"])["noted"][at].metadata == "note\0"


def test_each_partition_has_its_own_outcome_and_unknown_ones_do_not_stop_others(
    brokers: Brokers, make_topic: MakeTopic
) -> None:
    """The old broker by itself would store an offset of a missing partition."""
    known = TopicPartition(make_topic(2), 1)
    beyond, gone, odd = (TopicPartition(known.topic, 2), TopicPartition("no-such-topic", 0), TopicPartition("a b", 0))

    found = brokers.commit({"some": {gone: 1, known: 2, beyond: 3, odd: 4}, "none": {gone: 1}, "empty": {}})

    assert list(found) == ["some", "none", "empty"]
    assert list(found["some"]) == [gone, known, beyond, odd]
    assert found["some"][known] is None
    for at in (gone, beyond, odd):
        error = found["some"][at]
        assert isinstance(error, UnknownPartitionError)
        assert error.at == at
    assert isinstance(found["none"][gone], UnknownPartitionError)
    assert found["empty"] == {}
    assert list(brokers.committed(["some"])["some"]) == [known]


def test_metadata_that_is_too_long_and_groups_that_are_missing_have_typed_errors(
    brokers: Brokers, make_topic: MakeTopic
) -> None:
    at = TopicPartition(make_topic(), 0)
    found = brokers.commit({"long": {at: NativeOffset("long", at, 1, "x" * 4097)}})
    assert isinstance(found["long"][at], TooLargeError)
    assert brokers.committed(["long"]) == {"long": {}}
    assert brokers.groups(["nobody's"]) == {"nobody's": NativeGroup("nobody's", NativeState.DEAD)}
    missing = brokers.delete_groups(["nobody's"])["nobody's"]
    assert isinstance(missing, GroupNotFoundError)
    assert missing.group == "nobody's"


def test_a_live_group_is_refused_with_its_members_and_other_groups_are_written(
    brokers: Brokers, broker: KafkaBroker, make_topic: MakeTopic
) -> None:
    topic, other = make_topic(), make_topic()
    at, unrelated, live = TopicPartition(topic, 0), TopicPartition(other, 0), f"live-{topic}"
    with a_member(broker, live, topic):
        assert eventually(lambda: _group(brokers, live).state is NativeState.STABLE)
        group = _group(brokers, live)
        assert group.in_use
        (member,) = group.members
        assert member.client_id == "anna"
        assert member.id.startswith("anna-")
        assert member.host == "/127.0.0.1"

        found = brokers.commit({live: {at: 5, unrelated: 6}, "quiet": {at: 7}})
        deleted = brokers.delete_groups([live, "quiet"])

        for error in (found[live][at], found[live][unrelated], deleted[live]):
            assert isinstance(error, GroupInUseError)
            assert error.instances == (str(member),)
        assert found["quiet"] == {at: None}
        assert deleted["quiet"] is None
        assert brokers.committed([live]) == {live: {}}

    assert eventually(lambda: _group(brokers, live) == NativeGroup(live, NativeState.EMPTY))
    assert not _group(brokers, live).in_use
    assert brokers.commit({live: {at: 5}}) == {live: {at: None}}


def test_a_group_of_the_new_protocol_is_not_taken_for_a_missing_one(kafka: str, kafka_broker: KafkaBroker) -> None:
    """The request for older groups does not find it."""
    kafka_broker.create_topic("new-protocol")
    at, name = TopicPartition("new-protocol", 0), "a group of the new protocol"
    with Brokers.connect(kafka) as brokers:
        with a_member(kafka_broker, name, at.topic, "consumer"):
            assert eventually(lambda: _group(brokers, name).state is NativeState.STABLE)
            (member,) = _group(brokers, name).members
            assert (member.client_id, member.host) == ("anna", "/127.0.0.1")
            for error in (
                brokers.commit({name: {at: 5}})[name][at],
                brokers.delete_groups([name])[name],
            ):
                assert isinstance(error, GroupInUseError)
                assert error.instances == (str(member),)
            assert isinstance(brokers.delete_offsets({name: [at]})[name][at], GroupInUseError)
        assert eventually(lambda: _group(brokers, name) == NativeGroup(name, NativeState.EMPTY))
        assert brokers.commit({name: {at: 5}}) == {name: {at: None}}
        assert brokers.delete_groups([name]) == {name: None}
        assert _group(brokers, name) == NativeGroup(name, NativeState.DEAD)


def test_more_offsets_than_one_request_can_have_are_all_committed(
    brokers: Brokers, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_offsets, "_MOST_PER_REQUEST", 2)
    topic = make_topic(5)
    wanted = {TopicPartition(topic, number): number for number in range(5)}

    assert brokers.commit({"large": wanted}) == {"large": dict.fromkeys(wanted)}

    assert {at: each.offset for at, each in brokers.committed(["large"])["large"].items()} == wanted


@pytest.mark.parametrize("offset", [-1, 2**63, 1.5, True, "7", None])
def test_an_invalid_offset_is_refused_before_any_request(offset: Any) -> None:
    at, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    with Brokers.connect("127.0.0.1:1") as brokers, pytest.raises(InvalidOptionError, match="offset is"):
        brokers.commit({"billing": {other: 1, at: offset}})


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 32_768, None, b"billing"], ids=lambda it: ascii(it)[:12])
def test_a_name_that_cannot_be_encoded_is_refused(name: Any) -> None:
    with Brokers.connect("127.0.0.1:1") as brokers:
        for call in (brokers.groups, brokers.delete_groups, brokers.committed_or_error, brokers.committed):
            with pytest.raises(InvalidNameError, match="group"):
                call(["billing", name])
        with pytest.raises(InvalidNameError, match="group"):
            brokers.commit({"billing": {TopicPartition("orders", 0): 1}, name: {TopicPartition("orders", 0): 1}})


def test_empty_calls_send_no_request() -> None:
    with Brokers.connect("127.0.0.1:1", timeout=0.1) as brokers:
        for call in (brokers.groups, brokers.delete_groups, brokers.committed_or_error, brokers.committed):
            assert call([]) == {}
        assert (brokers.commit({}), brokers.commit({"billing": {}})) == ({}, {"billing": {}})
        assert (brokers.ranges([]), brokers.offsets_at({}), brokers.partitions([])) == ({}, {}, {})


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (NativeOffset("billing", TopicPartition("orders", 0), -1001), "offset is -1001"),
        (NativeOffset("billing", TopicPartition("orders", 0), 1, leader_epoch=-1), "leader_epoch is -1"),
        (NativeOffset("billing", TopicPartition("orders", 0), 1, "\ud800"), "metadata is"),
        (NativeOffset("billing", TopicPartition("orders", 0), 1, "é" * 16_384), "metadata is"),
        (NativeOffset("other", TopicPartition("orders", 0), 1), "is for orders/0 of group 'other'"),
        (NativeOffset("billing", TopicPartition("orders", 1), 1), "is for orders/1 of group 'billing'"),
    ],
)
def test_an_impossible_commit_is_refused_before_any_request(offset: NativeOffset, words: str) -> None:
    with Brokers.connect("127.0.0.1:1") as brokers, pytest.raises(InvalidInputError, match=words):
        brokers.commit({"billing": {TopicPartition("orders", 0): offset}})


def test_connection_settings_are_pickled_without_secrets(kafka: str, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("client.id=night\nsasl.jaas.config=the s3cret\n")
    options = BrokerOptions(kafka, str(path), timeout=30)
    carried = pickle.dumps(options)

    assert pickle.loads(carried) == options
    with pickle.loads(carried).connect() as brokers:
        assert brokers.partitions(["no-such-topic"]) == {}
        assert "s3cret" not in f"{options!r} {brokers!r} {carried!r}"
    with BrokerOptions(kafka).connect() as brokers:
        assert brokers.partitions(["no-such-topic"]) == {}
