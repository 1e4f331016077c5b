"""Read a table from a server: walk the selected part of the tree, and convert the nodes to Arrow batches."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core.selection import Selection
from ..core.table_columns import COLUMNS
from ..core.tables import Table
from ..core.times import LATEST_MS
from ..core.znodes.names import is_topic, parse_partition
from ..core.znodes.owner_codec import decode_owned_topic, decode_owner_path
from ..core.znodes.paths import Part
from ..core.znodes.session_ids import session_hex
from ..core.znodes.values import (
    CommittedOffset,
    ForbiddenNode,
    Owner,
    ReadRegistration,
    Registration,
    UnevaluableRegistration,
    UnreadableNode,
)
from ..zookeeper.reading import group_reader, tree_walk
from ..zookeeper.reading.tree_walk import PartDirectory
from ..zookeeper.registry import Registry
from ..zookeeper.requests.bulk_read import Block, Siblings
from ..zookeeper.requests.node import Node
from ..zookeeper.session.registry_context import RegistryContext, context_of
from .arrow_columns import from_array, offset_columns
from .arrow_schema import TIMESTAMP, arrow_schema
from .source_options import SourceOptions

RowValues: TypeAlias = dict[str, Any]
"""The known values of a row, by column name."""

ROWS: Final = 40_000
"""The approximate number of rows per batch. With fewer rows, the digest of a batch takes longer."""

BYTES: Final = 2**24
"""The approximate size of a batch, which bounds memory if nodes are large."""


def read_batches(options: SourceOptions, selection: Selection) -> Iterator[Any]:
    """Open a session, and read the selected rows of the table."""
    with options.connect() as registry:
        registry.sync()
        yield from read_selected(registry, options, selection)


def written_after(batch: Any, zxid: int, *, or_in: Sequence[str] = ()) -> Any:
    """Select the rows written after a transaction, and all rows of some groups.

    Rows of forbidden nodes have no zxid, and are always selected.
    """
    wanted = pc.fill_null(pc.greater(batch.column("zxid"), zxid), True)
    if or_in:
        wanted = pc.or_(wanted, pc.is_in(batch.column("group"), value_set=pa.array(or_in, pa.string())))
    return batch.filter(wanted)


class TableReader:
    """Reads the owners, then the other tables, with one session. Owners are read only once, but kept in memory."""

    def __init__(self, registry: Registry, selection: Selection) -> None:
        self._registry = registry
        self._selection = selection
        self._owners: dict[tuple[str, str], dict[str, str]] = {}

    def read(self, options: SourceOptions) -> Iterator[Any]:
        """Read the selected rows of the table as Arrow batches."""
        if options.table is Table.MEMBERS:
            return read_selected(self._registry, options, self._selection)
        context, has_topic = context_of(self._registry), self._selection.has_topic
        groups = [group for group in self._registry.groups() if self._selection.has_group(group)]
        if options.table is Table.OWNERS:
            blocks = tree_walk.leaves(context, groups, Part.OWNERS, has_topic)
            return _batches(Table.OWNERS, self._kept_owners, blocks, options.shown_cluster)
        blocks = tree_walk.leaves(context, groups, Part.OFFSETS, has_topic)
        return offset_batches(blocks, self._owners_of, options.shown_cluster)

    def _kept_owners(self, blocks: Iterable[Block[PartDirectory]]) -> Iterator[RowValues]:
        same: dict[str, str] = {}  # one client owns many partitions
        for row in _owner_rows(blocks):
            if (owner := row.get("owner")) is not None:
                topic = self._owners.setdefault((row["group"], row["topic"]), {})
                topic.setdefault(str(row["partition"]), same.setdefault(owner, owner))
            yield row

    def _owners_of(self, group: str, topic: str) -> Mapping[str, str]:
        return self._owners.get((group, topic), {})


def read_selected(registry: Registry, options: SourceOptions, selection: Selection) -> Iterator[Any]:
    """Read the selected rows of the table with an open session that is up to date."""
    groups = [group for group in registry.groups() if selection.has_group(group)]
    context, cluster = context_of(registry), options.shown_cluster
    if options.table is Table.OFFSETS:
        yield from _offsets(context, groups, selection, cluster, with_owners=options.with_owners)
    else:
        read = _owners if options.table is Table.OWNERS else _members
        yield from read(context, groups, selection, cluster)


# Offsets


OwnersOf: TypeAlias = Callable[[str, str], Mapping[str, str]]
"""Returns the owners of a topic's partitions, by partition name, for a group and a topic."""


def _offsets(
    context: RegistryContext, groups: Sequence[str], selection: Selection, cluster: str, *, with_owners: bool
) -> Iterator[Any]:
    owners_of: OwnersOf = _no_owners
    if with_owners:
        owned = tree_walk.leaves(context, groups, Part.OWNERS, selection.has_topic)
        owners_of = _Owners(_owner_rows(owned), groups).of
    blocks = tree_walk.leaves(context, groups, Part.OFFSETS, selection.has_topic)
    yield from offset_batches(blocks, owners_of, cluster)


