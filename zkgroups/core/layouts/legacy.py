"""The layout of Kafka's legacy consumers, which zkgroups uses everywhere unless another one is chosen.

/consumers/{group}/offsets/{topic}/{partition}    the next message to read, as decimal text
"""

from __future__ import annotations

from typing import Final

from ..znodes.offset_codec import encode_offset, parse_offset
from ..znodes.paths import CONSUMERS, Part
from .layout import OneOffsetPerNode
from .path_template import Field, Fields, PathTemplate
from .stored_number import Stored


class DecimalLayout(OneOffsetPerNode):
    """Offsets of groups below `/consumers` as decimal text, in one directory of each group."""

    has_registrations = True

    def __init__(self, text: str, directory: str) -> None:
        template = PathTemplate.parse(f"{CONSUMERS}/{{group}}/{directory}/{{topic}}/{{partition}}")
        super().__init__(text, text, [template], Stored.NEXT)

    def decode(self, fields: Fields, data: bytes) -> tuple[str, int]:
        """Return the topic in the path, and the number."""
        return fields[Field.TOPIC], parse_offset(data)

    def rewritten(self, data: bytes, offset: int) -> bytes:  # noqa: ARG002 -- nothing else is in the node
        """Encode the offset."""
        return encode_offset(offset)


LEGACY: Final = DecimalLayout("legacy", Part.OFFSETS)
"""The default."""
