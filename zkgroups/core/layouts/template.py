"""The layout of any system whose nodes hold one offset each, described by a path with fields and a format of values.

/x/{group}/{topic}/{partition} --stored last --value json:position
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from ...input_errors import InvalidOptionError
from ..znodes.decoding import DecodingError, is_int
from ..znodes.names import parse_partition
from .layout import OneOffsetPerNode
from .path_template import Field, Fields, PathTemplate
from .stored_number import Stored, next_message, stored_number
from .value_format import Decimal, ValueFormat, object_or_none


class TemplateLayout(OneOffsetPerNode):
    """The offsets in nodes whose paths match a template."""

    def __init__(self, path: str, value: ValueFormat, stored: Stored) -> None:
        template = PathTemplate.parse(path)
        location = "/" + "/".join(segment.text for segment in template.segments)
        _check(template, location, stored)
        words = [location]
        words += [] if stored is Stored.NEXT else [f"--stored {stored}"]
        words += [] if value.text == Decimal.text else [f"--value {value.text}"]
        super().__init__(" ".join(words), location, [template], stored)
        self._value = value

    def decode(self, fields: Fields, data: bytes) -> tuple[str, int]:
        """Return the topic in the path, and the next message."""
        return fields[Field.TOPIC], next_message(self._value.number(data), self.stored)

    def rewritten(self, data: bytes, offset: int) -> bytes:
        """Replace the number."""
        number = stored_number(offset, self.stored)
        if number is None:
            raise DecodingError("no number means that nothing was processed")
        return self._value.with_number(data, number)


def _check(template: PathTemplate, location: str, stored: Stored) -> None:
    for needed in (Field.TOPIC, Field.PARTITION):
        if needed not in template.fields:
            raise InvalidOptionError("layout", location, f"the path needs {{{needed}}}")
    if Field.TRANSACTION in template.fields:
        raise InvalidOptionError("layout", location, "only trident has transactions")
    if Field.GROUP not in template.fields and template.root == "/":
        raise InvalidOptionError(
            "layout", location, "without {group}, it must begin with a name, which becomes the name of the group"
        )
    if stored not in (Stored.NEXT, Stored.LAST):
        raise InvalidOptionError("layout", location, "its numbers are --stored next or --stored last")


def recognize(names: Sequence[str], data: bytes, topics: Collection[str]) -> tuple[str, str] | None:
    """Return a path with fields and a format of values, if a node may hold the offset of a partition.

    Without a name of `topics` in the path, the name above the partition is taken for the topic; but only if no topics
    are known.

    >>> recognize(["x", "billing", "orders", "3"], b"41", ["orders"])
    ('/x/billing/{topic}/{partition}', 'decimal')
    """
    value = _recognize_value(data, is_sure=bool(topics))
    found = re.fullmatch("(.*?)([0-9]+)", names[-1] if names else "", re.DOTALL)
    if value is None or found is None or parse_partition(found[2]) is None or set("{}") & set("".join(names)):
        return None
    *above, _name = names
    if found[1][:-1] in topics and found[1]:
        return "/" + "/".join([*above, f"{{topic}}{found[1][-1]}{{partition}}"]), value
    places = [number for number, name in enumerate(above) if name in topics] or ([len(above) - 1] if not topics else [])
    if not places or places[-1] < 0:
        return None
    above[places[-1]] = "{topic}"
    return "/" + "/".join([*above, f"{found[1]}{{partition}}"]), value


_LIKELY: Final = ("offset", "nextOffset", "untilOffset", "position", "committed")
"""Names of JSON fields that hold an offset, the likeliest first."""


def _recognize_value(data: bytes, *, is_sure: bool) -> str | None:
    """Return the format of a value with a number. If the path is sure, any field may hold it, if it is the only one."""
    with suppress(DecodingError):
        Decimal().number(data)
        return Decimal.text
    values = object_or_none(data) or {}
    names = [name for name, value in values.items() if is_int(value)]
    likely = [name for name in _LIKELY if name in names] or (names if is_sure and len(names) == 1 else [])
    return f"json:{likely[0]}" if likely else None