def _no_owners(_group: str, _topic: str) -> Mapping[str, str]:
    return {}


def offset_batches(blocks: Iterator[Block[PartDirectory]], owners: OwnersOf, cluster: str) -> Iterator[Any]:
    """Convert blocks of offsets. `owners` is called in the order of the blocks."""
    while together := _next_blocks(blocks):
        plain = _plain_columns(together)
        if plain is not None:
            yield _plain_batch(together, plain, owners, cluster)
        else:
            yield _batch(Table.OFFSETS, _offset_rows(together, owners), cluster)


def _next_blocks(blocks: Iterator[Block[PartDirectory]]) -> list[Block[PartDirectory]]:
    """Return the blocks of the next batch: enough for `ROWS` rows or `BYTES` bytes, or all that are left."""
    batch: list[Block[PartDirectory]] = []
    rows = size = 0
    for block in blocks:
        batch.append(block)
        rows += block.count
        size += len(block.answer)
        if rows >= ROWS or size >= BYTES:
            break
    return batch


def _plain_columns(blocks: Sequence[Block[PartDirectory]]) -> list[Any] | None:
    """Return the partition column and the result of `offset_columns`; None unless every row is a plain offset."""
    parts = [siblings for block in blocks for siblings in block.parts]
    if not all(siblings.key.forbidden is None and is_topic(siblings.key.topic) for siblings in parts):
        return None
    partitions = array("i")
    for siblings in parts:
        numbers = _numbers(tuple(siblings.names))
        if numbers is None:
            return None
        partitions.extend(numbers)
    columns = offset_columns([block.answer for block in blocks])
    if columns is None or len(columns[0]) != len(partitions):  # a damaged response: `records` raises the error
        return None
    return [from_array(partitions), *columns]


@lru_cache(maxsize=256)  # most topics have the same partition names
def _numbers(names: tuple[str, ...]) -> array[int] | None:
    numbers = [parse_partition(name) for name in names]
    return None if None in numbers else array("i", numbers)  # type: ignore[arg-type]


def _plain_batch(blocks: Sequence[Block[PartDirectory]], plain: list[Any], owners: OwnersOf, cluster: str) -> Any:
    parts = [siblings for block in blocks for siblings in block.parts]
    ends = pa.array(accumulate(len(siblings.names) for siblings in parts), pa.int32())
    names = [pa.array([of(siblings.key) for siblings in parts], pa.string()) for of in (_GROUP, _TOPIC)]
    group, topic = (pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values)) for values in names)
    partition, offset, count, committed, created, zxid = plain
    rows = len(partition)
    owner = _owner_column(parts, owners, rows)
    raw, problem, unknown = (pa.nulls(rows, kind) for kind in (pa.binary(), pa.string(), pa.int64()))
    read_at = pa.repeat(pa.scalar(_now(), TIMESTAMP), rows)
    columns = [pa.repeat(cluster, rows), group, topic, partition]
    columns += [offset, count, committed, created, zxid, owner, unknown, unknown, raw, problem, read_at]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(COLUMNS[Table.OFFSETS]))


_GROUP, _TOPIC = attrgetter("group"), attrgetter("topic")


def _owner_column(parts: Sequence[Siblings[PartDirectory]], owners: OwnersOf, rows: int) -> Any:
    held = [owners(siblings.key.group, siblings.key.topic) for siblings in parts]
    if not any(held):
        return pa.nulls(rows, pa.string())
    names = zip(parts, held, strict=True)
    return pa.array([topic.get(name) for siblings, topic in names for name in siblings.names], pa.string())


def _offset_rows(blocks: Iterable[Block[PartDirectory]], owners: OwnersOf) -> Iterator[RowValues]:
    for place, name, node in tree_walk.nodes(blocks):
        row = _row_at(place, place.topic, parse_partition(name), node)
        if name:
            row["owner"] = owners(place.group, place.topic).get(name)
        if isinstance(node, Node):
            found = group_reader.offset_named(place.group, place.topic, name, node)
            row |= {"commit_count": node.version, "zxid": node.mzxid}
            row |= {"committed_at": _time(node.modified_ms), "created_at": _time(node.created_ms)}
            row |= {"offset": found.offset} if isinstance(found, CommittedOffset) else _malformed(found)
        yield row


