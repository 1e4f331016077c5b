"""Reading a table: a session, a walk over the selected part of the tree, and Arrow batches of what it finds."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, islice
from operator import attrgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core.codec import decode_owned_topic
from ..core.model import CommittedOffset, DeniedNode, MalformedNode, Owner, Registration, session_hex
from ..core.paths import Part, is_topic, parse_partition
from ..zookeeper import view, walk
from ..zookeeper.bulk import Block, Siblings
from ..zookeeper.handle import Handle
from ..zookeeper.node import Node
from ..zookeeper.walk import Place
from .columns import from_array, offset_columns
from .options import SourceOptions
from .selection import Selection
from .tables import TIMESTAMP, Table, arrow_schema

Row: TypeAlias = dict[str, Any]
"""What is known of a row, by the names of columns."""

ROWS: Final = 10_000
"""Rows of a batch, about: more gain nothing."""

_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: what a server's clock says beyond that is no time."""


def read_batches(options: SourceOptions, selection: Selection) -> Iterator[Any]:
    """The rows of the table that are selected, by a session of its own."""
    with options.connect() as registry:
        registry.sync()
        groups = [group for group in registry.groups() if selection.has_group(group)]
        read = {Table.OFFSETS: _offsets, Table.OWNERS: _owners, Table.MEMBERS: _members}[options.table]
        yield from read(registry.handle, groups, selection, options.shown_cluster)


# Offsets


def _offsets(handle: Handle, groups: Sequence[str], selection: Selection, cluster: str) -> Iterator[Any]:
    owners = _Owners(_owner_rows(handle, groups, selection), groups)
    blocks = walk.leaves(handle, groups, Part.OFFSETS, selection.has_topic)
    while together := _some(blocks):
        plain = _plain_columns(together)
        if plain is not None:
            yield _plain_batch(together, plain, owners, cluster)
        else:
            rows = [row for block in together for row in _offset_rows(block, owners)]
            yield _batch(Table.OFFSETS, rows, cluster)


def _some(blocks: Iterator[Block[Place]]) -> list[Block[Place]]:
    some: list[Block[Place]] = []
    rows = 0
    for block in blocks:
        some.append(block)
        rows += block.count
        if rows >= ROWS:
            break
    return some


def _plain_columns(blocks: Sequence[Block[Place]]) -> list[Any] | None:
    """partition, and what `offset_columns` finds; None unless every row is plainly an offset."""
    parts = [siblings for block in blocks for siblings in block.parts]
    if not all(siblings.key.hidden is None and is_topic(siblings.key.topic) for siblings in parts):
        return None
    numbers = [parse_partition(name) for siblings in parts for name in siblings.names]
    columns = offset_columns([block.answer for block in blocks])
    if columns is None or None in numbers:
        return None
    return [from_array(array("i", numbers)), *columns]  # type: ignore[arg-type]


def _plain_batch(blocks: Sequence[Block[Place]], plain: list[Any], owners: _Owners, cluster: str) -> Any:
    parts = [siblings for block in blocks for siblings in block.parts]
    ends = pa.array(accumulate(len(siblings.names) for siblings in parts), pa.int32())
    names = [pa.array([of(siblings.key) for siblings in parts], pa.string()) for of in (_GROUP, _TOPIC)]
    group, topic = (pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values)) for values in names)
    partition, offset, count, committed, created, zxid = plain
    rows = len(partition)
    owner = _owner_column(parts, owners, rows)
    raw, problem = pa.nulls(rows, pa.binary()), pa.nulls(rows, pa.string())
    read_at = pa.repeat(pa.scalar(_now(), TIMESTAMP), rows)
    columns = [pa.repeat(cluster, rows), group, topic, partition]
    columns += [offset, count, committed, created, zxid, owner, raw, problem, read_at]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(Table.OFFSETS))


_GROUP, _TOPIC = attrgetter("group"), attrgetter("topic")


def _owner_column(parts: Sequence[Siblings[Place]], owners: _Owners, rows: int) -> Any:
    held = [owners.of(siblings.key.group, siblings.key.topic) for siblings in parts]
    if not any(held):
        return pa.nulls(rows, pa.string())
    names = zip(parts, held, strict=True)
    return pa.array([topic.get(name) for siblings, topic in names for name in siblings.names], pa.string())


