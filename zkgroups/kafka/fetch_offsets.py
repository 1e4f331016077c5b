"""The offsets that Kafka's own groups have committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final

from ..core.kafka_values import NativeOffset
from ..core.migration.plain_groups import Natives, shape_of
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import InvalidNameError, ZkgroupsException
from .isolated_client import ask_each
from .worker import Asker

# Thousands of groups have offsets of the same partitions.
_at = lru_cache(maxsize=1 << 16)(TopicPartition)

Committed = Mapping[TopicPartition, NativeOffset]

# As a Java short: with a longer one librdkafka sends what no broker can read, and then nothing else for a while.
MAX_TEXT_BYTES = 32_767


def check_native_group(name: object) -> str:
    """Return the name of a group of Kafka's own, which may be nearly anything, or refuse it."""
    if not isinstance(name, str):
        raise InvalidNameError("group", name, "is not text")
    if not name:
        raise InvalidNameError("group", name, "is empty")
    # To librdkafka the name would end there, and be that of another group.
    if "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise InvalidNameError("group", name, "has letters that cannot be sent")
    if len(name.encode()) > MAX_TEXT_BYTES:
        raise InvalidNameError("group", name, "is too long to be sent")
    return name


def committed(asker: Asker, groups: Sequence[str], timeout: float) -> dict[str, Committed | ZkgroupsException]:
    """The offsets of these groups, by group, or why they were not had."""
    return ask_each(asker, "committed", groups, timeout, _offsets)


def _offsets(group: str, rows: Sequence[tuple[str, int, int, str | None, int | None]]) -> Committed:
    """By partition, in order."""
    if not rows:
        return {}
    topics, numbers, offsets, notes, epochs = zip(*sorted(rows, key=_PLACE), strict=True)
    if any(notes) or any(epoch is not None for epoch in epochs):
        each = zip(map(_at, topics, numbers), offsets, notes, epochs, strict=True)
        return {at: NativeOffset(group, at, offset, note, epoch) for at, offset, note, epoch in each}
    return Natives(group, shape_of(topics, numbers), list(offsets))


_PLACE: Final = itemgetter(0, 1)
