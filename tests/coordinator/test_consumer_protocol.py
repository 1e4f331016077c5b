"""The format of subscriptions and assignments inside of JoinGroup and SyncGroup."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import TopicPartition
from zkgroups.coordinator import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

TOPICS = st.text("abc._-0", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))
PARTITIONS = st.frozensets(st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), max_size=8)
SUBSCRIPTIONS = st.builds(Subscription, st.frozensets(TOPICS, max_size=5), PARTITIONS)


@given(SUBSCRIPTIONS)
def test_a_subscription_is_read_as_it_was_written(subscription: Subscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription


@given(PARTITIONS)
def test_an_assignment_is_read_as_it_was_written(partitions: frozenset[TopicPartition]) -> None:
    assert decode_assignment(encode_assignment(partitions)) == partitions


@given(SUBSCRIPTIONS, st.binary(max_size=30))
def test_fields_of_later_versions_are_ignored(subscription: Subscription, more: bytes) -> None:
    data = struct.pack(">h", 3) + encode_subscription(subscription)[2:] + more
    assert decode_subscription(data) == subscription


def test_a_subscription_of_version_0_owns_nothing() -> None:
    data = struct.pack(">h", 0) + encode_subscription(Subscription(frozenset({"orders"})))[2:-4]
    assert decode_subscription(data) == Subscription(frozenset({"orders"}))


def test_a_subscription_with_a_negative_partition_or_a_wrong_topic_is_malformed() -> None:
    def owning(topic: bytes, *numbers: int) -> bytes:
        name = struct.pack(">ih", 1, len(topic)) + topic
        return b"\0\1" + b"\xff" * 8 + name + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)

    assert decode_subscription(owning(b"t", 3, 1)) == Subscription(
        frozenset(), frozenset({TopicPartition("t", 1), TopicPartition("t", 3)})
    )
    for malformed in (owning(b"t", 3, -1), owning(b"..", 1), owning(b"a/b"), owning(b"t", 3)[:-1]):
        assert decode_subscription(malformed) is None


def test_user_data_is_skipped() -> None:
    data = b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\3abc" + b"\0\0\0\0"
    assert decode_subscription(data) == Subscription(frozenset({"t"}))


def test_null_arrays_are_empty() -> None:
    assert decode_subscription(b"\0\1" + b"\xff" * 4 + b"\xff" * 4 + b"\xff" * 4) == Subscription(frozenset())


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_read_or_malformed(data: bytes) -> None:
    assert decode_subscription(data) is None or isinstance(decode_subscription(data), Subscription)
    assert decode_assignment(data) is None or isinstance(decode_assignment(data), frozenset)


@given(SUBSCRIPTIONS, st.data())
def test_a_subscription_that_was_cut_off_is_malformed(subscription: Subscription, data: st.DataObject) -> None:
    whole = encode_subscription(subscription)
    without_owned = len(encode_subscription(Subscription(subscription.topics))) - 4
    length = data.draw(st.integers(0, len(whole) - 1).filter(lambda length: length != without_owned))
    assert decode_subscription(whole[:length]) is None


def test_version_1_without_owned_partitions_is_read_as_kafka_go_writes_it() -> None:
    data = encode_subscription(Subscription(frozenset({"orders"})))[:-4]
    assert decode_subscription(data) == Subscription(frozenset({"orders"}))


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">hi", 1, 2**31 - 1),  # more topics than bytes
        struct.pack(">hih", 1, 1, -2) + b"\0" * 20,  # a length below zero
        struct.pack(">hihi", 0, 1, 1, -1) + b"\xff",  # not UTF-8
        b"\0\1" + b"\0\0\0\0" + b"\xff" * 4 + b"\0\0\0\1" + b"\0\1/" + b"\0\0\0\1" + b"\0\0\0\0",  # not a topic
        b"\0\1" + b"\0\0\0\0" + b"\xff" * 4 + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\1" + b"\xff" * 4,  # partition -1
    ],
)
def test_hostile_bytes_are_malformed(data: bytes) -> None:
    assert decode_subscription(data) is None


def test_no_bytes_are_an_empty_assignment_but_no_subscription() -> None:
    assert decode_assignment(b"") == frozenset()
    assert decode_subscription(b"") is None
