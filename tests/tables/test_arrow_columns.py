"""Columns sliced from responses equal the rows of the decoders, for any data."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zkgroups.core.table_columns import COLUMNS, Table
from zkgroups.core.times import LATEST_MS
from zkgroups.core.znodes.codecs import MAX_OFFSET, decode_offset
from zkgroups.core.znodes.paths import Part
from zkgroups.core.znodes.values import ForbiddenNode
from zkgroups.tables import table_reader
from zkgroups.tables.arrow import ROWS, arrow_schema, batch_of, offset_columns
from zkgroups.zookeeper.reading.tree_walk import PartDirectory
from zkgroups.zookeeper.requests.bulk_read import Block, Siblings
from zkgroups.zookeeper.requests.multiread import (
    DATA_AT,
    DENIED,
    END,
    GONE,
    GOOD_HEAD,
    Kind,
    encode_error,
    encode_result,
    records,
)

from ..core.strategies import NAMES, NEARLY_REGISTRATIONS, TOPICS

STAT = struct.Struct(">qqqqiiiqiiq")

LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, -(2**63), 2**63 - 1])
INTS = st.integers(-(2**31), 2**31 - 1)
MOMENTS = st.integers(0, LATEST_MS) | st.just(0) | st.just(LATEST_MS)


def record(data: bytes | None, stat: bytes) -> bytes:
    """Encode a node as ZooKeeper does in a response."""
    length = struct.pack(">i", -1 if data is None else len(data))
    return encode_result(Kind.NODE, length + (data or b"") + stat)


def stat(czxid: int, mzxid: int, ctime: int, mtime: int, version: int, session: int = 0, rest: int = 0) -> bytes:
    return STAT.pack(czxid, mzxid, ctime, mtime, version, rest, -1, session, 7, rest, rest)


SOUND = st.builds(stat, LONGS, LONGS, MOMENTS, MOMENTS, INTS, LONGS, INTS)
EXTREME = st.builds(stat, LONGS, LONGS, LONGS, LONGS, INTS, LONGS, INTS)
PLAIN = st.integers(0, 10**18 - 1).map(lambda n: str(n).encode()) | st.from_regex(rb"[0-9]{1,18}", fullmatch=True)
LONG_AS_SEVERAL = b"123" + bytes(68) + b"".join(GOOD_HEAD + bytes([n]) + b"7" * n + bytes(68) for n in (5, 4, 4))[:-68]
"""A record of 259 bytes. The last byte of its length suggests a record of three bytes, followed by three more."""

EDGE_CASES = [
    b"",
    b"+7",
    b"-7",
    b"7 ",
    b"007",
    b"0" * 30 + b"7",
    b"9" * 19,
    str(MAX_OFFSET).encode(),
    str(MAX_OFFSET + 1).encode(),
    "٣".encode(),
    b"1" * 127,
    b"1" * 128,
    b"1" * 255,
    b"1" * 256,
    b"1" * 300,
    GOOD_HEAD,
    GOOD_HEAD + b"\x03123",
    END,
    END * 9,
    (GOOD_HEAD + b"\x01" + b"5" + bytes(68)) * 2,
    LONG_AS_SEVERAL,
    None,
]
EDGES = st.sampled_from(EDGE_CASES)
DATA = PLAIN | EDGES | st.binary(max_size=400)

SOUND_RECORDS = st.builds(record, PLAIN, SOUND)
RECORDS = (
    SOUND_RECORDS
    | st.builds(record, DATA, SOUND)
    | st.builds(record, DATA, EXTREME)
    | st.sampled_from([GONE, DENIED, -4]).map(encode_error)
)
ANSWERS = st.lists(st.lists(SOUND_RECORDS, max_size=5), max_size=3) | st.lists(
    st.lists(RECORDS, max_size=5), max_size=3
)
"""Responses with plain offsets only, or with anything."""


def by_row(some: Sequence[Sequence[bytes]]) -> list[tuple[int, int, int, int, int]] | None:
    """Decode row by row; return None if any node is not an offset or has an invalid time."""
    found = []
    for answer in some:
        for each in records(b"".join(answer) + END, len(answer)):
            if isinstance(each, int):
                return None
            data, _czxid, mzxid, created, modified, version, _session = each
            offset = decode_offset("/", data)
            if not isinstance(offset, int) or not all(0 <= ms <= LATEST_MS for ms in (created, modified)):
                return None
            found.append((offset, version, modified * 1000, created * 1000, mzxid))
    return found


def columns(some: Sequence[Sequence[bytes]]) -> list[tuple[Any, ...]] | None:
    found = offset_columns([b"".join(answer) + END for answer in some])
    if found is None:
        return None
    return list(zip(*((each.cast(pa.int64()) if is_time(each) else each).to_pylist() for each in found), strict=True))


def is_time(column: Any) -> bool:
    return bool(pa.types.is_timestamp(column.type))


@settings(max_examples=500)
@given(ANSWERS)
@example([[]])
@example([])
def test_columns_equal_the_rows_of_the_decoders_or_are_refused(some: list[list[bytes]]) -> None:
    found = columns(some)
    assert found is None or found == by_row(some)


def test_columns_equal_the_rows_for_data_that_almost_is_an_offset_or_a_record() -> None:
    plain, *edges = (record(each, stat(1, 2, 3, 4, 5)) for each in (b"42", *EDGE_CASES))
    for edge in edges:
        for some in ([edge], [plain, edge], [edge, plain], [plain, edge, plain, edge]):
            found = columns([some])
            assert found is None or found == by_row([some])


@settings(max_examples=150)
@given(st.lists(st.lists(SOUND_RECORDS, min_size=1, max_size=9), min_size=1, max_size=3))
def test_plain_offsets_are_always_read_as_columns(some: list[list[bytes]]) -> None:
    assert columns(some) == by_row(some)


@given(st.lists(st.binary(max_size=400), max_size=3))
def test_bytes_that_are_not_a_response_are_refused(some: list[bytes]) -> None:
    assert not offset_columns(some)


@given(st.lists(SOUND_RECORDS, min_size=1, max_size=4).map(b"".join), st.data())
def test_a_truncated_response_is_refused(answer: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, DATA_AT + 68))
    assert offset_columns([answer[:-cut] + END]) is None


def test_columns_have_the_types_of_the_table() -> None:
    found = offset_columns([record(b"1", stat(1, 2, 3, 4, 5)) + END])
    assert found is not None
    schema = arrow_schema(COLUMNS[Table.OFFSETS])
    names = ["offset", "commit_count", "committed_at", "created_at", "zxid"]
    assert [each.type for each in found] == [schema.field(name).type for name in names]


# Rows


def block(place: PartDirectory, names: Sequence[str], some: Sequence[bytes]) -> Block[PartDirectory]:
    made = Block[PartDirectory]()
    made.add(Siblings(place, f"/consumers/{place.group}/{place.part}/{place.topic}", list(names)), b"")
    made.answer = b"".join(some) + END
    return made


def offsets(blocks: Iterable[Block[PartDirectory]], *, plain: bool) -> Any:
    """Build a batch of offsets, by columns or by rows."""
    blocks = list(blocks)
    owners = table_reader._Owners(iter(()), {each.parts[0].key.group for each in blocks})
    if plain:
        found = table_reader._plain_columns(blocks)
        return None if found is None else table_reader._plain_batch(blocks, found, owners.of, "zk1")
    return batch_of(Table.OFFSETS, table_reader._offset_rows(blocks, owners.of), "zk1")


def without_the_time(batch: Any) -> Any:
    batch.validate(full=True)
    return batch.drop_columns(["read_at"])


PARTITIONS = st.lists(
    st.tuples(st.integers(0, 2**31 - 1).map(str) | NAMES, RECORDS)
    | st.tuples(st.integers(0, 9).map(str), SOUND_RECORDS),
    min_size=1,
    max_size=6,
)
TREES = st.lists(st.tuples(NAMES, TOPICS | NAMES, PARTITIONS), min_size=1, max_size=3)


@settings(max_examples=200)
@given(TREES)
def test_a_batch_by_columns_equals_the_batch_by_rows(tree: list[tuple[str, str, list[tuple[str, bytes]]]]) -> None:
    tree = sorted(tree, key=lambda each: each[0])
    blocks = [
        block(PartDirectory(g, Part.OFFSETS, t), [n for n, _ in some], [r for _, r in some]) for g, t, some in tree
    ]
    by_columns = offsets(blocks, plain=True)
    if by_columns is not None:
        assert without_the_time(by_columns).equals(without_the_time(offsets(blocks, plain=False)))


@settings(max_examples=150)
@given(TREES)
def test_every_node_has_a_row_whatever_its_data(
    tree: list[tuple[str, str, list[tuple[str, bytes]]]],
) -> None:
    for group, topic, some in tree:
        some = [(name, each) for name, each in some if each not in (encode_error(GONE), encode_error(-4))]
        there = block(PartDirectory(group, Part.OFFSETS, topic), [n for n, _ in some], [r for _, r in some])
        batch = offsets([there], plain=False)
        batch.validate(full=True)
        rows = batch.to_pylist()
        assert len(rows) == len(some)
        assert all((row["offset"] is None) == (row["problem"] is not None) for row in rows)
        assert all(row["partition"] is not None or row["problem"] is not None for row in rows)


REGISTERED = NEARLY_REGISTRATIONS.map(lambda fields: json.dumps(fields).encode())


@settings(max_examples=150)
@given(st.lists(st.tuples(NAMES, st.builds(record, REGISTERED | DATA, SOUND | EXTREME)), max_size=4))
def test_members_and_owners_of_every_kind_make_rows_that_arrow_takes(some: list[tuple[str, bytes]]) -> None:
    for table, rows, place in (
        (Table.MEMBERS, table_reader._member_rows, PartDirectory("g", Part.IDS)),
        (Table.OWNERS, table_reader._owner_rows, PartDirectory("g", Part.OWNERS, "b'orders'")),
    ):
        there = block(place, [name for name, _ in some], [each for _, each in some])
        batch = batch_of(table, rows([there]), "zk1")
        batch.validate(full=True)
        assert batch.num_rows == len(some)
        assert batch.schema.equals(arrow_schema(COLUMNS[table]))


@pytest.mark.parametrize("ms", [-1, -(2**63), LATEST_MS + 1, 10**15, 2**63 - 1])
def test_an_invalid_time_is_null_and_the_offset_is_kept(ms: int) -> None:
    some = [record(b"1", stat(1, 2, 3000, 4000, 0)), record(b"2", stat(1, 2, ms, ms, 0))]
    there = block(PartDirectory("g", Part.OFFSETS, "t"), ["0", "1"], some)
    assert offsets([there], plain=True) is None
    sound, odd = offsets([there], plain=False).to_pylist()
    assert (sound["offset"], sound["committed_at"].timestamp(), sound["created_at"].timestamp()) == (1, 4, 3)
    assert (odd["offset"], odd["committed_at"], odd["created_at"], odd["problem"]) == (2, None, None, None)


# Batches


def answers(count: int, each: int, size: int) -> Iterator[Block[PartDirectory]]:
    for _ in range(count):
        yield block(PartDirectory("g", Part.OFFSETS, "t"), [str(n) for n in range(each)], [b"x" * size] * each)


def test_a_batch_has_about_the_configured_number_of_rows() -> None:
    blocks = answers(2 * ROWS // 1_000 + 1, 1_000, 85)
    sizes = []
    while some := table_reader._next_blocks(blocks):
        sizes.append(sum(each.count for each in some))
    assert sizes == [ROWS, ROWS, 1_000]


def test_large_nodes_make_batches_of_fewer_rows() -> None:
    blocks = answers(64, 10, 100_000)
    sizes = []
    while some := table_reader._next_blocks(blocks):
        sizes.append(sum(len(each.answer) for each in some))
    assert sum(sizes) > 64 * 1_000_000
    assert max(sizes) < table_reader.BYTES + 1_100_000


# Owners beside offsets


def owned(group: str, topic: str, partition: int, owner: str | None) -> dict[str, object]:
    return {"group": group, "topic": topic, "partition": partition} | ({"owner": owner} if owner else {})


def test_owners_are_matched_in_the_order_of_the_offsets() -> None:
    rows = [
        owned("a", "t1", 0, "anna"),
        owned("a", "t3", 0, "ben"),
        owned("a", "t3", 0, "carl"),  # of another client
        owned("a", "t3", 1, None),  # malformed
        {"group": "b", "topic": None, "partition": None},  # forbidden
        owned("c", "t1", 10, "dora"),
    ]
    owners = table_reader._Owners(iter(rows), ["a", "b", "c", "d"])
    asked = [("a", "t1"), ("a", "t2"), ("a", "t3"), ("a", "t3"), ("b", ""), ("b", "t1"), ("c", "t1"), ("d", "t1")]
    found = [dict(owners.of(*each)) for each in asked]
    assert found == [{"0": "anna"}, {}, {"0": "ben"}, {"0": "ben"}, {}, {}, {"10": "dora"}, {}]


def test_a_forbidden_node_has_a_row_without_bytes() -> None:
    hidden = ForbiddenNode("/consumers/g/offsets")
    made = Block[PartDirectory]()
    made.add(Siblings(PartDirectory("g", Part.OFFSETS, "", hidden), "/consumers/g/offsets", ()), b"")
    denied = block(PartDirectory("g", Part.OFFSETS, "t"), ["5"], [encode_error(DENIED)])
    rows = offsets([made, denied], plain=False).to_pylist()
    assert [(row["group"], row["topic"], row["partition"], row["raw"], row["problem"]) for row in rows] == [
        ("g", None, None, None, "/consumers/g/offsets: no permission to read it"),
        ("g", "t", 5, None, "/consumers/g/offsets/t/5: no permission to read it"),
    ]
