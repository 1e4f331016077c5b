"""Random damage to bytes that were valid: bits, numbers, lengths, pieces of other samples, and JSON values."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from struct import pack
from typing import Any, Final

NASTY: Final = (
    *(pack(">i", number) for number in (-1, -2, 0, 1, 2**31 - 1, -(2**31), 2**24, 2**16)),
    *(pack(">h", number) for number in (-1, 0, 2**15 - 1, -(2**15))),
    *(pack(">q", number) for number in (-1, 2**63 - 1, -(2**63))),
    *(bytes([number]) for number in (0, 1, 0x7F, 0x80, 0xFF)),
    b"\xff\xff\xff\xff\x0f",  # the largest variable-length number
    *(b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xc3", b"\xe2\x80\xae", b"\xe2\x80\xa8"),
    *(b"/", b"..", b"/../", b"\0", b"\n", b"\r\n", b"\\", b"\\u", b"\\ud800", b'"', b"'", b"=", b":", b",", b"-", b"+"),
    *(b"{", b"[", b"(", b"[" * 2000, b"(" * 2000, b"{4294967295}", b"*+?", b"(?i)", b"\\1", b"[a-", b"[^\\d]"),
    *(b"1e999", b"-1", b"9" * 5000, b"NaN", b"Infinity", b"0x10", b"1_000", "٣".encode(), b"null", b"true"),
)
VALUES: Final = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    10**400,
    1.5,
    1e308,
    "",
    "\ud800",
    "\0",
    "a/b",
    "..",
    "9" * 400,
    [],
    {},
)


def damaged(chance: random.Random, samples: Sequence[bytes]) -> bytes:
    """Return a sample with one to six changes, or rarely random bytes."""
    data = chance.choice(samples)
    if chance.random() < 0.02:
        return chance.randbytes(chance.randrange(200))
    if chance.random() < 0.3 and (changed := _changed_json(chance, data)) is not None:
        data = changed
        if chance.random() < 0.6:
            return data
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        data = _changed(chance, data, samples)
    return data


def _changed(chance: random.Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    at, end = chance.randint(0, len(data)), chance.randint(0, len(data))
    match chance.randrange(8):
        case 0:
            return data[:at] + chance.choice(NASTY) + data[at:]
        case 1 | 2:
            nasty = chance.choice(NASTY)
            return data[:at] + nasty + data[at + len(nasty) :]
        case 3:
            return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        case 4:
            return data[:at]
        case 5:
            return data[: min(at, end)] + data[max(at, end) :]
        case 6:
            return data[:at] + data[min(at, end) :][:1000] + data[at:]
        case _:
            other = chance.choice(samples)
            return data[:at] + other[chance.randint(0, len(other)) :]


def _changed_json(chance: random.Random, data: bytes) -> bytes | None:
    """Replace, delete or repeat one value. None if the data are not JSON."""
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not (places := _places(value)):
        return None
    holder, key = chance.choice(places)
    match chance.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[chance.choice(("", "\ud800", "a/b", "9" * 400, "-1", "x" * 5000))] = holder.pop(key)
        case 2:
            other, where = chance.choice(places)
            holder[key] = json.loads(json.dumps(other[where])) if where in _keys(other) else None
        case _:
            holder[key] = chance.choice(VALUES)
    return json.dumps(value, ensure_ascii=chance.random() < 0.8).encode(errors="surrogatepass")


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


def _places(value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, dict | list):
        return []
    return [(value, key) for key in _keys(value)] + [place for key in _keys(value) for place in _places(value[key])]
