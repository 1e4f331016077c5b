"""What all decoders share: text, JSON and numbers that other clients wrote."""

from __future__ import annotations

import json
import re
from typing import Any, TypeGuard


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
