r"""How messages are written: raw lines, JSON lines, or a format such as `%t/%p %o %s\n`.

A format has the letters of kcat, so that its users find what they know.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from ..shared.escape import printable
from ..shared.output import SCHEMA


class Message(Protocol):
    """A message of confluent-kafka."""

    def topic(self) -> str | None:
        """The topic."""

    def partition(self) -> int | None:
        """The partition."""

    def offset(self) -> int | None:
        """The offset."""

    def timestamp(self) -> tuple[int, int]:
        """The kind of the time, 0 for none, and the milliseconds since 1970."""

    def key(self) -> Any:
        """The key, as bytes. None without one."""

    def value(self) -> Any:
        """The value, as bytes. None for the deletion of a key."""

    def headers(self) -> Any:
        """The headers as pairs of a name and bytes or None. None without any."""


Formatter: TypeAlias = Callable[[Message], bytes]


def raw_line(message: Message) -> bytes:
    """Return the value as it is, and a line break."""
    return (message.value() or b"") + b"\n"


def json_line(message: Message) -> bytes:
    """Return a JSON object on one line. Bytes that are not UTF-8 become an object with the field `base64`."""
    row = {
        "schema": SCHEMA,
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": _timestamp(message),
        "headers": [[name, _text(value)] for name, value in message.headers() or ()],
        "key": _text(message.key()),
        "value": _text(message.value()),
    }
    return json.dumps(row).encode() + b"\n"


def _text(data: bytes | None) -> str | Mapping[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _timestamp(message: Message) -> int | None:
    kind, milliseconds = message.timestamp()
    return milliseconds if kind else None


def parse_format(text: str) -> Formatter:
    """Return the formatter for a format. Raise ValueError for an unknown letter."""
    parts = [_part(found) for found in _PARTS.finditer(text)]

    def format_message(message: Message) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)

    return format_message


_PARTS: Final = re.compile(r"%(?P<letter>.?)|\\(?P<escape>x[0-9a-fA-F]{1,2}|.?)|(?P<text>[^%\\]+)", re.DOTALL)


def _part(found: re.Match[str]) -> bytes | Formatter:
    """Return a part of the output: constant, or made from the message."""
    letter, escape = found["letter"], found["escape"]
    if letter is not None:
        if letter not in _LETTERS:
            raise ValueError(f"%{letter} is not one of {', '.join(f'%{each}' for each in _LETTERS)}")
        return _LETTERS[letter]
    if escape is not None:
        if escape.startswith("x") and len(escape) > 1:
            return bytes([int(escape[1:], 16)])
        if escape not in _ESCAPES:
            raise ValueError(rf"\{escape} is not one of \n, \r, \t, \0, \\ and \xNN")
        return _ESCAPES[escape]
    return found["text"].encode("utf-8", "surrogateescape")


def _number(number: int | None) -> bytes:
    return str(-1 if number is None else number).encode()


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(message: Message) -> bytes:
    pairs = message.headers() or ()
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in pairs)


_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}

_LETTERS: Final[Mapping[str, bytes | Formatter]] = {
    "s": lambda message: message.value() or b"",
    "S": lambda message: _number(_length(message.value())),
    "R": lambda message: struct.pack(">i", _length(message.value())),
    "k": lambda message: message.key() or b"",
    "K": lambda message: _number(_length(message.key())),
    "h": _headers,
    "T": lambda message: _number(_timestamp(message)),
    "t": lambda message: (message.topic() or "").encode(),
    "p": lambda message: _number(message.partition()),
    "o": lambda message: _number(message.offset()),
    "%": b"%",
}


def for_terminal(formatter: Formatter) -> Formatter:
    """Escape invisible characters but line breaks and tabs: a message could change the terminal."""

    def format_message(message: Message) -> bytes:
        text = formatter(message).decode("utf-8", "backslashreplace")
        return re.sub(r"[^\n\t]+", lambda found: printable(found[0]), text).encode("utf-8", "backslashreplace")

    return format_message
