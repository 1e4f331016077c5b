"""The layout of Kafka's legacy consumers, which zkgroups uses everywhere unless another one is chosen.

/consumers/{group}/offsets/{topic}/{partition}    the next message to read, as decimal text
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..znodes.codecs import encode_offset, parse_offset
from ..znodes.paths import CONSUMERS, DETAILS, MIGRATION, Part
from ..znodes.topic_partition import parse_partition
from .layout import Field, Fields, OneOffsetPerNode, PathTemplate, Stored


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


def recognize(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the chroot and the directory of the node of a partition below `consumers`; None for other paths.

    >>> recognize(["kafka", "consumers", "billing", "offsets", "orders", "0"])
    ('/kafka', 'offsets')
    """
    at = len(names) - 5
    if at < 0 or names[at] != _CONSUMERS or parse_partition(names[-1]) is None:
        return None
    return "".join(f"/{each}" for each in names[:at]), names[at + 2]


def is_other_node(names: Sequence[str]) -> bool:
    """Return whether a path is that of a registration, an owner, or a node of zkgroups in a group."""
    return any(name == _CONSUMERS and below in _OTHERS for name, below in zip(names, names[2:], strict=False))


_CONSUMERS: Final = CONSUMERS.strip("/")
_OTHERS: Final = frozenset({Part.IDS.value, Part.OWNERS.value, DETAILS, MIGRATION})


# The layout of brokers of Kafka 1.1.0, which commit old clients' offsets to a directory that nobody else reads.
#
#     /consumers/{group}/offset/{topic}/{partition}     the next message to read, as decimal text
#
# These are the offsets of clients that commit with version 0 of Kafka's OffsetCommit request. All other releases of
# Kafka keep them in `offsets`, with an s. So after an update of the broker, such a client gets the offsets from
# before 1.1.0.


DIRECTORY: Final = "offset"
"""The name of the directory in a group."""

KAFKA_1_1_0: Final = DecimalLayout("kafka-1.1.0", DIRECTORY)
