"""Decode groups with the same partitions faster. Their parts of an answer differ only in offsets and leader epochs.

All other bytes of a part are compared with those of an earlier group. If they are equal, all offsets are read at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ...core.kafka_values import NativeOffset, native_offsets
from ...core.znodes.topic_partition import TopicPartition

_PARTITION: Final = struct.Struct(">i")
_FEWEST_ROWS: Final = 5
_MOST_ROWS: Final = 10_000
"""Limited, because a shape takes more memory than the bytes that it describes."""

Committed = dict[TopicPartition, NativeOffset]


class Rows(NamedTuple):
    """The place of a topic's rows: the start of the first row, the number of rows, and the size of each."""

    topic: str
    start: int
    number: int
    size: int


class Shape:
    """The partitions of a group, and all bytes of its part of an answer except offsets and leader epochs."""

    def __init__(self, part: bytes, topics: Iterable[Rows], *, epochs: bool) -> None:
        """Learn from a group's part that has no errors or metadata. Rows begin with partition, offset and epoch."""
        fields, size = ("qi", 12) if epochs else ("q", 8)
        starts = [(each.topic, each.start + index * each.size) for each in topics for index in range(each.number)]
        wanted = [(topic, *_PARTITION.unpack_from(part, start)) for topic, start in starts]
        places = [start + _PARTITION.size for _, start in starts]
        ends = [0, *(place + size for place in places)]
        gaps = (place - end for place, end in zip([*places, len(part)], ends, strict=True))
        self._form = struct.Struct(">" + fields.join(f"{gap}s" for gap in gaps))
        self._width = len(fields) + 1
        self._constants = self._form.unpack(part)[:: self._width]
        order = sorted(range(len(wanted)), key=wanted.__getitem__)
        self._places = [TopicPartition(*wanted[index]) for index in order]
        self._sorted: Any = itemgetter(*order) if wanted != sorted(wanted) else None

    def read(self, group: str, frame: bytes, at: int) -> tuple[Committed, int] | None:
        """Return the offsets of the group whose part begins at `at`, and its end; None if it has another shape."""
        end = at + self._form.size
        if end > len(frame):
            return None
        found = self._form.unpack_from(frame, at)
        if found[:: self._width] != self._constants:
            return None
        columns = [found[index :: self._width] for index in range(1, self._width)]
        if self._sorted is not None:
            columns = [self._sorted(column) for column in columns]
        return committed(group, self._places, *columns), end


class Shapes:
    """Remembers the shape of the last two groups, if both had the same number of bytes."""

    def __init__(self) -> None:
        self._version = -1
        self._size = -1
        self._last: Shape | None = None

    def read(self, version: int, group: str, frame: bytes, at: int) -> tuple[Committed, int] | None:
        """Return the offsets of a group, and the end of its part; None if it has another shape."""
        if self._last is None or version != self._version:
            return None
        return self._last.read(group, frame, at)

    def learn(self, version: int, part: bytes, topics: Sequence[Rows], *, epochs: bool) -> None:
        """Remember the shape of a group if the group before had as many bytes, and so perhaps the same shape."""
        again = (version, len(part)) == (self._version, self._size)
        self._version, self._size = version, len(part)
        if again and _FEWEST_ROWS <= sum(each.number for each in topics) <= _MOST_ROWS:
            self._last = Shape(part, topics, epochs=epochs)
        elif not again:
            self._last = None


def committed(
    group: str,
    places: Iterable[TopicPartition],
    offsets: Sequence[int],
    epochs: Sequence[int] = (),
    notes: Sequence[str | None] = (),
) -> Committed:
    """Return the offsets of a group from columns. Empty `epochs` or `notes` mean that no offset has any."""
    some_notes = [note or None for note in notes] if notes else repeat(None)
    some_epochs = [None if epoch < 0 else epoch for epoch in epochs] if max(epochs, default=-1) >= 0 else repeat(None)
    found = zip(places, native_offsets(group, places, offsets, some_notes, some_epochs), strict=False)
    if min(offsets, default=0) < 0:  # negative: no offset
        return {at: each for at, each in found if each.offset >= 0}
    return dict(found)
