"""Arrow batches: their types, and how they are built from responses of a server or row by row."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core.table_columns import COLUMNS, ColumnType, Table, TableColumn
from ..core.times import LATEST_MS
from ..core.znodes.codecs import MAX_OFFSET
from ..core.znodes.values import ForbiddenNode, UnreadableNode
from ..zookeeper.requests.multiread import DATA_AT, END, GOOD_HEAD, STAT_BYTES

# The columns of the tables as Arrow types.


TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
"""Arrow's type for Spark's TIMESTAMP."""

_IN_ARROW: Final[Mapping[ColumnType, Any]] = {
    ColumnType.STRING: pa.string(),
    ColumnType.BINARY: pa.binary(),
    ColumnType.INTEGER: pa.int32(),
    ColumnType.LONG: pa.int64(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.TIMESTAMP: TIMESTAMP,
    ColumnType.COUNTS: pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)),
}


def arrow_schema(columns: Sequence[TableColumn]) -> Any:
    """Return the Arrow schema of columns."""
    return pa.schema([pa.field(each.name, _IN_ARROW[each.type], each.nullable) for each in columns])


def where_name(names: Any, has: Callable[[Any], bool]) -> Any:
    """Return for each row whether its name is chosen. `has` is asked once for each name, which may be None."""
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    encoded = names.dictionary_encode("encode")
    return pa.array(map(has, encoded.dictionary.to_pylist()), pa.bool_()).take(encoded.indices)


# Convert the bytes of MultiRead responses to Arrow columns, without a Python object per row.
#
# The records of a response follow each other without gaps, each with the length of its data. One loop finds where
# each record starts. Arrow then treats the response as a column of byte strings and slices the other columns out of
# it.
#
# This works only if every node exists and holds a plain number, which is nearly always the case. A batch with any
# other node is detected, and the caller decodes it row by row.


LONGEST_PLAIN: Final = len(str(MAX_OFFSET)) - 1
"""Any number with at most this many digits is a valid offset."""

# Where the fields of a stat begin, from its end.
_MZXID, _CTIME, _MTIME, _VERSION = -60, -52, -44, -36


def offset_columns(answers: Sequence[bytes]) -> list[Any] | None:
    """Return the columns offset, commit_count, committed_at, created_at and zxid.

    Returns None if any record is not a plain offset.

    >>> from zkgroups.zookeeper.requests.multiread import END, GOOD_HEAD
    >>> stat = bytes(8) + (77).to_bytes(8) + (1000).to_bytes(8) + (2000).to_bytes(8) + (5).to_bytes(4) + bytes(32)
    >>> [column.to_pylist() for column in offset_columns([GOOD_HEAD + b"\\x03" + b"123" + stat + END])][:2]
    [[123], [5]]
    """
    buffer = b"".join([answer[: -len(END)] for answer in answers])
    starts = _starts(buffer)
    if starts is None or not buffer:
        return None
    records = pa.Array.from_buffers(pa.binary(), len(starts) - 1, [None, pa.py_buffer(starts), pa.py_buffer(buffer)])
    if not _all_good(records) or (offsets := _plain_numbers(records)) is None:
        return None
    times = [_times(records, _MTIME), _times(records, _CTIME)]
    if None in times:
        return None
    return [offsets, _numbers(records, _VERSION, "i"), *times, _numbers(records, _MZXID, "q")]


def _starts(buffer: bytes) -> array[int] | None:
    """Return where each record starts, and where the last one ends; None if the lengths do not add up."""
    starts: list[int] = []
    position, end = 0, len(buffer)
    length_at, rest = DATA_AT - 1, DATA_AT + STAT_BYTES
    try:
        while position < end:
            starts.append(position)
            position += buffer[position + length_at] + rest
    except IndexError:
        return None
    starts.append(position)
    return array("i", starts) if position == end else None


def _all_good(records: Any) -> bool:
    """Return whether every record starts with a success header and has short data."""
    heads = _cut(records, 0, len(GOOD_HEAD))
    return bool(heads.equals(pa.py_buffer(GOOD_HEAD * len(records))))


def _plain_numbers(records: Any) -> Any | None:
    texts = pc.binary_slice(records, DATA_AT, -STAT_BYTES)
    lengths = pc.min_max(pc.binary_length(texts)).as_py()
    if not 0 < lengths["min"] <= lengths["max"] <= LONGEST_PLAIN:
        return None
    if not texts.buffers()[2].to_pybytes()[: pc.sum(pc.binary_length(texts)).as_py()].isdigit():
        return None
    return pc.cast(texts.view(pa.string()), pa.int64())


def _times(records: Any, at: int) -> Any | None:
    """Convert milliseconds to timestamps; return None if any is out of range because of a wrong server clock."""
    milliseconds = _numbers(records, at, "q")
    bounds = pc.min_max(milliseconds).as_py()
    if not 0 <= bounds["min"] <= bounds["max"] <= LATEST_MS:
        return None
    return pc.cast(milliseconds.view(pa.timestamp("ms", tz="UTC")), TIMESTAMP)


def _numbers(records: Any, at: int, code: str) -> Any:
    """Read a big-endian number of the stat from each record."""
    numbers = array(code)
    numbers.frombytes(_cut(records, at, at + numbers.itemsize))
    numbers.byteswap()
    return from_array(numbers)


def _cut(records: Any, start: int, stop: int) -> Any:
    """Concatenate the given byte range of every record."""
    return pc.binary_slice(records, start, stop).buffers()[2][: (stop - start) * len(records)]


def from_array(numbers: array[int]) -> Any:
    """Return an Arrow column that shares the memory of the numbers."""
    kind = {4: pa.int32(), 8: pa.int64()}[numbers.itemsize]
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


# Build Arrow batches row by row, from the known values of each row.


RowValues: TypeAlias = dict[str, Any]
"""The known values of a row, by column name."""

ROWS: Final = 10_000
"""The approximate number of rows per batch. More rows are not faster."""


def batch_of(table: Table, rows: Iterable[RowValues], cluster: str) -> Any:
    """Return a batch of these rows, which were read now."""
    at = now()
    return pa.RecordBatch.from_pylist(
        [row | {"cluster": cluster, "read_at": at} for row in rows], schema=arrow_schema(COLUMNS[table])
    )


def malformed_columns(node: UnreadableNode) -> RowValues:
    """Return the columns `raw` and `problem` of an unreadable node."""
    raw = None if isinstance(node, ForbiddenNode) else node.data
    return {"raw": raw, "problem": f"{node.path}: {node.reason}"}


def stat_columns(version: int, zxid: int, modified_ms: int, created_ms: int) -> RowValues:
    """Return the columns of an offset that come from the stat of its node."""
    times = {"committed_at": time_column(modified_ms), "created_at": time_column(created_ms)}
    return {"commit_count": version, "zxid": zxid, **times}


def time_column(ms: int) -> int | None:
    """Convert to microseconds; return None if out of range."""
    return ms * 1000 if 0 <= ms <= LATEST_MS else None


def now() -> int:
    """Return the current time in microseconds."""
    return time.time_ns() // 1000
