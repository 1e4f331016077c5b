"""The name that a client gives itself (`client.id`), without decoding the rest of its request."""

from __future__ import annotations

import struct
from typing import Final

from ...kafka.wire.errors import DamagedRequestError

NAME_START: Final = 10
"""The number of bytes before the name. The last two of them contain its length."""
_LENGTH: Final = struct.Struct(">h")


def name_end(start: bytes) -> int:
    """Return where the name ends, given the first `NAME_START` bytes of a request without its length.

    >>> name_end(bytes.fromhex("0003 0001 00000001 0002")), name_end(bytes.fromhex("0003 0001 00000001 ffff"))
    (12, 10)
    """
    try:
        (length,) = _LENGTH.unpack_from(start, NAME_START - _LENGTH.size)
    except struct.error as error:
        raise DamagedRequestError("a request is too short") from error
    return NAME_START + max(int(length), 0)
