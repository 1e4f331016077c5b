"""Rule 6: invalid names are refused before any I/O, and valid names are never changed. And the values of nodes."""

from __future__ import annotations

import copy
import pickle
import random
import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import (
    Broker,
    CommittedOffset,
    Dialect,
    ForbiddenNode,
    MalformedNode,
    Owner,
    Pattern,
    Registration,
    Topic,
    TopicPartition,
)
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.times import from_ms, utc
from zkgroups.core.znodes.paths import GroupPaths, broker_topic, parent
from zkgroups.core.znodes.topic_partition import (
    MAX_NAME_BYTES,
    MAX_PARTITION,
    check_group,
    check_instance,
    check_name,
    check_partition,
    check_topic,
    parse_partition,
)
from zkgroups.exceptions import InvalidNameError

from ..groups import PATHS
from ..strategies import NAMES

CHECKS = {"group": check_group, "topic": check_topic, "instance": check_instance}
EVERY_CHECK = pytest.mark.parametrize("kind", CHECKS)
REFUSED = {
    "empty": "",
    "a slash": "a/ids",
    "only a slash": "/",
    "a slash in front": "/a",
    "a slash at the end": "a/",
    "this directory": ".",
    "the directory above": "..",
    "NUL": "a\x00",
    "a newline": "a\nb",
    "escape": "\x1b[2J",
    "C1 control": "\x85",
    "half of a character": "\ud800",
    "the other half": "a\udfff",
    "private use": "\ue000",
    "replacement character": "\ufffd",
    "beyond the basic plane": "\U0001f600",
    "too long": "a" * (MAX_NAME_BYTES + 1),
    "too long in bytes, not in letters": "é" * (MAX_NAME_BYTES // 2 + 1),
}
CARRIED = {
    "spaces": " a  b ",
    "kazoo-go's id": "host:6b1c0f4e-8f7b-4f8e-9a53-0d3c6a0a7c11",
    "not ASCII": "größe",
    "composed": unicodedata.normalize("NFC", "é"),
    "decomposed": unicodedata.normalize("NFD", "é"),
    "three dots": "...",
    "the server's own name": "zookeeper",
    "a slash that is encoded": "%2F",
    "a slash that only looks like one": "a∕b⁄c",
    "right to left": "אבג\u202e",
    "no width": "a\u200b\ufeff",
    "blanks": "\u00a0\u2028",
    "our own directories": "ids",
    "pykafka's topic": "b't6'",
    "quotes": "\"'`\\",
    "as long as can be": "a" * MAX_NAME_BYTES,
    "a number": "0",
}


@EVERY_CHECK
def test_rule_6_a_name_that_cannot_be_a_znode_is_refused(kind: str) -> None:
    for name in REFUSED.values():
        with pytest.raises(InvalidNameError, match=f" cannot be an? {kind} (name|id): it ") as caught:
            CHECKS[kind](name)
        assert caught.value.kind == kind
        assert str(caught.value).isprintable()
        assert len(str(caught.value).encode()) < 800
    for value in (None, 5, True, 1.5, b"billing", ["a"], ("a",), object()):
        with pytest.raises(InvalidNameError, match="is not text"):
            CHECKS[kind](value)


@EVERY_CHECK
def test_a_name_that_zookeeper_allows_is_unchanged(kind: str) -> None:
    for name in CARRIED.values():
        assert CHECKS[kind](name) == name
        assert GroupPaths(name).root == "/consumers/" + name
        assert TopicPartition(name, 0).topic == name


def refused_by_zookeeper(point: int) -> bool:
    """The ranges that org.apache.zookeeper.common.PathUtils refuses, over UTF-16."""
    return point <= 0x1F or 0x7F <= point <= 0x9F or 0xD800 <= point <= 0xF8FF or point >= 0xFFF0


def test_every_character_is_refused_exactly_when_zookeeper_refuses_it() -> None:
    for point in (*range(0x10000), 0x10000, 0x1F600, 0xE0000, sys.maxunicode):
        if chr(point) in "./":
            continue
        try:
            check_name("group", chr(point))
        except InvalidNameError:
            assert refused_by_zookeeper(point), hex(point)
        else:
            assert not refused_by_zookeeper(point), hex(point)


@given(name=st.text(max_size=20) | st.text("./\n ab", max_size=6))
def test_rule_6_any_name_is_refused_or_is_exactly_one_path_component(name: str) -> None:
    try:
        path = GroupPaths(name).root
    except InvalidNameError:
        return
    assert path.split("/") == ["", "consumers", name]
    path.encode()


@given(group=NAMES, topic=NAMES, instance=NAMES, partition=st.integers(0, MAX_PARTITION))
def test_rule_6_a_path_splits_into_its_names(group: str, topic: str, instance: str, partition: int) -> None:
    paths, at = GroupPaths(group), TopicPartition(topic, partition)
    assert paths.instance(instance).split("/") == ["", "consumers", group, "ids", instance]
    assert paths.owner(at).split("/") == ["", "consumers", group, "owners", topic, str(partition)]
    assert paths.offset(at).split("/") == ["", "consumers", group, "offsets", topic, str(partition)]
    assert paths.owned_topic(topic).split("/") == ["", "consumers", group, "owners", topic]
    assert paths.offset_topic(topic).split("/") == ["", "consumers", group, "offsets", topic]
    assert broker_topic(topic).split("/") == ["", "brokers", "topics", topic]
    assert parent(paths.owner(at)) == paths.owned_topic(topic)
    assert parent(paths.instance(instance)) == paths.ids


@pytest.mark.parametrize("path", [PATHS.instance, PATHS.owned_topic, PATHS.offset_topic, broker_topic, GroupPaths])
def test_rule_6_invalid_names_never_become_a_path(path: Callable[[Any], object]) -> None:
    for name in ("", "a/b", "..", "\x00", None):
        with pytest.raises(InvalidNameError):
            path(name)


def test_rule_6_a_partition_outside_java_s_int_or_of_an_invalid_topic_is_refused() -> None:
    for topic in ("", "a/b", "..", "\ud800", None, 5):
        with pytest.raises(InvalidNameError, match=r" cannot be a topic name: it "):
            TopicPartition(topic, 0)  # type: ignore[arg-type]
    for number in (-1, 2**31, 10**5000, True, False, 1.0, "1", None, b"1"):
        for make in (check_partition, lambda number: TopicPartition("orders", number)):
            with pytest.raises(InvalidNameError, match=r" cannot be a partition: it is not "):
                make(number)  # type: ignore[arg-type]
    assert [check_partition(number) for number in (0, 2**31 - 1)] == [0, 2**31 - 1]


@given(number=st.integers(0, MAX_PARTITION), name=st.text(max_size=12) | st.text("0123456789+-٣ ", max_size=11))
def test_only_the_canonical_name_of_a_partition_is_parsed(number: int, name: str) -> None:
    assert parse_partition(str(number)) == number
    partition = parse_partition(name)
    assert partition is None or str(check_partition(partition)) == name


def test_a_name_that_is_not_a_partition_parses_to_none() -> None:
    words = ["00", "01", "+1", "-1", "-0", "1.0", "1_0", "0x1", "1e3", "٣", "1٣", "１", "²", "2147483648"]
    for name in ("", " 1", "1 ", "1\n", "9" * 5000, *words):
        assert parse_partition(name) is None, name


# Values

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


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_the_same_after_pickling_and_copying(value: Any) -> None:
    pickled = [pickle.loads(pickle.dumps(value, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in (*pickled, copy.copy(value), copy.deepcopy(value)):
        assert (again, type(again), hash(again), repr(again)) == (value, type(value), hash(value), repr(value))


def test_a_registration_keeps_its_own_streams_whose_order_does_not_matter() -> None:
    streams = {"a": 1, "b": 2}
    registration, other = Registration(streams), Registration({"b": 2, "a": 1})
    assert (registration, hash(registration)) == (other, hash(other))
    streams["b"] = 3
    assert registration.streams == {"a": 1, "b": 2}
    with pytest.raises(TypeError):
        registration.streams["b"] = 2  # type: ignore[index]


@given(pairs=st.lists(st.tuples(NAMES, st.integers(0, 2**31 - 1))))
def test_partitions_are_ordered_by_topic_and_then_as_numbers(pairs: list[tuple[str, int]]) -> None:
    partitions = [TopicPartition(*pair) for pair in pairs]
    random.shuffle(partitions)
    assert [(at.topic, at.partition) for at in sorted(partitions)] == sorted(pairs)


@pytest.mark.parametrize(
    ("id", "ids", "expected"),
    [
        ("host:6b1c", {"host:6b1c"}, "host:6b1c"),
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
    owner = Owner(AT, id, session=7)
    assert [owner.instance(each) for each in (ids, dict.fromkeys(ids), iter(ids))] == [expected] * 3


@given(id=NAMES, ids=st.sets(NAMES))
def test_an_owner_matches_one_of_the_ids_or_none(id: str, ids: set[str]) -> None:
    found = Owner(AT, id, session=7).instance(ids)
    assert found is None or (found in ids and id.startswith(found))
    assert (found == id) == (id in ids)


def test_an_offset_range_contains_its_end() -> None:
    assert [offset for offset in range(12) if offset in OffsetRange(3, 5)] == [3, 4, 5]


def test_long_data_is_shortened_for_a_message() -> None:
    shown = {b"x": "'x'", b"\xff": r"b'\xff'", b"x" * 78: f"'{'x' * 78}'", b"x" * 79: f"'{'x' * 75}..., 79 bytes"}
    assert {data: MalformedNode("/p", data, "r").shown for data in shown} == shown
    assert len(MalformedNode("/p", b"x" * 1000, "r").shown) < 100


def test_a_holder_is_described_with_session_and_time() -> None:
    assert Owner(AT, "me", 0x1A, from_ms(1795255170109)).holder == "'me' of session 0x1a since 2026-11-21T09:59:30Z"
    assert "/p of session 0x1a (empty)" in MalformedNode("/p", b"", "empty", session=0x1A).holder


@given(ms=st.integers())
def test_any_time_can_be_formatted(ms: int) -> None:
    assert utc(ms).endswith(("Z", f"{ms} ms"))
