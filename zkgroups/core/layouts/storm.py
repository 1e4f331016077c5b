"""The layout of Storm's Kafka spout (storm-kafka).

    {root}/{group}/partition_{partition}
    {root}/{group}/{topic}/partition_{partition}      if the spout reads several topics

    {"topology":{"id":"orders-1-1442","name":"orders"},"offset":41,"partition":3,"broker":{"host":"kafka1","port":9092},
     "topic":"orders"}

`root` and the group are the `zkRoot` and the `id` of the spout's configuration. The offset is the next message to read:
the first that is not acknowledged, or the one after the last that was emitted.
"""

from __future__ import annotations

from typing import Final

from ..znodes.decoding import DecodingError, is_text
from .layout import OneOffsetPerNode
from .path_template import Field, Fields, PathTemplate
from .stored_number import Stored, next_message
from .value_format import JsonField, decode_object, json_number

_OFFSET: Final = JsonField("offset")


class StormLayout(OneOffsetPerNode):
    """The offsets of the spouts below one root."""

    def __init__(self, root: str) -> None:
        path = f"{root.rstrip('/')}/{{group}}/{{topic}}/partition_{{partition}}"
        text = f"storm:{root}"
        super().__init__(text, text, [PathTemplate.parse(path, optional=Field.TOPIC)], Stored.NEXT)

    def decode(self, fields: Fields, data: bytes) -> tuple[str, int]:
        """Return the topic in the value, and the offset."""
        values = decode_object(data)
        offset = next_message(json_number(values, _OFFSET.name), Stored.NEXT)
        return topic_of(values, fields), offset

    def rewritten(self, data: bytes, offset: int) -> bytes:
        """Replace the offset. A topology that starts again continues there."""
        return _OFFSET.with_number(data, offset)


def topic_of(values: dict[str, object], fields: Fields) -> str:
    """Return the topic that a value or its path names. Raise DecodingError if they differ."""
    topic, in_path = values.get("topic"), fields.get(Field.TOPIC)
    if topic is None and in_path is not None:
        return in_path
    if not is_text(topic):
        raise DecodingError("it names no topic")
    if in_path not in (None, topic):
        raise DecodingError(f"it is in the directory of another topic than {topic!r}, which it names")
    return topic
