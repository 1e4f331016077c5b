"""How a node contains the number: as decimal text, as a field of JSON, or where a regular expression finds it.

    decimal            41
    json:position      {"position":41,"host":"a"}
    regex:at=([0-9]+)  at=41;host=a

Regular expressions have the syntax of RE2, which needs linear time for any text.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, Final

import re2

from ...input_errors import InvalidOptionError
from ..znodes.codecs import DecodingError, decode_text, is_int, parse_json, parse_offset

_MEMORY: Final = 2**20
"""For one expression, in bytes. RE2 refuses an expression that needs more."""


class ValueFormat(ABC):
    """A format of values. `text` is what users write."""

    text: str

    @abstractmethod
    def number(self, data: bytes) -> int:
        """Return the number in a value. Raise DecodingError with the reason if there is none."""

    @abstractmethod
    def with_number(self, data: bytes, number: int) -> bytes:
        """Return a value that `number` accepts with another number. Raise DecodingError if that is not possible."""


class Decimal(ValueFormat):
    """The value is the number.

    >>> Decimal().number(b"41"), Decimal().with_number(b"41", 50)
    (41, b'50')
    """

    text = "decimal"

    def number(self, data: bytes) -> int:
        """Parse the value."""
        return parse_offset(data)

    def with_number(self, data: bytes, number: int) -> bytes:  # noqa: ARG002 -- nothing else is in the value
        """Encode the number."""
        return str(number).encode()


class JsonField(ValueFormat):
    """The value is a JSON object, and one of its fields is the number, or the number as text.

    >>> JsonField("offset").number(b'{"offset":41}'), JsonField("offset").with_number(b'{"a":1,"offset":"41"}', 50)
    (41, b'{"a":1,"offset":"50"}')
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = f"json:{name}"

    def number(self, data: bytes) -> int:
        """Return the field."""
        return json_number(decode_object(data), self.name)

    def with_number(self, data: bytes, number: int) -> bytes:
        """Replace the field, and keep all others."""
        fields = decode_object(data)
        fields[self.name] = str(number) if isinstance(fields[self.name], str) else number
        try:
            return json.dumps(fields, allow_nan=False, separators=(",", ":")).encode()
        except ValueError as error:
            raise DecodingError("a number in it is too large") from error


class RegexGroup(ValueFormat):
    """The number is the text in the only parentheses of a regular expression, at its first match.

    >>> RegexGroup("at=([0-9]+)").number(b"at=41;host=a"), RegexGroup("at=([0-9]+)").with_number(b"at=41;host=a", 9)
    (41, b'at=9;host=a')
    """

    def __init__(self, expression: str) -> None:
        """Raise InvalidOptionError for an invalid expression."""
        self.text = f"regex:{expression}"
        options = re2.Options()
        options.max_mem = _MEMORY
        options.log_errors = False
        try:
            self._pattern = re2.compile(expression, options)
        except (re2.error, UnicodeError) as error:
            raise InvalidOptionError("value", self.text, f"it is not an expression of RE2: {_reason(error)}") from error
        if self._pattern.groups != 1:
            raise InvalidOptionError(
                "value", self.text, "the expression must have parentheses around the number, and no others"
            )

    def number(self, data: bytes) -> int:
        """Search the value."""
        return parse_offset(self._found(data)[1].encode())

    def with_number(self, data: bytes, number: int) -> bytes:
        """Replace the text in the parentheses."""
        found = self._found(data)
        start, end = found.span(1)
        written = f"{found.string[:start]}{number}{found.string[end:]}".encode()
        if self.number(written) != number:
            raise DecodingError(f"the expression does not find {number} in it")
        return written

    def _found(self, data: bytes) -> Any:
        found = self._pattern.search(decode_text(data))
        if found is None or found[1] is None:
            raise DecodingError("the expression does not match")
        return found


def _reason(error: Exception) -> str:
    reason = error.args[0]
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)


def parse_value_format(text: str) -> ValueFormat:
    """Parse `decimal`, `json:FIELD` or `regex:EXPRESSION`. Raise InvalidOptionError for other texts."""
    kind, colon, rest = text.partition(":")
    if text == Decimal.text:
        return Decimal()
    if kind == "json" and rest:
        return JsonField(rest)
    if kind == "regex" and colon:
        return RegexGroup(rest)
    raise InvalidOptionError("value", text, "it must be decimal, json:FIELD or regex:EXPRESSION")


def decode_object(data: bytes) -> dict[str, Any]:
    """Return a value that is a JSON object. Raise DecodingError for others."""
    found = parse_json(decode_text(data))
    if not isinstance(found, dict):
        raise DecodingError("not a JSON object")
    return found


def object_or_none(data: bytes) -> dict[str, Any] | None:
    """Return a value that is a JSON object, and None for others."""
    try:
        return decode_object(data)
    except DecodingError:
        return None


def json_number(fields: dict[str, Any], name: str) -> int:
    """Return a field that is a whole number, or the text of one. Raise DecodingError for others."""
    found = fields.get(name)
    if is_int(found):
        return found
    if isinstance(found, str):
        return parse_offset(found.encode(errors="replace"))
    raise DecodingError(f"it has no field {name!r}" if found is None else f"its field {name!r} is not a whole number")
