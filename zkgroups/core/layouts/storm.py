"""The layout of Storm's Kafka spout (storm-kafka).

    {root}/{group}/partition_{partition}
    {root}/{group}/{topic}/partition_{partition}      if the spout reads several topics

    {"topology":{"id":"orders-1-1442","name":"orders"},"offset":41,"partition":3,"broker":{"host":"kafka1","port":9092},
     "topic":"orders"}

`root` and the group are the `zkRoot` and the `id` of the spout's configuration. The offset is the next message to read:
the first that is not acknowledged, or the one after the last that was emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..znodes.codecs import DecodingError, is_text
from .layout import Field, Fields, OneOffsetPerNode, PathTemplate, Segment, Stored, next_message
from .value_format import JsonField, decode_object, json_number, object_or_none

_OFFSET: Final = JsonField("offset")
_OTHERS: Final = frozenset({"broker", "topic", "topology"})
"""Fields beside the offset, by which the node of a spout is recognized."""
_PARTITION: Final = Segment.parse("partition_{partition}")


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


def recognize(names: Sequence[str], data: bytes) -> str | None:
    """Return the root of the layout, if a node looks like one of a spout.

    >>> recognize(["kafkastorm", "spout", "partition_3"], b'{"offset":41,"broker":{"host":"a"},"topic":"orders"}')
    '/kafkastorm'
    """
    values = object_or_none(data)
    if values is None or not is_partition(names) or "offset" not in values or not _OTHERS & values.keys():
        return None
    above = 3 if len(names) > 2 and names[-2] == values.get("topic") else 2
    return "/" + "/".join(names[:-above]) if len(names) >= above else None


def is_partition(names: Sequence[str]) -> bool:
    """Return whether the last name is that of a partition, as Storm writes it."""
    return bool(names) and _PARTITION.match(names[-1]) is not None
