"""The format of committed offsets: decimal text."""

from __future__ import annotations

import re
from typing import Final

from ...exceptions import InvalidNameError, InvalidOptionError
from .decoding import DecodingError
from .names import parse_partition
from .topic_partition import TopicPartition
from .values import MalformedNode

MAX_OFFSET: Final = 2**63 - 1
"""Offsets are Java longs."""

PLAIN_BYTES: Final = len(str(MAX_OFFSET))
"""Any number with fewer digits is a valid offset."""

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
    'not a plain decimal number'
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
        raise DecodingError("not a plain decimal number")
    digits = raw.lstrip(b"+0") or b"0"
    if len(digits) > 19 or int(digits) > MAX_OFFSET:  # Python refuses to convert thousands of digits
        raise DecodingError("larger than 2^63-1")
    return int(digits)
