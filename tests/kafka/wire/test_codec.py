"""Messages to bytes and back, beside kio: another implementation, made from the same definitions."""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import re
import struct
import sys
import typing
import uuid
from contextlib import suppress
from enum import IntEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.errors import DamagedAnswerError, DamagedRequestError

WITHOUT_ORACLE = {
    ("ListOffsets", 0),
    ("DescribeConfigs", 0),
    ("OffsetCommit", 0),
    ("OffsetCommit", 1),
    ("OffsetFetch", 0),
}
"""Versions that Kafka 4 has removed, which kio does not have."""

KINDS = codec.SERVED | codec.APIS


VERSIONS = sorted(
    (key, version)
    for key, version in {
        (key, version)
        for kinds in (codec.APIS, codec.SERVED)
        for key, api in kinds.items()
        for version in range(api.first, api.last + 1)
    }
    if (KINDS[key].name, version) not in WITHOUT_ORACLE
)
in_all_versions = pytest.mark.parametrize(
    ("key", "version"), VERSIONS, ids=[f"{KINDS[key].name}-{version}" for key, version in VERSIONS]
)
"""Parametrizes a test with all versions of all kinds that kio has."""


TEXTS = ("", "a", "größe", "\0", "€😀", "x" * 200, "word " * 40)
RUNS = 12
INTS = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}


def oracle(key: int, version: int, side: str) -> Any:
    """The class of kio."""
    api = KINDS[key]
    folder = re.sub("(?<!^)(?=[A-Z])", "_", api.name).lower()
    return getattr(import_module(f"kio.schema.{folder}.v{version}.{side.lower()}"), api.name + side)


def any_message(kind: Any, chance: random.Random) -> Any:
    """A random message of kio."""
    hints = typing.get_type_hints(kind)
    return kind(
        **{
            each.name: any_value(hints[each.name], each.metadata.get("kafka_type"), chance)
            for each in dataclasses.fields(kind)
        }
    )


def any_value(hint: Any, kind: str | None, chance: random.Random) -> Any:
    options = typing.get_args(hint) if typing.get_origin(hint) is not tuple else ()
    if type(None) in options and chance.random() < 0.2:
        return None
    inner = next((each for each in options if each is not type(None)), hint)
    if typing.get_origin(inner) is tuple:
        return tuple(any_value(typing.get_args(inner)[0], kind, chance) for _ in range(chance.choice((0, 1, 2, 5))))
    if dataclasses.is_dataclass(inner):
        return any_message(inner, chance)
    if kind in INTS:
        bits = 8 * struct.calcsize(INTS[kind])
        most = 2 ** (bits - 1)
        return chance.choice((0, -1, 1, most - 1, -most, chance.randrange(-most, most)))
    if kind in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(milliseconds=chance.choice((0, 1, 2**31 - 1)))
    return {
        "bool": lambda: chance.random() < 0.5,
        "bytes": lambda: chance.randbytes(chance.choice((0, 1, 300))),
        "string": lambda: chance.choice(TEXTS),
        "uuid": lambda: uuid.UUID(int=chance.getrandbits(128) | 1),
        "error_code": lambda: chance.choice(list(ErrorCode)),
    }[str(kind)]()


def written(message: Any) -> bytes:
    """The bytes that kio makes of a message."""
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def fields(kind: Any, version: int) -> list[Any]:
    """The fields of a class of kafka-python, in the order of kio's."""
    return [*kind._struct.untagged_fields(version)]


def ours(message: Any, kind: Any, version: int) -> Any:
    """The message of kafka-python that has the values of one of kio's."""
    values = [getattr(message, each.name) for each in dataclasses.fields(message)]
    named = zip(fields(kind, version), values, strict=True)
    return kind(**{field.name: our_value(value, field, kind, version) for field, value in named})


def our_value(value: Any, field: Any, kind: Any, version: int) -> Any:
    if isinstance(value, tuple):
        return [our_value(each, field, kind, version) for each in value]
    if dataclasses.is_dataclass(value):
        return ours(value, getattr(kind, type(value).__name__), version)
    return plain(value)


def plain(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    return int(value) if isinstance(value, IntEnum) else value


def values(message: Any, version: int) -> Any:
    """The values in a message of either library, as nested lists."""
    if isinstance(message, list | tuple):
        return [values(each, version) for each in message]
    if dataclasses.is_dataclass(message):
        return [values(getattr(message, each.name), version) for each in dataclasses.fields(message)]
    if hasattr(message, "_struct"):
        return [
            _bits(getattr(message, field.name))
            if "authorized" in field.name
            else values(getattr(message, field.name), version)
            for field in fields(message, version)
        ]
    return plain(message)


def _bits(operations: set[int] | int | None) -> int:
    """A bit field as the number that it is on the wire; the sign bit alone means that it is not known."""
    if isinstance(operations, int):
        return operations
    unsigned = 1 << 31 if operations is None else sum(1 << bit for bit in operations)
    return unsigned - (1 << 32) if unsigned >> 31 else unsigned


def request_of_kio(key: int, version: int, chance: random.Random) -> tuple[Any, bytes, int, str | None]:
    """A random request, its frame, its correlation id, and the name of the client."""
    kind = oracle(key, version, "Request")
    message = any_message(kind, chance)
    number, client = chance.randrange(2**31), chance.choice((*TEXTS, None))
    header = kind.__header_schema__(
        request_api_key=key, request_api_version=version, correlation_id=number, client_id=client
    )
    return message, written(header) + written(message), number, client


def answer_of_kio(key: int, version: int, chance: random.Random) -> tuple[Any, bytes, int]:
    """A random answer, its frame, and its correlation id."""
    kind = oracle(key, version, "Response")
    message, number = any_message(kind, chance), chance.randrange(2**31)
    if key == codec.API_VERSIONS:
        message = dataclasses.replace(message, error_code=ErrorCode.none)  # with an error, it is in version 0
    return message, written(kind.__header_schema__(correlation_id=number)) + written(message), number


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def random_bytes(run: int) -> bytes:
    """Bytes among which lengths and signs are frequent."""
    chance = random.Random(run)
    return bytes(chance.choices((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)), k=chance.randrange(200)))