def _offset_rows(block: Block[Place], owners: _Owners) -> Iterator[Row]:
    for place, name, node in walk.nodes([block]):
        row = _row_at(place, place.topic, name, node)
        if name:
            row["owner"] = owners.of(place.group, place.topic).get(name)
        if isinstance(node, Node):
            found = view.offset_named(place.group, place.topic, name, node)
            row |= {"commit_count": node.version, "zxid": node.mzxid}
            row |= {"committed_at": _time(node.modified_ms), "created_at": _time(node.created_ms)}
            row |= {"offset": found.offset} if isinstance(found, CommittedOffset) else _malformed(found)
        yield row


class _Owners:
    """Who owns the partitions of one topic after the other, in the order in which the offsets come."""

    def __init__(self, rows: Iterable[Row], groups: Iterable[str]) -> None:
        self._order = {group: number for number, group in enumerate(groups)}
        self._topics = groupby(rows, lambda row: (self._order[row["group"]], row["topic"] or ""))
        self._key: tuple[int, str] = (-1, "")
        self._found: dict[str, str] = {}

    def of(self, group: str, topic: str) -> Mapping[str, str]:
        """By the names of the partitions; each topic may be asked for until the next one is."""
        wanted = (self._order[group], topic)
        while self._key < wanted:
            self._key, rows = next(self._topics, ((len(self._order), ""), ()))
            self._found = {str(row["partition"]): row["owner"] for row in rows if row.get("owner") is not None}
        return self._found if self._key == wanted else {}


# Owners and members


def _owners(handle: Handle, groups: Sequence[str], selection: Selection, cluster: str) -> Iterator[Any]:
    return _batches(Table.OWNERS, _owner_rows(handle, groups, selection), cluster)


def _owner_rows(handle: Handle, groups: Iterable[str], selection: Selection) -> Iterator[Row]:
    for place, name, node in walk.nodes(walk.leaves(handle, groups, Part.OWNERS, selection.has_topic)):
        row = _row_at(place, decode_owned_topic(place.topic), name, node)
        if isinstance(node, Node):
            found = view.owner(place.topic, name, node)
            row |= {"session": _session(node.session), "claimed_at": _time(node.created_ms), "zxid": node.czxid}
            row |= (
                {"owner": found.id, "partition": found.at.partition} if isinstance(found, Owner) else _malformed(found)
            )
        yield row


def _members(handle: Handle, groups: Sequence[str], selection: Selection, cluster: str) -> Iterator[Any]:
    mine = [group for group in groups if selection.has_topic(group, "")]
    return _batches(Table.MEMBERS, _member_rows(handle, mine), cluster)


def _member_rows(handle: Handle, groups: Iterable[str]) -> Iterator[Row]:
    for place, name, node in walk.nodes(walk.registrations(handle, groups)):
        row: Row = {"group": place.group, "instance": name or None}
        if isinstance(node, DeniedNode):
            row |= _malformed(node)
        else:
            found = view.registered_instance(name, node)
            row |= {"session": _session(found.session), "registered_at": _time(found.registered_ms)}
            row |= _registration(found.registration)
        yield row


def _registration(found: Registration | MalformedNode) -> Row:
    if isinstance(found, MalformedNode):
        return _malformed(found)
    streams = list(found.streams.items())
    return {"subscription": streams, "pattern": found.pattern.value, "dialect": found.dialect.value}


# Rows


def _row_at(place: Place, topic: str, name: str, node: Node | DeniedNode) -> Row:
    partition = parse_partition(name)
    row: Row = {"group": place.group, "topic": topic or None, "partition": partition}
    return row | _malformed(node) if isinstance(node, DeniedNode) else row


def _malformed(node: MalformedNode) -> Row:
    """What a row says of a node that is not what it should be."""
    raw = None if isinstance(node, DeniedNode) else node.data
    return {"raw": raw, "problem": f"{node.path}: {node.reason}"}


def _session(session: int) -> str | None:
    return session_hex(session) if session else None


def _time(ms: int) -> int | None:
    """In microseconds; None for what is no time."""
    return ms * 1000 if 0 <= ms <= _LATEST_MS else None


def _now() -> int:
    return time.time_ns() // 1000


def _batches(table: Table, rows: Iterator[Row], cluster: str) -> Iterator[Any]:
    while some := list(islice(rows, ROWS)):
        yield _batch(table, some, cluster)


def _batch(table: Table, rows: list[Row], cluster: str) -> Any:
    now = _now()
    return pa.RecordBatch.from_pylist(
        [row | {"cluster": cluster, "read_at": now} for row in rows], schema=arrow_schema(table)
    )
