"""Rule 6: invalid names are refused before any I/O, and valid names are never changed."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.znodes.names import (
    MAX_NAME_BYTES,
    MAX_PARTITION,
    check_group,
    check_instance,
    check_name,
    check_partition,
    check_topic,
    parse_partition,
)
from zkgroups.core.znodes.paths import GroupPaths, broker_topic, join, parent
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.exceptions import InvalidNameError

from .strategies import NAMES

CHECKS = [check_group, check_topic, check_instance]

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
    "unit separator": "\x1f",
    "delete": "\x7f",
    "C1 control": "\x85",
    "the last C1 control": "\x9f",
    "half of a character": "\ud800",
    "the other half": "a\udfff",
    "private use": "\ue000",
    "the last of private use": "\uf8ff",
    "specials": "\ufff0",
    "replacement character": "\ufffd",
    "no character": "\uffff",
    "beyond the basic plane": "\U0001f600",
    "the last character there is": "\U0010ffff",
    "too long": "a" * (MAX_NAME_BYTES + 1),
    "too long in bytes, not in letters": "é" * (MAX_NAME_BYTES // 2 + 1),
}

NOT_TEXT = [None, 5, True, 1.5, b"billing", ["a"], ("a",), pytest.param(object(), id="an object")]

CARRIED = {
    "spaces": " a  b ",
    "a colon": "host:9092",
    "kazoo-go's id": "host:6b1c0f4e-8f7b-4f8e-9a53-0d3c6a0a7c11",
    "not ASCII": "größe",
    "composed": unicodedata.normalize("NFC", "é"),
    "decomposed": unicodedata.normalize("NFD", "é"),
    "three dots": "...",
    "dots around": "..a..",
    "the server's own name": "zookeeper",
    "a slash that is encoded": "%2F",
    "a slash that only looks like one": "a∕b⁄c",
    "look-alikes": "оrders",
    "right to left": "אבג\u202e",
    "no width": "a\u200b\ufeff",
    "no-break space": "\u00a0",
    "a line separator": "a\u2028b",
    "our own directories": "ids",
    "pykafka's topic": "b't6'",
    "a back slash": "a\\b",
    "quotes": "\"'`",
    "the last before the halves": "\ud7ff",
    "the first after private use": "\uf900",
    "the last before the specials": "\uffef",
    "as long as can be": "a" * MAX_NAME_BYTES,
    "a number": "0",
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED.keys())
def test_rule_6_a_name_that_cannot_be_a_znode_is_refused(check: Callable[[object], str], name: str) -> None:
    kind = check.__name__.removeprefix("check_")
    with pytest.raises(InvalidNameError, match=f"^{kind} ") as caught:
        check(name)
    assert caught.value.kind == kind
    str(caught.value).encode()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", NOT_TEXT, ids=repr)
def test_rule_6_a_name_that_is_not_text_is_refused(check: Callable[[object], str], name: object) -> None:
    with pytest.raises(InvalidNameError, match="is not text"):
        check(name)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", CARRIED.values(), ids=CARRIED.keys())
def test_a_name_that_zookeeper_allows_is_unchanged(check: Callable[[object], str], name: str) -> None:
    assert check(name) == name
    assert GroupPaths(name).root == "/consumers/" + name
    assert TopicPartition(name, 0).topic == name


def test_composed_and_decomposed_names_are_two_names() -> None:
    assert GroupPaths("\u00e9").root != GroupPaths("e\u0301").root


def refused_by_zookeeper(point: int) -> bool:
    """The ranges that org.apache.zookeeper.common.PathUtils refuses, over UTF-16."""
    return point <= 0x1F or 0x7F <= point <= 0x9F or 0xD800 <= point <= 0xF8FF or point >= 0xFFF0


def test_every_character_is_refused_exactly_when_zookeeper_refuses_it() -> None:
    for point in (*range(0x10000), 0x10000, 0x1F600, 0xE0000, sys.maxunicode):
        character = chr(point)
        if character in "./":
            continue
        try:
            check_name("group", character)
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


PATHS = GroupPaths("billing")


@pytest.mark.parametrize("name", ["", "a/b", "..", "\x00", None])
@pytest.mark.parametrize("path", [PATHS.instance, PATHS.owned_topic, PATHS.offset_topic, broker_topic, GroupPaths])
def test_rule_6_invalid_names_never_become_a_path(path: Callable[[Any], object], name: Any) -> None:
    with pytest.raises(InvalidNameError):
        path(name)


@pytest.mark.parametrize("topic", ["", "a/b", "..", "\ud800", None, 5])
def test_rule_6_a_partition_of_an_invalid_topic_is_refused(topic: Any) -> None:
    with pytest.raises(InvalidNameError, match=r"^topic "):
        TopicPartition(topic, 0)


@pytest.mark.parametrize("partition", [-1, 2**31, pytest.param(10**5000, id="huge"), True, False, 1.0, "1", None, b"1"])
def test_rule_6_a_partition_outside_java_s_int_is_refused(partition: Any) -> None:
    for make in (check_partition, lambda number: TopicPartition("orders", number)):
        with pytest.raises(InvalidNameError, match=r"^partition "):
            make(partition)


@pytest.mark.parametrize("partition", [0, 1, 2**31 - 1])
def test_a_partition_within_java_s_int_is_accepted(partition: int) -> None:
    assert check_partition(partition) == partition


@given(partition=st.integers(0, MAX_PARTITION))
def test_a_partition_name_is_parsed(partition: int) -> None:
    assert parse_partition(str(partition)) == partition


@pytest.mark.parametrize(
    "name",
    [
        "",
        "00",
        "01",
        "007",
        "+1",
        "-1",
        "-0",
        " 1",
        "1 ",
        "1\n",
        "1.0",
        "1_0",
        "0x1",
        "1e3",
        "٣",
        "1٣",
        "１",
        "²",
        "2147483648",
        "9" * 5000,
    ],
)
def test_a_name_that_is_not_a_partition_parses_to_none(name: str) -> None:
    assert parse_partition(name) is None


@given(name=st.text(max_size=12) | st.text("0123456789+-٣ ", max_size=11))
def test_only_the_canonical_name_of_a_partition_is_parsed(name: str) -> None:
    partition = parse_partition(name)
    assert partition is None or str(check_partition(partition)) == name


def test_the_root_is_its_own_parent() -> None:
    assert parent("/a/b") == "/a"
    assert parent("/a") == parent("/") == "/"
    assert join("/", "a", "b") == "/a/b"
    assert join("/a") == "/a"
