"""The format of committed offsets, compared with models of the old clients."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups.core.znodes.offset_codec import MAX_OFFSET, decode_offset, decode_offset_path, encode_offset
from zkgroups.core.znodes.owner_codec import decode_owner_path
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import (
    MalformedNode,
)
from zkgroups.exceptions import InvalidOptionError

from . import old_clients
from .assertions import malformed
from .old_clients import Poison

T6_3 = TopicPartition("t6", 3)


@given(offset=st.integers(0, MAX_OFFSET))
@example(offset=0)
@example(offset=MAX_OFFSET)
def test_an_encoded_offset_is_decoded_by_scala_and_zkgroups(offset: int) -> None:
    data = encode_offset(offset)
    assert data == b"%d" % offset
    assert old_clients.scala_offset(data) == decode_offset("/p", data) == offset


@pytest.mark.parametrize("offset", [-1, 2**63, pytest.param(10**5000, id="huge"), 1.0, "5", True, None, b"5"])
def test_an_offset_that_stops_or_rewinds_old_clients_is_not_encoded(offset: Any) -> None:
    with pytest.raises(InvalidOptionError, match="offset"):
        encode_offset(offset)


@pytest.mark.parametrize(
    ("data", "expected"), [(b"5", 5), (b"+4", 4), (b"007", 7), (b"+0", 0), (b"0" * 5000, 0), (b"0" * 30 + b"1", 1)]
)
def test_offsets_are_decoded_as_in_scala(data: bytes, expected: int) -> None:
    assert decode_offset("/p", data) == expected


@pytest.mark.parametrize("data", [b"", None, b"7 ", b" 7", b"3\n", b"abc", b"1.0", b"+", b"++4", b"1_0", "٣".encode()])
def test_an_offset_that_stops_scala_is_malformed(data: bytes | None) -> None:
    malformed(decode_offset("/p", data), "/p", data or b"")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"7 ", "not a plain decimal number"),
        (b"-1", "negative"),
        (b"%d" % 2**63, "larger"),
        (b"9" * 5000, "larger"),
        (b"-" + b"9" * 5000, "negative"),
    ],
)
def test_a_malformed_offset_has_a_reason(data: bytes, reason: str) -> None:
    assert reason in malformed(decode_offset("/p", data), "/p", data)


@given(data=st.binary() | st.text("0123456789+- \n._ex٣", max_size=24).map(str.encode))
def test_an_offset_is_decoded_exactly_when_scala_decodes_a_valid_one(data: bytes) -> None:
    value = decode_offset("/p", data, version=3)
    try:
        number = old_clients.scala_offset(data)
    except (Poison, UnicodeDecodeError):
        malformed(value, "/p", data)
    else:
        assert value == number if not data.startswith(b"-") else isinstance(value, MalformedNode)


@pytest.mark.parametrize(
    ("topic", "name"), [("t", "x"), ("t", "01"), ("", "1"), ("a/b", "1"), ("\ud800", "1"), ("t", "b'1'")]
)
def test_an_offset_path_without_a_partition_is_none(topic: str, name: str) -> None:
    assert decode_offset_path(topic, name) is None
    assert decode_owner_path(topic, name) is None


def test_a_pykafka_name_is_not_an_offset_path() -> None:
    assert decode_offset_path("t6", "1001-3") is None
    assert decode_offset_path("b't6'", "3") == TopicPartition("b't6'", 3)
