"""Read a table from a server: walk the selected part of the tree, and convert the nodes to Arrow batches."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core.kafka_values import OffsetRange
from ..core.layouts.layout import Layout, LayoutOffset
from ..core.layouts.legacy import LEGACY
from ..core.selection import Selection
from ..core.session_lifetime import session_hex
from ..core.table_columns import COLUMNS, Table
from ..core.znodes.codecs import decode_owned_topic, decode_owner_path
from ..core.znodes.paths import Part
from ..core.znodes.topic_partition import TopicPartition, is_topic, parse_partition
from ..core.znodes.values import (
    CommittedOffset,
    ForbiddenNode,
    Owner,
    ReadRegistration,
    Registration,
    UnevaluableRegistration,
)
from ..exceptions import InvalidInputError, ZkgroupsException
from ..zookeeper.reading import group_reader, layouts, tree_walk
from ..zookeeper.reading.tree_walk import PartDirectory
from ..zookeeper.registry import Registry
from ..zookeeper.requests.bulk_read import Block, Siblings
from ..zookeeper.requests.node import Node
from ..zookeeper.session.session import RegistryContext, context_of
from .arrow import (
    ROWS,
    TIMESTAMP,
    RowValues,
    arrow_schema,
    batch_of,
    from_array,
    malformed_columns,
    now,
    offset_columns,
    stat_columns,
    time_column,
)
from .source_options import SourceOptions

if TYPE_CHECKING:
    from ..kafka import Brokers


# The log start and log end of each partition in the table of offsets, from the brokers.
#
# Offsets are read before log ends, so that no lag is negative. The log ends of a partition may be a little later in
# one row than in another. If the brokers do not answer, the log ends are null: the offsets are more important.


log = logging.getLogger("zkgroups.spark")

START: Final = "log_start"
END: Final = "log_end"

_ROWS: Final = 100_000
"""The approximate number of rows for which to ask the brokers at once."""

_PARTITIONS: Final = 2**31
"""More than there are partitions in a topic."""


def check_brokers(options: SourceOptions) -> str | None:
    """Return why there are no log ends; None if the brokers answer, or if none are given.

    Raise InvalidInputError for options that cannot be used.
    """
    if options.brokers is None:
        return None
    try:
        with options.brokers.connect() as brokers:
            brokers.cluster_id()
    except InvalidInputError:
        raise
    except ZkgroupsException as error:
        return str(error)
    return None


def lags(offsets: Any, ends: Any) -> Any:
    """Return the lag of each offset, null if it is unknown: `core/offsets/lag.py` has the rule."""
    return pc.if_else(pc.less_equal(offsets, ends), pc.subtract(ends, offsets), pa.scalar(None, pa.int64()))


def with_log_ends(batches: Iterator[Any], options: SourceOptions) -> Iterator[Any]:
    """Fill in the log ends of batches of offsets, if the options have brokers. Other batches are not changed."""
    if options.brokers is None or options.table is not Table.OFFSETS:
        yield from batches
        return
    with options.brokers.connect() as brokers:
        reader = _LogReader(brokers)
        for together in _collected(batches):
            yield from reader.filled(together)


def _collected(batches: Iterable[Any]) -> Iterator[list[Any]]:
    together: list[Any] = []
    for batch in batches:
        together.append(batch)
        if sum(map(len, together)) >= _ROWS:
            yield together
            together = []
    if together:
        yield together


class _LogReader:
    """Asks the brokers until they fail once, because each failure takes as long as the timeout."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._has_failed = False

    def filled(self, batches: list[Any]) -> Iterator[Any]:
        """Yield batches that were read before, with their log ends."""
        keys, places = _places(pa.Table.from_batches(batches).select(["topic", "partition"]))
        distinct = pc.unique(keys).drop_null()
        ranges = self._ranges(list(map(places, distinct.to_pylist())))
        rows = pc.index_in(keys, value_set=distinct)
        starts, ends = (
            pa.array([getattr(each, name, None) for each in ranges], pa.int64()).take(rows) for name in ("start", "end")
        )
        done = 0
        for batch in batches:
            for name, column in ((START, starts), (END, ends)):
                index = batch.schema.get_field_index(name)
                batch = batch.set_column(index, batch.schema.field(index), column.slice(done, len(batch)))
            done += len(batch)
            yield batch

    def _ranges(self, places: list[TopicPartition]) -> list[OffsetRange | None]:
        found: Mapping[TopicPartition, OffsetRange | None] = {}
        if not self._has_failed:
            try:
                found = self._brokers.ranges(places)
            except ZkgroupsException as error:
                self._has_failed = True
                log.warning("log ends are unknown: %s", error)
        return [found.get(at) for at in places]