@in_all_versions
def test_requests_have_the_same_bytes_and_values(key: int, version: int) -> None:
    for run in range(RUNS):
        message, frame, number, client = request_of_kio(key, version, random.Random(run))
        if client is not None:
            request = ours(message, getattr(codec, f"{KINDS[key].name}Request"), version)
            assert codec.encode(request, version, number, client) == framed(frame)
        if key in codec.SERVED:
            found = codec.decode_request(frame)
            assert (found.kind, found.client_id) == (codec.RequestKind(key, version, number), client)
            assert values(found.message, version) == values(message, version)


@in_all_versions
def test_answers_have_the_same_values_and_the_same_bytes_when_they_are_written_again(key: int, version: int) -> None:
    for run in range(RUNS):
        message, frame, number = answer_of_kio(key, version, random.Random(run))
        found = codec.decode_answer(key, version, frame)
        assert codec.correlation_id(frame) == number
        if key != codec.API_VERSIONS:  # it has optional fields, which only the bytes show
            assert values(found, version) == values(message, version)
        assert codec.encode_answer(found, version, number) == framed(frame)


@in_all_versions
def test_a_cut_or_longer_message_is_damaged_and_random_bytes_are_read_or_damaged(key: int, version: int) -> None:
    _, answer, _ = answer_of_kio(key, version, random.Random(7))
    codec.decode_answer(key, version, answer)
    for end in (*range(4, len(answer)), None):
        with pytest.raises(DamagedAnswerError):
            codec.decode_answer(key, version, answer[:end] if end is not None else answer + b"\0")
    for run in range(RUNS * 5):
        with suppress(DamagedAnswerError):
            codec.decode_answer(key, version, bytes(4) + random_bytes(run))
    if key not in codec.SERVED:
        return
    _, request, _, _ = request_of_kio(key, version, random.Random(7))
    for end in (*range(8, len(request)), None):
        with pytest.raises(DamagedRequestError):
            codec.decode_request(request[:end] if end is not None else request + b"\0")
    for run in range(RUNS * 5):
        with suppress(DamagedRequestError):
            codec.decode_request(struct.pack(">hhi", key, version, 1) + random_bytes(run))


def test_an_answer_to_an_unknown_version_of_api_versions_is_read_in_its_first_version() -> None:
    answer = codec.ApiVersionsResponse(error_code=35, api_keys=[])
    frame = codec.encode_answer(answer, 0, 9)[4:]
    assert codec.decode_answer(codec.API_VERSIONS, 4, frame).error_code == 35


def test_old_versions_of_two_messages_are_those_of_old_brokers() -> None:
    """Kafka's guide to the protocol, releases 0.8 to 0.10.0."""
    request = codec.ListOffsetsRequest
    topic = request.ListOffsetsTopic
    asked = request(topics=[topic(name="t", partitions=[topic.ListOffsetsPartition(partition_index=3, timestamp=-2)])])
    body = b"\xff\xff\xff\xff" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\1" + struct.pack(">iqi", 3, -2, 1)
    header = struct.pack(">hhih", 2, 0, 9, 1) + b"c"
    assert codec.encode(asked, 0, 9, "c") == struct.pack(">i", len(header + body)) + header + body

    answer = struct.pack(">ii", 9, 1) + b"\0\1t" + struct.pack(">iihiq", 1, 3, 0, 1, 42)
    [found] = codec.decode(asked, 0, answer).topics
    assert [each.old_style_offsets for each in found.partitions] == [[42]]


def test_the_first_version_of_requests_for_settings_is_that_of_release_0_11() -> None:
    request = codec.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(resource_type=4, resource_name="7", configuration_keys=["a"])
    body = b"\0\0\0\1" + b"\4" + b"\0\1" + b"7" + b"\0\0\0\1" + b"\0\1a"
    header = struct.pack(">hhih", 32, 0, 9, 1) + b"c"
    frame = struct.pack(">i", len(header + body)) + header + body
    assert codec.encode(request(resources=[resource]), 0, 9, "c") == frame

    setting = b"\0\1a" + b"\0\2" + b"10" + b"\0\1\0"
    answer = struct.pack(">iii", 9, 0, 1) + b"\0\0" + b"\xff\xff" + b"\4" + b"\0\1" + b"7" + b"\0\0\0\1" + setting
    [result] = codec.decode(request(), 0, answer).results
    assert [(each.name, each.value, each.is_default) for each in result.configs] == [("a", "10", True)]


def test_the_classes_are_imported_by_the_first_use() -> None:
    assert find_spec("kafka") is not None
    with pytest.raises(AttributeError, match="FetchRequest"):
        _ = codec.FetchRequest
    import subprocess

    code = "import sys, zkgroups.kafka.wire.cluster; sys.exit('kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
