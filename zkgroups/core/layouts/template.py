"""The layout of any system whose nodes hold one offset each, described by a path with fields and a format of values.

/x/{group}/{topic}/{partition} --stored last --value json:position
"""

from __future__ import annotations

from ...input_errors import InvalidOptionError
from ..znodes.decoding import DecodingError
from .layout import OneOffsetPerNode
from .path_template import Field, Fields, PathTemplate
from .stored_number import Stored, next_message, stored_number
from .value_format import Decimal, ValueFormat


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