def _places(rows: Any) -> tuple[Any, Callable[[int], TopicPartition]]:
    """Return a number for the partition of each row, null if it has none, and the function from number to partition."""
    topics = rows.column("topic").combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    numbers = pc.multiply(topics.indices.cast(pa.int64()), _PARTITIONS)
    keys = pc.add(numbers, rows.column("partition").combine_chunks().cast(pa.int64()))
    return keys, lambda key: TopicPartition(names[key // _PARTITIONS], key % _PARTITIONS)


# Rows of the table of offsets, for layouts other than the legacy one. They have no owners.
#
# An offset may need several nodes, and a node may hold several offsets. So they are converted row by row.


def layout_batches(layout: Layout, groups: Iterable[tuple[str, list[LayoutOffset]]], cluster: str) -> Iterator[Any]:
    """Convert the offsets of groups to Arrow batches."""
    rows: list[RowValues] = []
    for _group, offsets in groups:
        for each in offsets:
            rows.append(_row(layout, each))
            if len(rows) >= ROWS:
                yield batch_of(Table.OFFSETS, rows, cluster)
                rows = []
    if rows:
        yield batch_of(Table.OFFSETS, rows, cluster)


def _row(layout: Layout, offset: LayoutOffset) -> RowValues:
    found, node = offset.found, offset.node
    row: RowValues = {
        "group": offset.group,
        "topic": offset.topic,
        "partition": offset.partition,
        "layout": layout.text,
    }
    if node is not None:
        row |= stat_columns(node.version, node.zxid, node.modified_ms, node.created_ms)
    return row | ({"offset": found.offset} if isinstance(found, CommittedOffset) else malformed_columns(found))


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
        if options.table is Table.MEMBERS or options.parsed_layout != LEGACY:
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
    layout = options.parsed_layout
    if options.table is not Table.OFFSETS and not layout.has_registrations:
        return
    groups = [group for group in registry.groups(layout) if selection.has_group(group)]
    context, cluster = context_of(registry), options.shown_cluster
    if options.table is Table.OFFSETS and layout != LEGACY:
        read_offsets = layouts.read_offsets(context, layout, groups, selection.has_topic)
        yield from layout_batches(layout, read_offsets, cluster)
    elif options.table is Table.OFFSETS:
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
            yield batch_of(Table.OFFSETS, _offset_rows(together, owners), cluster)


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
    read_at = pa.repeat(pa.scalar(now(), TIMESTAMP), rows)
    columns = [pa.repeat(cluster, rows), group, topic, partition]
    columns += [offset, count, committed, created, zxid, owner, pa.repeat(LEGACY.text, rows)]
    columns += [unknown, unknown, raw, problem, read_at]
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
        row = _row_at(place, place.topic, parse_partition(name), node) | {"layout": LEGACY.text}
        if name:
            row["owner"] = owners(place.group, place.topic).get(name)
        if isinstance(node, Node):
            found = group_reader.offset_named(place.group, place.topic, name, node)
            row |= stat_columns(node.version, node.mzxid, node.modified_ms, node.created_ms)
            row |= {"offset": found.offset} if isinstance(found, CommittedOffset) else malformed_columns(found)
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
            row |= {"session": _session(node.session), "claimed_at": time_column(node.created_ms), "zxid": node.czxid}
            row |= {"owner": found.id} if isinstance(found, Owner) else malformed_columns(found)
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
            row |= malformed_columns(node)
        else:
            found = group_reader.registered_instance(name, node)
            row |= {"session": _session(found.session), "registered_at": time_column(node.created_ms)}
            row |= _registration(found.registration)
        yield row


def _registration(found: ReadRegistration) -> RowValues:
    if not isinstance(found, Registration):
        return malformed_columns(found.node if isinstance(found, UnevaluableRegistration) else found)
    streams = list(found.streams.items())
    row: RowValues = {"subscription": streams, "pattern": found.pattern.value, "dialect": found.dialect.value}
    return row | {"client_id": found.client_id or None, "client_host": found.client_host or None}


# Rows


def _row_at(place: PartDirectory, topic: str, partition: int | None, node: Node | ForbiddenNode) -> RowValues:
    row: RowValues = {"group": place.group, "topic": topic or None, "partition": partition}
    return row | malformed_columns(node) if isinstance(node, ForbiddenNode) else row


def _session(session: int) -> str | None:
    return session_hex(session) if session else None


def _batches(
    table: Table,
    rows: Callable[[Iterable[Block[PartDirectory]]], Iterator[RowValues]],
    blocks: Iterator[Block[PartDirectory]],
    cluster: str,
) -> Iterator[Any]:
    while together := _next_blocks(blocks):
        yield batch_of(table, rows(together), cluster)
