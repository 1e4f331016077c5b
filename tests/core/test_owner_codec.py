"""The format of owner nodes, compared with models of the old clients."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.znodes.owner_codec import decode_owner, decode_owner_path, encode_owner
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import (
    Owner,
)
from zkgroups.exceptions import InvalidNameError, InvalidOptionError

from . import old_clients
from .assertions import malformed
from .old_clients import INT
from .strategies import NAMES, TOPICS

T6_3 = TopicPartition("t6", 3)


@given(instance=NAMES)
def test_kazoo_go_recognizes_its_encoded_owner(instance: str) -> None:
    data = encode_owner(instance)
    assert old_clients.kazoo_go_owns(instance, data)
    assert decode_owner("/p", T6_3, data, session=7) == Owner(T6_3, instance, 7, path="/p")


@pytest.mark.parametrize("stream", ["0", -1, True, 1.0, 2**31])
def test_a_stream_that_members_could_not_read_is_refused(stream: Any) -> None:
    with pytest.raises(InvalidOptionError, match="stream is"):
        encode_owner("h:1", stream)


@given(instance=NAMES, stream=st.integers(0, 99))
def test_scala_recognizes_the_instance_of_an_encoded_stream(instance: str, stream: int) -> None:
    data = f"{instance}-{stream}".encode()
    owner = decode_owner("/p", T6_3, data, session=7)
    assert isinstance(owner, Owner)
    assert owner.instance({instance}) == instance == old_clients.scala_owner(data)


def test_a_decoded_owner_has_all_fields_of_its_node() -> None:
    owner = decode_owner("/p", T6_3, b"g_h-1795255170109-ab12cd34-0", session=7, claimed_ms=8, version=9, czxid=10)
    assert owner == Owner(T6_3, "g_h-1795255170109-ab12cd34-0", 7, 8, 9, 10, "/p")


@pytest.mark.parametrize("data", [b"", None, b"\xff", b"a/b", b"..", b"a\nb", "\U0001f600".encode()])
def test_an_owner_with_an_invalid_id_is_malformed(data: bytes | None) -> None:
    malformed(decode_owner("/p", T6_3, data, session=7), "/p", data or b"")


def test_an_owner_without_a_session_is_malformed() -> None:
    assert "session" in malformed(decode_owner("/p", T6_3, b"me", session=0), "/p", b"me")


def test_an_owner_without_a_partition_is_malformed() -> None:
    assert "partition" in malformed(decode_owner("/p", None, b"me", session=7), "/p", b"me")


@pytest.mark.parametrize("instance", ["", "a/b", ".", "\ud800", None, 5, b"me"])
def test_an_invalid_id_is_not_encoded_as_an_owner(instance: Any) -> None:
    with pytest.raises(InvalidNameError, match="instance"):
        encode_owner(instance)


@pytest.mark.parametrize(
    ("topic", "name", "expected"),
    [
        ("t6", "3", T6_3),
        ("b't6'", "1001-3", T6_3),
        ('b"t6"', "0-3", T6_3),
        ("b't6'", "-1-3", T6_3),
        ("t6", "1001-3", T6_3),
        ("b't6'", "3", T6_3),
        ("b't6\"", "3", TopicPartition("b't6\"", 3)),
        ("b'a b'", "3", TopicPartition("b'a b'", 3)),
        ("b''", "3", TopicPartition("b''", 3)),
        ("t6", "03", None),
        ("t6", "+3", None),
        ("t6", "1001-03", None),
        ("t6", "1-2-3", None),
        ("t6", "1001-", None),
        ("t6", "-3", None),
        ("t6", "٣", None),
        ("t6", "1-٣", None),
        ("t6", "3\n", None),
        ("t6", "", None),
        ("b'..'", "3", None),
    ],
)
def test_owner_paths_of_all_clients_are_decoded(topic: str, name: str, expected: TopicPartition | None) -> None:
    assert decode_owner_path(topic, name) == expected


@given(topic=TOPICS, partition=st.integers(0, INT), leader=st.integers(-1, INT))
def test_every_pykafka_owner_path_is_decoded(topic: str, partition: int, leader: int) -> None:
    assert decode_owner_path(repr(topic.encode()), f"{leader}-{partition}") == TopicPartition(topic, partition)


def test_an_owner_with_a_stream_is_matched_to_its_instance() -> None:
    owner = decode_owner("/o", TopicPartition("t", 0), encode_owner("h:1", 3), session=9)
    assert isinstance(owner, Owner)
    assert owner.instance({"h:1"}) == "h:1"
