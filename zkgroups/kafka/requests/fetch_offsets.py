"""Read the committed offsets of many groups. Before release 3.0, each request names only one group."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ...core.kafka_values import NativeOffset, native_offsets
from ...core.znodes.topic_partition import TopicPartition
from ...deadline import Deadline
from ...input_errors import InvalidNameError, ZkgroupsException
from ..wire import codec
from ..wire.cluster import Cluster
from ..wire.connection import Code
from ..wire.errors import DamagedAnswerError
from .group_requests import Coordinators, GroupCode, ask_groups

Fetched = dict[TopicPartition, NativeOffset]


def committed(
    group: str,
    places: Iterable[TopicPartition],
    offsets: Sequence[int],
    epochs: Sequence[int] = (),
    notes: Sequence[str | None] = (),
) -> Fetched:
    """Return the offsets of a group from columns. Empty `epochs` or `notes` mean that no offset has any."""
    some_notes = [note or None for note in notes] if notes else repeat(None)
    some_epochs = [None if epoch < 0 else epoch for epoch in epochs] if max(epochs, default=-1) >= 0 else repeat(None)
    found = zip(places, native_offsets(group, places, offsets, some_notes, some_epochs), strict=False)
    if min(offsets, default=0) < 0:  # negative: no offset
        return {at: each for at, each in found if each.offset >= 0}
    return dict(found)


# Decode the answers to requests for committed offsets. A generic decoder would take most of the time of a fetch.
#
# The offsets of most groups have no metadata. Then all rows of a topic have the same size, and are read at once. The
# length of its metadata shows whether a row is larger. The first larger row is always found, because all rows before
# it have the expected size. Then the rows of that topic are read one by one. This also detects fields that a later
# release adds.


MANY: Final = 8
"""From this version on, one OffsetFetch request names many groups."""
_CODE: Final = 2
"""From this version on, each group has an error code."""
_THROTTLED: Final = 3
_EPOCHS: Final = 5
_FLEXIBLE: Final = 6
"""Since this version, lengths are varints, and later releases can add fields."""

_ID_SIZE: Final = 4
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_VARINT_BYTES: Final = 5


def read(names: Sequence[str], version: int, frame: bytes) -> dict[str, Fetched | GroupCode]:
    """Return the committed offsets of each group in an answer, sorted by partition, or its error.

    `names` are the requested groups. Raise DamagedAnswerError unless the frame can be read to its end.
    """
    reader = (_Flexible if version >= _FLEXIBLE else _Classic)(frame, version)
    try:
        found = dict(reader.groups(names))
    except (IndexError, UnicodeDecodeError, struct.error, InvalidNameError) as error:
        raise DamagedAnswerError(f"an answer to OffsetFetch (version {version}) cannot be read") from error
    if reader.at != len(frame):
        raise DamagedAnswerError(f"an answer to OffsetFetch (version {version}) has the wrong length")
    return found


class _Topic(NamedTuple):
    """The rows of a topic as columns, sorted by partition. A column is empty if no row has a value for it."""

    name: str
    partitions: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()
    notes: tuple[str | None, ...] = ()
    error: int = Code.NONE
    """The first error of a partition."""


class _Reader(ABC):
    """Reads the fields of a frame one after the other."""

    def __init__(self, frame: bytes, version: int) -> None:
        self._frame = frame
        self._version = version
        self.at = _ID_SIZE

    def groups(self, names: Sequence[str]) -> Iterator[tuple[str, Fetched | GroupCode]]:
        """Yield the answer about each group."""
        self._fields()
        if self._version >= _THROTTLED:
            self._number(_INT)
        if self._version < MANY:
            yield names[0], self._group(names[0])
            return
        for _ in range(self._count()):
            name = self._text() or ""
            yield name, self._group(name)
        self._fields()

    def _group(self, group: str) -> Fetched | GroupCode:
        topics = [self._topic() for _ in range(self._count())]
        code = self._number(_SHORT) if self._version >= _CODE else Code.NONE
        self._fields()
        if error := next(filter(None, (code, *(topic.error for topic in topics))), None):
            return GroupCode(error)
        found: Fetched = {}
        for topic in sorted(topics, key=itemgetter(0)):
            places = _places(topic.name, topic.partitions)
            found |= committed(group, places, topic.offsets, topic.epochs, topic.notes)
        return found

    def _topic(self) -> _Topic:
        name = self._text() or ""
        count = self._count()
        found = (self._plain(name, count) or self._any(name, count)) if count else _Topic(name)
        self._fields()
        return found

    def _any(self, name: str, count: int) -> _Topic:
        """Read rows one by one."""
        rows = sorted((self._row() for _ in range(count)), key=itemgetter(0))
        partitions, offsets, epochs, notes, errors = zip(*rows, strict=True)
        return _Topic(name, partitions, offsets, epochs, notes, _first(errors))

    def _row(self) -> tuple[int, int, int, str | None, int]:
        partition, offset = self._number(_INT), self._number(_LONG)
        epoch = self._number(_INT) if self._version >= _EPOCHS else -1
        note, error = self._text(), self._number(_SHORT)
        self._fields()
        return partition, offset, epoch, note, error

    def _columns(self, row: struct.Struct, count: int) -> list[tuple[int, ...]] | None:
        """Return rows of a fixed size without moving `at`; None if the frame is too short."""
        if self.at + count * row.size > len(self._frame):
            return None
        found = _repeated(row.format, count).unpack_from(self._frame, self.at)
        width = len(found) // count
        columns = [found[index::width] for index in range(width)]
        sort = _sorting(columns[0])
        return columns if sort is None else [*map(sort, columns)]

    def _number(self, form: struct.Struct) -> int:
        (found,) = form.unpack_from(self._frame, self.at)
        self.at += form.size
        return int(found)

    def _decoded(self, size: int) -> str:
        end = self.at + size
        if end > len(self._frame):
            raise IndexError
        text = self._frame[self.at : end].decode()
        self.at = end
        return text

    def _checked(self, count: int) -> int:
        """Refuse more elements than the frame has bytes left: each element has at least one byte."""
        if not 0 <= count <= len(self._frame) - self.at:
            raise IndexError
        return count

    @abstractmethod
    def _count(self) -> int:
        """Read how many elements follow."""

    @abstractmethod
    def _text(self) -> str | None: ...

    @abstractmethod
    def _fields(self) -> None:
        """Skip fields of a later release."""

    @abstractmethod
    def _plain(self, name: str, count: int) -> _Topic | None:
        """Read rows without metadata at once; None if some have metadata."""


# Thousands of groups have offsets for the same partitions, in the same order.
@lru_cache(maxsize=1024)
def _sorting(partitions: tuple[int, ...]) -> Callable[[tuple[int, ...]], tuple[int, ...]] | None:
    """Return a function that sorts a column by partition; None if the columns are sorted."""
    order = sorted(range(len(partitions)), key=partitions.__getitem__)
    return None if order == [*range(len(partitions))] else itemgetter(*order)


@lru_cache(maxsize=256)
def _repeated(row: str, count: int) -> struct.Struct:
    return struct.Struct(row[0] + count * row[1:])


class _Classic(_Reader):
    """Lengths have two or four bytes."""

    _rows: Final = (struct.Struct(">iqhh"), struct.Struct(">iqihh"))

    def _count(self) -> int:
        return self._checked(self._number(_INT))

    def _text(self) -> str | None:
        size = self._number(_SHORT)
        return None if size < 0 else self._decoded(size)

    def _fields(self) -> None:
        pass

    def _plain(self, name: str, count: int) -> _Topic | None:
        row = self._rows[self._version >= _EPOCHS]
        columns = self._columns(row, count)
        if columns is None or not {*columns[-2]} <= {-1, 0}:
            return None
        self.at += count * row.size
        partitions, offsets, *epochs, _, errors = columns
        return _Topic(name, partitions, offsets, epochs[0] if epochs else (), (), _first(errors))


class _Flexible(_Reader):
    """Lengths are varints."""

    _rows: Final = struct.Struct(">iqibhb")

    def _varint(self) -> int:
        found = 0
        for index in range(_VARINT_BYTES):
            byte = self._frame[self.at]
            self.at += 1
            found |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return found
        raise IndexError

    def _count(self) -> int:
        return self._checked(self._varint() - 1)

    def _text(self) -> str | None:
        size = self._varint() - 1
        return None if size < 0 else self._decoded(size)

    def _fields(self) -> None:
        for _ in range(self._checked(self._varint())):
            self._varint()
            size = self._checked(self._varint())
            self.at += size

    def _plain(self, name: str, count: int) -> _Topic | None:
        columns = self._columns(self._rows, count)
        if columns is None or not {*columns[3]} <= {0, 1} or any(columns[5]):
            return None
        self.at += count * self._rows.size
        partitions, offsets, epochs, _, errors, _ = columns
        return _Topic(name, partitions, offsets, epochs, (), _first(errors))


def _first(errors: Iterable[int]) -> int:
    return next(filter(None, errors), Code.NONE)


@lru_cache(maxsize=1024)
def _places(topic: str, partitions: tuple[int, ...]) -> tuple[TopicPartition, ...]:
    return tuple(_at(topic, partition) for partition in partitions)


_at = lru_cache(maxsize=1 << 16)(TopicPartition)


_ALL_IS_NULL: Final = 2
"""From this version on, a null list of topics requests all offsets. Before, an empty list does."""
_GROUPS: Final = 50

Committed = Mapping[TopicPartition, NativeOffset]
Before = Mapping[str, Committed]
"""The offsets that groups had when they were last read. An offset that differs was committed by another client."""


async def fetch(
    cluster: Cluster, coordinators: Coordinators, groups: Sequence[str], deadline: Deadline
) -> dict[str, Committed | ZkgroupsException]:
    """Return the committed offsets of each group, sorted by partition, or the error."""

    async def ask(node: int, names: Sequence[str], timeout: float) -> Mapping[str, Committed | GroupCode]:
        if len(names) > 1 and ((await cluster.versions(node)).best(codec.OFFSET_FETCH) or 0) < MANY:
            found: dict[str, Committed | GroupCode] = {}
            for name in names:
                found |= await ask(node, [name], timeout)
            return found
        version, answer = await cluster.exchange(node, codec.OFFSET_FETCH, _build(names), timeout=timeout)
        return read(names, version, answer)

    return await ask_groups(coordinators, groups, _GROUPS, ask, deadline)


def _build(names: Sequence[str]) -> Any:
    def build(version: int, correlation_id: int, client_id: str) -> bytes:
        if version >= MANY:
            group = codec.OffsetFetchRequest.OffsetFetchRequestGroup
            request = codec.OffsetFetchRequest(groups=[group(group_id=name, topics=None) for name in names])
        else:
            request = codec.OffsetFetchRequest(group_id=names[0], topics=None if version >= _ALL_IS_NULL else [])
        return codec.encode(request, version, correlation_id, client_id)

    return build