class _Owners:
    """The owners of each topic's partitions, read in the same order as the offsets."""

    def __init__(self, rows: Iterable[RowValues], groups: Iterable[str]) -> None:
        self._order = {group: number for number, group in enumerate(groups)}
        self._topics = groupby(rows, lambda row: (self._order[row["group"]], row["topic"] or ""))
        self._key: tuple[int, str] = (-1, "")
        self._found: dict[str, str] = {}

    def of(self, group: str, topic: str) -> Mapping[str, str]:
        """Return owners by partition name. Topics must be requested in order."""
        wanted = (self._order[group], topic)
        while self._key < wanted:
            self._key, rows = next(self._topics, ((len(self._order), ""), ()))
            self._found = _first_owners(rows)
        return self._found if self._key == wanted else {}


def _first_owners(rows: Iterable[RowValues]) -> dict[str, str]:
    """Return owners by partition name. If two clients own one partition by different node names, the first counts."""
    found: dict[str, str] = {}
    for row in rows:
        if row.get("owner") is not None:
            found.setdefault(str(row["partition"]), row["owner"])
    return found


# Owners and members


def _owners(context: RegistryContext, groups: Sequence[str], selection: Selection, cluster: str) -> Iterator[Any]:
    return owner_batches(tree_walk.leaves(context, groups, Part.OWNERS, selection.has_topic), cluster)


def owner_batches(blocks: Iterator[Block[PartDirectory]], cluster: str) -> Iterator[Any]:
    return _batches(Table.OWNERS, _owner_rows, blocks, cluster)


def _owner_rows(blocks: Iterable[Block[PartDirectory]]) -> Iterator[RowValues]:
    for place, name, node in tree_walk.nodes(blocks):
        found = group_reader.owner(place.topic, name, node) if isinstance(node, Node) else node
        at = found.at if isinstance(found, Owner) else decode_owner_path(place.topic, name)
        row = _row_at(place, decode_owned_topic(place.topic), None if at is None else at.partition, node)
        if isinstance(node, Node):
            row |= {"session": _session(node.session), "claimed_at": _time(node.created_ms), "zxid": node.czxid}
            row |= {"owner": found.id} if isinstance(found, Owner) else _malformed(found)
        yield row


def _members(context: RegistryContext, groups: Sequence[str], selection: Selection, cluster: str) -> Iterator[Any]:
    selected = [group for group in groups if selection.has_topic(group, "")]
    return member_batches(tree_walk.registrations(context, selected), cluster)


def member_batches(blocks: Iterator[Block[PartDirectory]], cluster: str) -> Iterator[Any]:
    """Convert blocks of registrations."""
    return _batches(Table.MEMBERS, _member_rows, blocks, cluster)


def _member_rows(blocks: Iterable[Block[PartDirectory]]) -> Iterator[RowValues]:
    for place, name, node in tree_walk.nodes(blocks):
        row: RowValues = {"group": place.group, "instance": name or None}
        if isinstance(node, ForbiddenNode):
            row |= _malformed(node)
        else:
            found = group_reader.registered_instance(name, node)
            row |= {"session": _session(found.session), "registered_at": _time(node.created_ms)}
            row |= _registration(found.registration)
        yield row


def _registration(found: ReadRegistration) -> RowValues:
    if not isinstance(found, Registration):
        return _malformed(found.node if isinstance(found, UnevaluableRegistration) else found)
    streams = list(found.streams.items())
    row: RowValues = {"subscription": streams, "pattern": found.pattern.value, "dialect": found.dialect.value}
    return row | {"client_id": found.client_id or None, "client_host": found.client_host or None}


# Rows


def _row_at(place: PartDirectory, topic: str, partition: int | None, node: Node | ForbiddenNode) -> RowValues:
    row: RowValues = {"group": place.group, "topic": topic or None, "partition": partition}
    return row | _malformed(node) if isinstance(node, ForbiddenNode) else row


def _malformed(node: UnreadableNode) -> RowValues:
    """Return the columns `raw` and `problem` of an unreadable node."""
    raw = None if isinstance(node, ForbiddenNode) else node.data
    return {"raw": raw, "problem": f"{node.path}: {node.reason}"}


def _session(session: int) -> str | None:
    return session_hex(session) if session else None


def _time(ms: int) -> int | None:
    """Convert to microseconds; return None if out of range."""
    return ms * 1000 if 0 <= ms <= LATEST_MS else None


def _now() -> int:
    return time.time_ns() // 1000


def _batches(
    table: Table,
    rows: Callable[[Iterable[Block[PartDirectory]]], Iterator[RowValues]],
    blocks: Iterator[Block[PartDirectory]],
    cluster: str,
) -> Iterator[Any]:
    while together := _next_blocks(blocks):
        yield _batch(table, rows(together), cluster)


def _batch(table: Table, rows: Iterable[RowValues], cluster: str) -> Any:
    now = _now()
    return pa.RecordBatch.from_pylist(
        [row | {"cluster": cluster, "read_at": now} for row in rows], schema=arrow_schema(COLUMNS[table])
    )
