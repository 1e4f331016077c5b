"""Read a table from the data directory of a ZooKeeper server, with the same rows that the server would return.

ACLs are not checked, so no row reports a forbidden node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..core.layouts.layout import LayoutOffset
from ..core.layouts.legacy import LEGACY
from ..core.selection import Selection
from ..core.table_columns import Table
from ..core.znodes.codecs import decode_owned_topic
from ..core.znodes.paths import Part
from ..core.znodes.topic_partition import parse_partition
from ..core.znodes.values import Owner
from ..datadir.data_dir import DataDir, DataDirState
from ..zookeeper.reading import group_reader, tree_walk
from ..zookeeper.reading.layouts import offsets_of
from ..zookeeper.reading.tree_walk import PartDirectory
from ..zookeeper.requests.bulk_read import Block
from ..zookeeper.requests.node import Node
from .source_options import SourceOptions
from .table_reader import layout_batches, member_batches, offset_batches, owner_batches

log = logging.getLogger("zkgroups.spark")

_PARTS: Final[Mapping[Table, tuple[Part, ...]]] = {
    Table.OFFSETS: (Part.OWNERS, Part.OFFSETS),
    Table.OWNERS: (Part.OWNERS,),
    Table.MEMBERS: (Part.IDS,),
}


@dataclass(frozen=True, slots=True)
class DataDirCounts:
    """The numbers of selected groups, topics, offsets, owners and members in a data directory."""

    groups: int
    topics: int
    offsets: int
    owners: int
    members: int


def find_state(files: DataDir, zxid: int | None) -> DataDirState:
    """Find the state to read, and log which damaged files were skipped."""
    state = files.state(zxid)
    for note in state.notes:
        log.warning("%s", note)
    return state


def read_batches(options: SourceOptions, selection: Selection, state: DataDirState) -> Iterator[Any]:
    """Return the selected rows of the table in that state, as Arrow batches."""
    assert options.files is not None
    parts = _PARTS[options.table]
    has_group: Callable[[str], bool] = selection.has_group
    if options.parsed_layout != LEGACY:
        groups = _groups_in_layout(options, selection, state)
        if options.table is Table.OFFSETS:
            return layout_batches(options.parsed_layout, groups.items(), options.shown_cluster)
        if not options.parsed_layout.has_registrations:
            return iter(())
        has_group = groups.__contains__
    if options.table is Table.OFFSETS and not options.with_owners:
        parts = (Part.OFFSETS,)
    reading = options.files.groups(state, parts, has_group, selection.has_topic)
    blocks, cluster = reading.blocks(), options.shown_cluster
    if options.table is Table.OWNERS:
        return owner_batches(blocks, cluster)
    if options.table is Table.MEMBERS:
        return member_batches(blocks, cluster)
    owners = _Owners()
    return offset_batches(owners.collect(blocks), owners.of, cluster)


def _groups_in_layout(
    options: SourceOptions, selection: Selection, state: DataDirState
) -> dict[str, list[LayoutOffset]]:
    """Return the selected groups of another layout, with their selected offsets."""
    assert options.files is not None
    layout = options.parsed_layout
    nodes = options.files.layout_nodes(state, layout, selection.has_group)
    return {group: offsets_of(layout, group, nodes[group], selection.has_topic) for group in sorted(nodes)}


def count(options: SourceOptions, state: DataDirState) -> DataDirCounts:
    """Count the selected nodes. This reads all files, and so detects any damage."""
    selection = Selection(options.groups, options.topics)
    if options.parsed_layout == LEGACY:
        return _counts(options, selection, state, selection.has_group)
    groups = _groups_in_layout(options, selection, state)
    topics = {(group, each.topic) for group, offsets in groups.items() for each in offsets if each.topic}
    counts = DataDirCounts(len(groups), len(topics), sum(map(len, groups.values())), 0, 0)
    if not options.parsed_layout.has_registrations:
        return counts
    registered = _counts(options, selection, state, groups.__contains__)
    return replace(counts, owners=registered.owners, members=registered.members)


def _counts(
    options: SourceOptions, selection: Selection, state: DataDirState, has_group: Callable[[str], bool]
) -> DataDirCounts:
    assert options.files is not None
    reading = options.files.groups(state, set(Part), has_group, selection.has_topic)
    rows = dict.fromkeys(Part, 0)
    topics: set[tuple[str, str]] = set()
    for block in reading.blocks():
        place = block.parts[0].key
        rows[place.part] += block.count
        if place.part is Part.OFFSETS:
            topics.add((place.group, place.topic))
    return DataDirCounts(len(reading.groups), len(topics), rows[Part.OFFSETS], rows[Part.OWNERS], rows[Part.IDS])


@dataclass(slots=True)
class _Owners:
    """The owners of the partitions of the groups being read. The owners of a group come before its offsets."""

    _groups: dict[str, dict[str, dict[str, tuple[_Rank, str]]]] = field(default_factory=dict)

    def collect(self, blocks: Iterator[Block[PartDirectory]]) -> Iterator[Block[PartDirectory]]:
        """Store the blocks of owners, and yield the blocks of offsets."""
        for block in blocks:
            place = block.parts[0].key
            topics = self._groups.setdefault(place.group, {})
            if place.part is Part.OWNERS:
                _add(topics, block)
            else:
                yield block

    def of(self, group: str, topic: str) -> Mapping[str, str]:
        """Return owners by partition name, and forget all earlier groups."""
        while (before := next(iter(self._groups))) != group:
            del self._groups[before]
        return {name: owner for name, (_, owner) in self._groups[group].get(topic, {}).items()}


_Rank = tuple[str, int, str]
"""The sort key of an owner. If clients name nodes differently, two may own one partition: the first in order counts."""


def _add(topics: dict[str, dict[str, tuple[_Rank, str]]], block: Block[PartDirectory]) -> None:
    for place, name, node in tree_walk.nodes([block]):
        owner = group_reader.owner(place.topic, name, node) if isinstance(node, Node) else node
        if isinstance(owner, Owner):
            number = parse_partition(name)
            held = ((place.topic, -1 if number is None else number, name), owner.id)
            known = topics.setdefault(decode_owned_topic(place.topic), {})
            partition = str(owner.at.partition)
            known[partition] = min(held, known.get(partition, held))
