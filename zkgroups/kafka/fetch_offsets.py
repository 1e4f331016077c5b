"""Reading the committed offsets of groups on the brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter

from ..core.kafka_values import NativeOffset
from ..core.znodes.topic_partition import TopicPartition
from ..input_errors import InvalidNameError, ZkgroupsException
from .isolated_client import ask_each
from .worker import Asker

# Thousands of groups have offsets for the same partitions.
_at = lru_cache(maxsize=1 << 16)(TopicPartition)

Committed = Mapping[TopicPartition, NativeOffset]

# The protocol stores the length in 16 bits. Given a longer text, librdkafka sends a request that brokers cannot read,
# and then fails for a while.
MAX_TEXT_BYTES = 32_767


def check_native_group(name: object) -> str:
    """Return the name of a group on the brokers, or raise InvalidNameError. Nearly any text is valid."""
    if not isinstance(name, str):
        raise InvalidNameError("group", name, "must be text")
    if not name:
        raise InvalidNameError("group", name, "is empty")
    # librdkafka would cut the name there, and use another group.
    if "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise InvalidNameError("group", name, "contains characters that cannot be sent")
    if len(name.encode()) > MAX_TEXT_BYTES:
        raise InvalidNameError("group", name, "is too long to be sent")
    return name


def committed(asker: Asker, groups: Sequence[str], timeout: float) -> dict[str, Committed | ZkgroupsException]:
    """Read the offsets of these groups; for a group that cannot be read, return the error."""
    return ask_each(asker, "committed", groups, timeout, _offsets)


def _offsets(group: str, rows: Sequence[tuple[str, int, int, str | None, int | None]]) -> Committed:
    """Return the offsets sorted by partition."""
    found = {}
    for topic, partition, offset, metadata, epoch in sorted(rows, key=itemgetter(0, 1)):
        at = _at(topic, partition)
        found[at] = NativeOffset(group, at, offset, metadata, epoch)
    return found
