"""Find out whether a Produce request expects an answer, without decoding its messages."""

from __future__ import annotations

import struct
from typing import Final

from ...kafka.wire import codec
from ...kafka.wire.codec import RequestKind
from ...kafka.wire.errors import DamagedRequestError

_KIND_SIZE: Final = 8
_INT16: Final = struct.Struct(">h")
_FIRST_WITH_TRANSACTIONS: Final = 3
_FIRST_FLEXIBLE: Final = 9

START_SIZE: Final = 2 * 32_767 + 64
"""The number of bytes that `expects_answer` needs at most: the header, and the id of a transaction."""


def expects_answer(start: bytes) -> bool:
    """Return False for `acks=0`, given the first bytes of a Produce request without its length.

    >>> expects_answer(bytes.fromhex("0000 0003 00000001 0001 63  ffff 0000")), expects_answer(
    ...     bytes.fromhex("0000 0009 00000001 ffff 00  02 74 ffff"))
    (False, True)
    """
    version = RequestKind.read(start).version
    try:
        at = _after_text(start, _KIND_SIZE)
        if version >= _FIRST_FLEXIBLE:
            at = codec.skip_tagged_fields(start, at)
            size, at = codec.unsigned_varint(start, at)
            at += max(size - 1, 0)
        elif version >= _FIRST_WITH_TRANSACTIONS:
            at = _after_text(start, at)
        (acks,) = _INT16.unpack_from(start, at)
    except (IndexError, ValueError, struct.error) as error:
        raise DamagedRequestError("a Produce request cannot be read") from error
    return bool(acks)


def _after_text(start: bytes, at: int) -> int:
    (size,) = _INT16.unpack_from(start, at)
    return at + _INT16.size + max(int(size), 0)
