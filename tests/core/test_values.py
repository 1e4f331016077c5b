"""The values: checked, frozen, ordered and picklable."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.times import from_ms, utc
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import (
    Broker,
    CommittedOffset,
    Dialect,
    ForbiddenNode,
    MalformedNode,
    Owner,
    Pattern,
    Registration,
    Topic,
)

from .strategies import NAMES

AT = TopicPartition("orders", 3)

VALUES = [
    AT,
    Registration({"a": 1, "b": 2}),
    Registration({"a.*": 1}, Pattern.WHITE_LIST, timestamp=from_ms(5), version=2, dialect=Dialect.SCALA),
    MalformedNode("/p", b"\xff", "not UTF-8", session=1, version=2),
    ForbiddenNode("/p", "no permission"),
    Owner(AT, "me", 7, from_ms(8), 9, 10, "/p"),
    CommittedOffset("billing", AT, 5, 1, from_ms(2), from_ms(3), 4),
    OffsetRange(1, 9),
    Topic("orders", (0, 1)),
    Broker(1, "kafka1", 9092, ("PLAINTEXT://kafka1:9092",)),
]


def named(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize("value", VALUES, ids=named)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_value_is_the_same_after_pickling(value: object, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(value, protocol))
    assert again == value
    assert type(again) is type(value)
    assert hash(again) == hash(value)
    assert repr(again) == repr(value)


@pytest.mark.parametrize("value", VALUES, ids=named)
def test_a_value_can_be_copied(value: object) -> None:
    assert copy.copy(value) == copy.deepcopy(value) == value


def fields(value: Any) -> list[str]:
    names = value._fields if isinstance(value, TopicPartition) else (field.name for field in dataclasses.fields(value))
    return list(names)


@pytest.mark.parametrize("value", VALUES, ids=named)
def test_a_value_cannot_be_changed(value: object) -> None:
    for field in fields(value):
        with pytest.raises(AttributeError):  # also the base of dataclasses.FrozenInstanceError
            setattr(value, field, getattr(value, field))
    assert not hasattr(value, "__dict__")


def another(value: object, field: str) -> object:
    """Return a different value for a field."""
    match getattr(value, field):
        case TopicPartition():
            return TopicPartition("other", 99)
        case Pattern():
            return Pattern.BLACK_LIST
        case Dialect():
            return Dialect.KAZOO_GO
        case str():
            return "other"
        case _ if field == "streams":
            return {"other": 9}
    return 99


@pytest.mark.parametrize("value", VALUES, ids=named)
def test_two_values_differ_when_one_field_does(value: Any) -> None:
    change = value._replace if isinstance(value, TopicPartition) else partial(dataclasses.replace, value)
    for field in fields(value):
        assert change(**{field: another(value, field)}) != value, field


def test_a_registration_keeps_its_own_streams() -> None:
    streams = {"a": 1}
    registration = Registration(streams)
    streams["b"] = 2
    assert registration.streams == {"a": 1}
    with pytest.raises(TypeError):
        registration.streams["b"] = 2  # type: ignore[index]


def test_the_order_of_topics_does_not_matter_to_a_registration() -> None:
    assert Registration({"a": 1, "b": 2}) == Registration({"b": 2, "a": 1})
    assert hash(Registration({"a": 1, "b": 2})) == hash(Registration({"b": 2, "a": 1}))


# Partitions


@given(pairs=st.lists(st.tuples(NAMES, st.integers(0, 2**31 - 1))))
def test_partitions_are_ordered_by_topic_and_then_as_numbers(pairs: list[tuple[str, int]]) -> None:
    partitions = [TopicPartition(*pair) for pair in pairs]
    random.shuffle(partitions)
    assert [(at.topic, at.partition) for at in sorted(partitions)] == sorted(pairs)


def test_partition_10_comes_after_9() -> None:
    assert max(TopicPartition("t", 9), TopicPartition("t", 10)).partition == 10


def test_a_partition_is_formatted_as_in_its_path() -> None:
    assert str(AT) == f"{AT}" == "orders/3"


# Matching owners with instances


def owner(id: str) -> Owner:
    return Owner(AT, id, session=7)


@pytest.mark.parametrize(
    ("id", "ids", "expected"),
    [
        ("host:6b1c", {"host:6b1c"}, "host:6b1c"),
        ("g_h-1795255170109-ab12cd34-0", {"g_h-1795255170109-ab12cd34"}, "g_h-1795255170109-ab12cd34"),
        ("g_h-1795255170109-ab12cd34-12", {"g_h-1795255170109-ab12cd34"}, "g_h-1795255170109-ab12cd34"),
        # The eight hex digits may all be decimal. They belong to the id; only a stream number is cut off.
        ("g_h-1795255170109-12345678", {"g_h-1795255170109-12345678"}, "g_h-1795255170109-12345678"),
        ("g_h-1795255170109-12345678-0", {"g_h-1795255170109-12345678"}, "g_h-1795255170109-12345678"),
        ("worker-1", {"worker-1", "worker"}, "worker-1"),
        ("worker-1-0", {"worker-1", "worker"}, "worker-1"),
        ("worker-1", {"worker"}, "worker"),
        ("worker-1-0", {"worker"}, None),
        ("worker", {"worker-1"}, None),
        ("worker-", {"worker"}, None),
        ("worker-x", {"worker"}, None),
        ("worker-٣", {"worker"}, None),
        ("worker-²", {"worker"}, None),
        ("worker_1", {"worker"}, None),
        ("-1", {""}, ""),
        ("1", {"", "2"}, None),
        ("worker", set(), None),
    ],
)
def test_an_owner_matches_an_exact_id_before_an_id_with_a_stream(id: str, ids: set[str], expected: str | None) -> None:
    assert owner(id).instance(ids) == expected
    assert owner(id).instance(frozenset(ids)) == expected
    assert owner(id).instance(dict.fromkeys(ids)) == expected
    assert owner(id).instance(name for name in ids) == expected


@given(id=NAMES, ids=st.sets(NAMES))
def test_an_owner_matches_one_of_the_ids_or_none(id: str, ids: set[str]) -> None:
    found = owner(id).instance(ids)
    assert found is None or (found in ids and id.startswith(found))
    assert (found == id) == (id in ids)


# Texts for messages


def test_an_offset_range_contains_its_end() -> None:
    assert [offset for offset in range(12) if offset in OffsetRange(3, 5)] == [3, 4, 5]


def test_long_data_is_shortened_for_a_message() -> None:
    assert MalformedNode("/p", b"x", "r").shown == "b'x'"
    assert MalformedNode("/p", b"x" * 77, "r").shown == f"b'{'x' * 77}'"
    assert MalformedNode("/p", b"x" * 78, "r").shown == f"b'{'x' * 74}..., 78 bytes"
    shown = MalformedNode("/p", b"x" * 1000, "r").shown
    assert len(shown) < 100
    assert shown.endswith("1000 bytes")


def test_a_holder_is_described_with_session_and_time() -> None:
    assert Owner(AT, "me", 0x1A, from_ms(1795255170109)).holder == "'me' of session 0x1a since 2026-11-21T09:59:30Z"
    assert "/p of session 0x1a (empty)" in MalformedNode("/p", b"", "empty", session=0x1A).holder


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1000, "1969-12-31T23:59:59Z"),
        (1795255170109, "2026-11-21T09:59:30Z"),
        (253402300799000, "9999-12-31T23:59:59Z"),
        (253402300800000, "253402300800000 ms"),
        (2**63 - 1, "9223372036854775807 ms"),
        (-(2**63), "-9223372036854775808 ms"),
        (10**400, "1" + "0" * 400 + " ms"),
    ],
    ids=range(8),
)
def test_a_time_out_of_range_is_formatted_as_a_number(ms: int, shown: str) -> None:
    assert utc(ms) == shown


@given(ms=st.integers())
def test_any_time_can_be_formatted(ms: int) -> None:
    assert utc(ms).endswith(("Z", f"{ms} ms"))
