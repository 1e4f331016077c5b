"""The formats of the nodes that hold offsets, owners, topics and brokers."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, Final, TypeGuard

from ...exceptions import InvalidNameError, InvalidOptionError
from .topic_partition import TopicPartition, check_instance, parse_partition
from .values import Broker, MalformedNode, Owner, Topic

# What all decoders share: text, JSON and numbers that other clients wrote.


class DecodingError(Exception):
    """Why data cannot be decoded. Never leaves a decoder: the reason goes into a `MalformedNode`."""


def decode_text(data: bytes) -> str:
    """Decode UTF-8 text that must not be empty."""
    if not data:
        raise DecodingError("empty")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DecodingError("not UTF-8") from error


def parse_json(text: str) -> Any:
    """Return the JSON value in `text`; None if it is invalid, nested too deeply, or has a number that is too long."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(constant: str) -> None:
    """Only Python accepts NaN and Infinity as JSON."""
    raise ValueError(constant)


def is_text(value: object) -> TypeGuard[str]:
    """True for text that can be encoded. JSON can contain unpaired surrogates, which cannot."""
    return isinstance(value, str) and value != "" and not re.search("[\ud800-\udfff]", value)


def is_int(value: object) -> TypeGuard[int]:
    """True for an int that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


# The format of committed offsets: decimal text.


MAX_OFFSET: Final = 2**63 - 1
"""Offsets are Java longs."""

PLAIN_BYTES: Final = len(str(MAX_OFFSET))
"""Any number with fewer digits is a valid offset."""

MISNAMED: Final = "its name is not a partition"
"""The reason why a node in a directory of offsets is malformed, if no consumer reads it."""

_OFFSET = re.compile(rb"\+?[0-9]+")


def check_offset(offset: object) -> int:
    """Return the offset, or raise `InvalidOptionError`: any other value would stop or rewind an old client."""
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise InvalidOptionError("offset", offset, "it must be a whole number")
    if not 0 <= offset <= MAX_OFFSET:
        raise InvalidOptionError("offset", offset, "it must be between 0 and 2^63-1")
    return offset


def encode_offset(offset: int) -> bytes:
    """Encode an offset as decimal text, without white space.

    >>> encode_offset(5)
    b'5'
    """
    return str(check_offset(offset)).encode()


def decode_offset_path(topic: str, name: str) -> TopicPartition | None:
    """Return the partition of the node `offsets/<topic>/<name>`; None if the names are invalid."""
    partition = parse_partition(name)
    try:
        return None if partition is None else TopicPartition(topic, partition)
    except InvalidNameError:
        return None


def decode_offset(path: str, data: bytes | None, *, version: int = 0) -> int | MalformedNode:
    """Decode an offset as Scala does: `+4` is 4. White space, fractions and empty nodes are malformed.

    >>> decode_offset("/o", b"+4")
    4
    >>> decode_offset("/o", b"7 ").reason
    'not a decimal number'
    """
    raw = data or b""
    try:
        return parse_offset(raw)
    except DecodingError as reason:
        return MalformedNode(path, raw, str(reason), version=version)


def is_negative_offset(data: bytes) -> bool:
    """True for the digits of a negative number."""
    return re.fullmatch(rb"-[0-9]+", data) is not None


def is_plain_offset(data: bytes) -> bool:
    """True for digits that cannot be too large: `int(data)` is the offset, without further checks."""
    return data.isdigit() and len(data) < PLAIN_BYTES


def parse_offset(raw: bytes) -> int:
    """Return the offset that the bytes are. Raise DecodingError if they are none."""
    if not raw:
        raise DecodingError("empty")
    if is_negative_offset(raw):
        raise DecodingError("negative")
    if not _OFFSET.fullmatch(raw):
        raise DecodingError("not a decimal number")
    digits = raw.lstrip(b"+0") or b"0"
    if len(digits) > 19 or int(digits) > MAX_OFFSET:  # Python refuses to convert thousands of digits
        raise DecodingError("larger than 2^63-1")
    return int(digits)


# The format of owner nodes, and which partition the path of an owner node names.


MAX_STREAM: Final = 2**31 - 1
_PYKAFKA_TOPIC = re.compile(r"""b(['"])([a-zA-Z0-9._-]{1,249})\1""")
_PYKAFKA_PARTITION = re.compile(r"-?[0-9]+-([0-9]+)")


def encode_owner(instance: str, stream: int | None = None) -> bytes:
    """Encode an owner: the bare id, which kazoo-go compares as a whole, or the id with a stream number, as in Scala.

    >>> encode_owner("h:1"), encode_owner("h:1", 0)
    (b'h:1', b'h:1-0')
    """
    if stream is None:
        return check_instance(instance).encode()
    if isinstance(stream, bool) or not isinstance(stream, int) or not 0 <= stream <= MAX_STREAM:
        raise InvalidOptionError("stream", stream, "it must be a whole number, 0 or more")
    return check_instance(f"{instance}-{stream}").encode()


def decode_owned_topic(name: str) -> str:
    """Return the topic of the directory `owners/<name>`, which pykafka members name differently.

    >>> decode_owned_topic("b'orders'"), decode_owned_topic("orders")
    ('orders', 'orders')
    """
    pykafka = _PYKAFKA_TOPIC.fullmatch(name)
    return pykafka[2] if pykafka else name


def decode_owner_path(topic: str, name: str) -> TopicPartition | None:
    """Return the partition of `owners/<topic>/<name>`, which pykafka members name differently; None if invalid.

    >>> decode_owner_path("b'orders'", "1001-3")
    TopicPartition(topic='orders', partition=3)
    """
    topic = decode_owned_topic(topic)
    if by_leader := _PYKAFKA_PARTITION.fullmatch(name):
        name = by_leader[1]
    return decode_offset_path(topic, name)


def decode_owner(
    path: str,
    at: TopicPartition | None,
    data: bytes | None,
    *,
    session: int,
    claimed_at: datetime | None = None,
    version: int = 0,
    czxid: int = 0,
) -> Owner | MalformedNode:
    """Decode an owner node. `at` is the partition that its path names, None if it does not name a partition."""
    raw = data or b""
    try:
        text = decode_text(raw)
        if at is None:
            raise DecodingError("its name is not a partition")
        if not session:
            raise DecodingError("it belongs to no session, so no session's end will delete it")
        owner = check_instance(text)
    except (DecodingError, InvalidNameError) as reason:
        return MalformedNode(path, raw, str(reason), session, version, claimed_at)
    return Owner(at, owner, session, claimed_at, version, czxid, path)


# The formats of Kafka's own nodes: topics, brokers, the cluster. zkgroups only reads them.


_OLD_RELEASES: Final = {1: "0.8.2", 2: "0.9.0"}
"""By the version of the registration. Releases since 0.10 write 3 or more."""


def decode_topic(path: str, name: str, data: bytes | None) -> Topic | MalformedNode:
    """Decode the node `/brokers/topics/<name>`."""
    raw = data or b""
    try:
        fields = parse_json(decode_text(raw))
        partitions = fields.get("partitions") if isinstance(fields, dict) else None
        if not isinstance(partitions, dict):
            raise DecodingError("no partitions")
        numbers = [parse_partition(partition) for partition in partitions]
        if None in numbers:
            raise DecodingError("a partition that is not a number")
        return Topic(name, tuple(sorted(number for number in numbers if number is not None)))
    except DecodingError as reason:
        return MalformedNode(path, raw, str(reason))


def decode_cluster_id(data: bytes | None) -> str | None:
    """Decode the node `/cluster/id`. None if it has no id.

    >>> decode_cluster_id(b'{"version":"1","id":"emtncm91cHM"}'), decode_cluster_id(b"{}")
    ('emtncm91cHM', None)
    """
    try:
        fields = parse_json(decode_text(data or b""))
    except DecodingError:
        return None
    found = fields.get("id") if isinstance(fields, dict) else None
    return found if is_text(found) else None


def decode_broker(path: str, name: str, data: bytes | None) -> Broker | MalformedNode:
    """Decode the node `/brokers/ids/<name>`."""
    raw = data or b""
    try:
        fields = parse_json(decode_text(raw))
        number = parse_partition(name)
        if number is None or not isinstance(fields, dict):
            raise DecodingError("not the registration of a broker")
    except DecodingError as reason:
        return MalformedNode(path, raw, str(reason))
    host, port, endpoints = fields.get("host"), fields.get("port"), fields.get("endpoints")
    return Broker(
        number,
        host if is_text(host) else None,
        port if is_int(port) and 0 < port < 65536 else None,
        tuple(endpoint for endpoint in endpoints if is_text(endpoint)) if isinstance(endpoints, list) else (),
        _OLD_RELEASES.get(version) if is_int(version := fields.get("version")) else None,
    )
