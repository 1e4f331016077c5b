"""Decoders never raise: hostile data decodes to a value or a malformed node."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.znodes.broker_codec import decode_broker, decode_topic
from zkgroups.core.znodes.names import check_name
from zkgroups.core.znodes.offset_codec import MAX_OFFSET, decode_offset, decode_offset_path
from zkgroups.core.znodes.owner_codec import decode_owner, decode_owner_path
from zkgroups.core.znodes.registration_codec import (
    decode_registration,
)
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import (
    MalformedNode,
    Topic,
)

from .assertions import malformed
from .old_clients import LONG
from .strategies import NEARLY_REGISTRATIONS, anything_json

T6_3 = TopicPartition("t6", 3)


def registration_of(data: bytes) -> object:
    return decode_registration("/p", data)


def owner_of(data: bytes) -> object:
    return decode_owner("/p", T6_3, data, session=1)


def offset_of(data: bytes) -> object:
    value = decode_offset("/p", data)
    return value if isinstance(value, MalformedNode) else Topic("an offset", (value,))


def topic_of(data: bytes) -> object:
    return decode_topic("/p", "t6", data)


def broker_of(data: bytes) -> object:
    return decode_broker("/p", "1", data)


EVERY_DECODER = [registration_of, owner_of, offset_of, topic_of, broker_of]

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

HOSTILE = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"endpoints":[' + b"[" * 900 + b"]" * 900 + b"]}",
    b'{"pattern":"static","subscription":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
    b'{"pattern":"white_list","subscription":{"' + b"(" * 20_000 + b'":1}}',
    b'{"pattern":"white_list","subscription":{"a{4294967295}":1}}',
    b'{"pattern":"white_list","subscription":{"[[a]":1}}',
    b'{"pattern":"white_list","subscription":{"[\\u001b-\\u0001]":1}}',
    b'{"pattern":"white_list","subscription":{"' + b"x(" * 200_000 + b'":1}}',
    b'{"pattern":"static","subscription":{"' + b"x" * 500_000 + b'":1}}',
    b'{"pattern":"static","subscription":{"a":1,"a":0}}',
    b'{"version":1e999,"timestamp":1e999,"port":1e999}',
    b'{"version":' + b"9" * 5000 + b"}",
    b'{"partitions":{"' + b"9" * 5000 + b'":[1]}}',
    b'{"partitions":{"\\ud800":[1]}}',
    b'{"\\ud800":1}',
    b"\xef\xbb\xbf{}",
    b"\x00",
    b"9" * 5000,
    b"x" * 1_000_000,
]


@pytest.mark.parametrize("decode", EVERY_DECODER)
@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_data_decodes_to_a_value_or_a_malformed_node(decode: Callable[[bytes], object], data: bytes) -> None:
    value = decode(data)
    if isinstance(value, MalformedNode):
        malformed(value, "/p", data)
    assert hash(value) == hash(value)


@pytest.mark.parametrize("decode", EVERY_DECODER)
@given(data=st.binary() | anything_json(PLAUSIBLE).map(lambda value: json.dumps(value).encode()))
def test_any_data_decodes_to_a_value_or_a_malformed_node(decode: Callable[[bytes], object], data: bytes) -> None:
    value = decode(data)
    if isinstance(value, MalformedNode):
        malformed(value, "/p", data)
    str(value).encode()  # and a value can be shown
    assert hash(value) == hash(value)


@given(fields=NEARLY_REGISTRATIONS)
def test_damaged_registrations_decode_to_a_value_or_a_malformed_node(fields: dict[str, Any]) -> None:
    data = json.dumps(fields).encode()
    value = registration_of(data)
    if isinstance(value, MalformedNode):
        malformed(value, "/p", data)
    else:
        str(value).encode()


@given(topic=st.text(), name=st.text() | st.text("0123456789-+'b٣"))
def test_any_owner_or_offset_path_decodes_to_a_partition_or_none(topic: str, name: str) -> None:
    for at in (decode_owner_path(topic, name), decode_offset_path(topic, name)):
        assert at is None or check_name("topic", at.topic)


def test_the_largest_offset_is_the_largest_java_long() -> None:
    assert MAX_OFFSET == LONG
