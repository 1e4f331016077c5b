"""The layout of Spark jobs that keep the offsets of their last batch in ZooKeeper by themselves.

    {root}                 orders:0:41,orders:1:17,refunds:0:5
    {root}/{topic}         0:41,1:17

`root` may contain `{group}`, as in `/spark/{group}/offsets`; otherwise its last name is the name of the only group.

Such jobs store one end of the last batch, in the words of Spark's `OffsetRange`: `fromOffset` or `untilOffset`. Both
are the next message to read when the job starts again, so the number is used as it is. But with `from`, the job reads
its last batch again. Only the user knows which of them a job stores.

All partitions of a node are written together, so zkgroups never writes a part of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ...input_errors import InvalidOptionError
from ..znodes.codecs import DecodingError, decode_text, parse_offset
from ..znodes.topic_partition import parse_partition
from .layout import (
    Field,
    Layout,
    LayoutNode,
    LayoutOffset,
    PathTemplate,
    Stored,
    check_root,
    committed,
    latest,
    malformed,
    next_message,
)

_STORED: Final = (Stored.FROM, Stored.UNTIL, Stored.LAST)


class SparkLayout(Layout):
    """The offsets of one job; of several, if the root contains `{group}`."""

    def __init__(self, root: str, stored: Stored | None) -> None:
        root = check_root("spark", root, fields=frozenset({Field.GROUP}))
        location = f"spark:{root}"
        if stored not in _STORED:
            reason = "say which end of a batch the job stores: --stored from or --stored until"
            raise InvalidOptionError("layout", location, reason)
        if root == "/":
            raise InvalidOptionError("layout", location, "it needs the path of a node")
        template = PathTemplate.parse(f"{root}/{{topic}}", optional=Field.TOPIC)
        super().__init__(f"{location} --stored {stored}", location, [template], stored)

    def offsets(self, group: str, nodes: Sequence[LayoutNode]) -> Iterator[LayoutOffset]:
        """Yield all offsets of all nodes."""
        return latest(found for node in nodes for found in self._of_node(group, node))

    def _of_node(self, group: str, node: LayoutNode) -> list[LayoutOffset]:
        """Return the offsets in a node. If one entry is malformed, the others cannot be trusted either."""
        topic = node.fields.get(Field.TOPIC)
        if node.forbidden is not None:
            return [LayoutOffset(group, topic, None, node.forbidden, None)]
        if topic is None and b":" not in node.data:
            return []  # a directory; some clients write their address into new directories
        try:
            entries = [self._entry(entry, topic) for entry in decode_text(node.data).split(",")]
            if len({(name, number) for name, number, _offset in entries}) < len(entries):
                raise DecodingError("it names a partition twice")
            return [committed(group, *entry, node) for entry in entries]
        except DecodingError as reason:
            return [malformed(group, topic, None, node, str(reason))]

    def _entry(self, text: str, topic: str | None) -> tuple[str, int, int]:
        """Return the topic, the partition and the offset of `0:41` or `orders:0:41`."""
        *names, number, offset = ["", *text.strip().rsplit(":", 2)]
        named = names[-1] if len(names) > 1 else None
        partition = parse_partition(number)
        if partition is None:
            raise DecodingError(f"{text[:80]!r} is not PARTITION:OFFSET or TOPIC:PARTITION:OFFSET")
        if named is not None and topic is not None and named != topic:
            raise DecodingError(f"its name is {topic!r}, but it holds offsets of {named!r}")
        known = named if topic is None else topic
        if known is None:
            raise DecodingError("it names no topic")
        return known, partition, next_message(parse_offset(offset.encode()), self.stored)


def recognize(names: Sequence[str], data: bytes) -> str | None:
    """Return the root of the layout, if the data of a node looks like the offsets of a job.

    >>> recognize(["spark", "offsets"], b"orders:0:41,orders:1:17"), recognize(["spark", "orders"], b"0:41,1:17")
    ('/spark/offsets', '/spark')
    """
    entry = rb"(?:[A-Za-z0-9._-]+:)?[0-9]+:[0-9]+"
    if not re.fullmatch(rb"%b(?: ?, ?%b)*" % (entry, entry), data) or not names:
        return None
    has_topics = data.split(b",")[0].count(b":") == 2
    return "/" + "/".join(names if has_topics else names[:-1])
