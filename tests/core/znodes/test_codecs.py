"""The formats of offsets, owners, topics and brokers, compared with models of the old clients. Decoders never raise."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups import Broker, MalformedNode, Owner, Topic, TopicPartition
from zkgroups.core.times import from_ms
from zkgroups.core.znodes.codecs import (
    MAX_OFFSET,
    decode_broker,
    decode_offset,
    decode_offset_path,
    decode_owner,
    decode_owner_path,
    decode_topic,
    encode_offset,
    encode_owner,
)
from zkgroups.core.znodes.registrations import decode_registration
from zkgroups.core.znodes.topic_partition import check_name
from zkgroups.exceptions import InvalidNameError, InvalidOptionError

from ..groups import malformed
from ..strategies import NAMES, NEARLY_REGISTRATIONS, TOPICS, anything_json
from . import old_clients
from .old_clients import INT, Poison

T6_3 = TopicPartition("t6", 3)

# Offsets


@given(offset=st.integers(0, MAX_OFFSET))
@example(offset=0)
@example(offset=MAX_OFFSET)
def test_an_encoded_offset_is_decoded_by_scala_and_zkgroups(offset: int) -> None:
    assert MAX_OFFSET == old_clients.LONG
    data = encode_offset(offset)
    assert data == b"%d" % offset
    assert old_clients.scala_offset(data) == decode_offset("/p", data) == offset


@pytest.mark.parametrize("offset", [-1, 2**63, pytest.param(10**5000, id="huge"), 1.0, "5", True, None, b"5"])
def test_an_offset_that_stops_or_rewinds_old_clients_is_not_encoded(offset: Any) -> None:
    with pytest.raises(InvalidOptionError, match="offset"):
        encode_offset(offset)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"5", 5),
        (b"+4", 4),
        (b"007", 7),
        (b"0" * 5000, 0),
        (b"0" * 30 + b"1", 1),
        (None, "empty"),
        (b"", "empty"),
        *(
            (data, "not a decimal number")
            for data in (b"7 ", b"3\n", b"abc", b"1.0", b"+", b"++4", b"1_0", "٣".encode())
        ),
        (b"-1", "negative"),
        (b"-" + b"9" * 5000, "negative"),
        (b"%d" % 2**63, "larger"),
        (b"9" * 5000, "larger"),
    ],
)
def test_an_offset_is_decoded_as_by_scala_or_has_a_reason(data: bytes | None, found: int | str) -> None:
    value = decode_offset("/p", data)
    assert value == found if isinstance(found, int) else found in malformed(value, "/p", data or b"")


@given(data=st.binary() | st.text("0123456789+- \n._ex٣", max_size=24).map(str.encode))
def test_an_offset_is_decoded_exactly_when_scala_decodes_a_valid_one(data: bytes) -> None:
    value = decode_offset("/p", data, version=3)
    try:
        number = old_clients.scala_offset(data)
    except (Poison, UnicodeDecodeError):
        malformed(value, "/p", data)
    else:
        assert value == number if not data.startswith(b"-") else isinstance(value, MalformedNode)


# Owners


@given(instance=NAMES, stream=st.integers(0, 99))
def test_old_clients_recognize_their_instance(instance: str, stream: int) -> None:
    data = encode_owner(instance)
    assert old_clients.kazoo_go_owns(instance, data)
    assert decode_owner("/p", T6_3, data, session=7) == Owner(T6_3, instance, 7, path="/p")
    data = encode_owner(instance, stream)
    owner = decode_owner("/p", T6_3, data, session=7)
    assert isinstance(owner, Owner)
    assert owner.instance({instance}) == instance == old_clients.scala_owner(data)


def test_a_decoded_owner_has_all_fields_of_its_node() -> None:
    owner = decode_owner("/p", T6_3, b"me-0", session=7, claimed_at=from_ms(8), version=9, czxid=10)
    assert owner == Owner(T6_3, "me-0", 7, from_ms(8), 9, 10, "/p")


def test_an_owner_that_members_could_not_read_is_not_encoded() -> None:
    for stream in ("0", -1, True, 1.0, 2**31):
        with pytest.raises(InvalidOptionError, match="stream is"):
            encode_owner("h:1", stream)  # type: ignore[arg-type]
    for instance in ("", "a/b", ".", "\ud800", None, 5, b"me"):
        with pytest.raises(InvalidNameError, match="instance"):
            encode_owner(instance)  # type: ignore[arg-type]


def test_an_owner_with_an_invalid_id_or_without_a_session_or_a_partition_is_malformed() -> None:
    for data in (b"", None, b"\xff", b"a/b", b"..", b"a\nb", "\U0001f600".encode()):
        malformed(decode_owner("/p", T6_3, data, session=7), "/p", data or b"")
    assert "session" in malformed(decode_owner("/p", T6_3, b"me", session=0), "/p", b"me")
    assert "partition" in malformed(decode_owner("/p", None, b"me", session=7), "/p", b"me")


# Paths


@pytest.mark.parametrize(
    ("topic", "name", "expected"),
    [
        ("t6", "3", T6_3),
        ("b't6'", "1001-3", T6_3),
        ('b"t6"', "0-3", T6_3),
        ("b't6'", "-1-3", T6_3),
        ("t6", "1001-3", T6_3),
        ("b't6'", "3", T6_3),
        *((topic, "3", TopicPartition(topic, 3)) for topic in ("b't6\"", "b'a b'", "b''")),
        *(("t6", name, None) for name in ("03", "+3", "1001-03", "1-2-3", "1001-", "-3", "٣", "1-٣", "3\n", "", "x")),
        *((topic, "3", None) for topic in ("b'..'", "", "a/b", "\ud800")),
    ],
)
def test_owner_paths_of_all_clients_are_decoded(topic: str, name: str, expected: TopicPartition | None) -> None:
    assert decode_owner_path(topic, name) == expected


def test_offset_paths_have_no_names_of_pykafka() -> None:
    assert decode_offset_path("b't6'", "3") == TopicPartition("b't6'", 3)
    for topic, name in (
        ("t6", "1001-3"),
        ("t", "x"),
        ("t", "01"),
        ("", "1"),
        ("a/b", "1"),
        ("\ud800", "1"),
        ("t", "b'1'"),
    ):
        assert decode_offset_path(topic, name) is None


@given(topic=TOPICS, partition=st.integers(0, INT), leader=st.integers(-1, INT))
def test_every_pykafka_owner_path_is_decoded(topic: str, partition: int, leader: int) -> None:
    assert decode_owner_path(repr(topic.encode()), f"{leader}-{partition}") == TopicPartition(topic, partition)


@given(topic=st.text(), name=st.text() | st.text("0123456789-+'b٣"))
def test_any_owner_or_offset_path_decodes_to_a_partition_or_none(topic: str, name: str) -> None:
    for at in (decode_owner_path(topic, name), decode_offset_path(topic, name)):
        assert at is None or check_name("topic", at.topic)


# Kafka's own nodes


def test_a_topic_is_decoded_with_partitions_sorted_as_numbers() -> None:
    data = b'{"version":1,"partitions":{"10":[1],"2":[2,1],"0":[1]}}'
    assert decode_topic("/p", "t6", data) == Topic("t6", (0, 2, 10))
    partitions = (b'{"partitions":[0]}', b'{"partitions":{"x":[1]}}', b'{"partitions":{"01":[1]}}')
    for invalid in (b"", None, b"t6", b"[]", b"{}", *partitions):
        malformed(decode_topic("/p", "t6", invalid), "/p", invalid or b"")


def broker(name: str = "7", **fields: object) -> object:
    return decode_broker("/p", name, json.dumps(fields).encode())


def test_a_broker_is_decoded_with_an_address_or_only_endpoints() -> None:
    plain, ssl = ["PLAINTEXT://kafka1:9092"], ["SSL://kafka1:9093", "SASL_SSL://kafka1:9094"]
    assert broker(jmx_port=-1, host="kafka1", port=9092, version=4, endpoints=plain) == Broker(
        7, "kafka1", 9092, tuple(plain)
    )
    assert broker(host=None, port=-1, version=4, endpoints=ssl) == Broker(7, None, None, tuple(ssl))
    for host, port, endpoints in (
        (5, "9092", {}),
        ("", True, [None, 1, [], ""]),
        ("\ud800", 65536, ["\udfff"]),
    ):
        assert broker(host=host, port=port, endpoints=endpoints) == Broker(7, None, None, ())
    for name, data in (("7", b""), ("7", b"[]"), ("7", b"\xff"), ("x", b"{}"), ("07", b"{}")):
        malformed(decode_broker("/p", name, data), "/p", data)


def test_the_release_of_a_broker_before_0_10_is_known_by_the_version_of_its_node() -> None:
    found = [broker(host="kafka1", version=version) for version in (1, 2, 3, "1", None)]
    assert [getattr(each, "old_release", "") for each in found] == ["0.8.2", "0.9.0", None, None, None]


# Hostile data


def offset_of(data: bytes) -> object:
    value = decode_offset("/p", data)
    return value if isinstance(value, MalformedNode) else Topic("an offset", (value,))


DECODERS: list[Callable[[bytes], object]] = [
    lambda data: decode_registration("/p", data),
    lambda data: decode_owner("/p", T6_3, data, session=1),
    offset_of,
    lambda data: decode_topic("/p", "t6", data),
    lambda data: decode_broker("/p", "1", data),
]
PLAUSIBLE = [
    "version",
    "subscription",
    "pattern",
    "timestamp",
    "client",
    "partitions",
    "host",
    "port",
    "endpoints",
    "0",
]


@given(
    data=st.binary() | (anything_json(PLAUSIBLE) | NEARLY_REGISTRATIONS).map(lambda value: json.dumps(value).encode())
)
@example(data=b"[" * 100_000)
@example(data=b'{"pattern":"static","subscription":{"a":' + b"[" * 900 + b"]" * 900 + b"}}")
@example(data=b'{"pattern":"white_list","subscription":{"' + b"x(" * 200_000 + b'":1}}')
@example(data=b'{"pattern":"static","subscription":{"' + b"x" * 500_000 + b'":1}}')
@example(data=b'{"partitions":{"' + b"9" * 5000 + b'":[1]}}')
@example(data=b"9" * 5000)
def test_any_data_decodes_to_a_value_that_can_be_shown_or_to_a_malformed_node(data: bytes) -> None:
    for decode in DECODERS:
        value = decode(data)
        if isinstance(value, MalformedNode):
            malformed(value, "/p", data)
        str(value).encode()
        assert hash(value) == hash(value)
