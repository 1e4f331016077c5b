"""Reading a table out of a server's data directory: the same rows as of the server, at the moment that is found there.

Nobody asks who may read a node: there are no rows of what may not be read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...core.znodes.codec import decode_owned_topic
from ...core.znodes.paths import Part, parse_partition
from ...core.znodes.values import Owner
from ...datadir.data_dir import DataDir, State
from ...zookeeper.reading import group_reader, tree_walk
from ...zookeeper.reading.tree_walk import PartDirectory
from ...zookeeper.requests.bulk_read import Block
from ...zookeeper.requests.node import Node
from .options import SourceOptions
from .selection import Selection
from .table_reader import member_batches, offset_batches, owner_batches
from .tables import Table

log = logging.getLogger("zkgroups.spark")

_PARTS: Final = {
    Table.OFFSETS: (Part.OWNERS, Part.OFFSETS),
    Table.OWNERS: (Part.OWNERS,),
    Table.MEMBERS: (Part.IDS,),
}


@dataclass(frozen=True, slots=True)
class Counts:
    """What there is, of what is selected."""

    groups: int
    topics: int
    offsets: int
    owners: int
    members: int


def found(files: DataDir, zxid: int | None) -> State:
    """What there is to read; what was passed over is logged."""
    state = files.state(zxid)
    for note in state.notes:
        log.warning("%s", note)
    return state


def read_batches(options: SourceOptions, selection: Selection, state: State) -> Iterator[Any]:
    """The rows of the table that are selected, as they were in that state."""
    assert options.files is not None
    reading = options.files.groups(state, _PARTS[options.table], selection.has_group, selection.has_topic)
    blocks, cluster = reading.blocks(), options.shown_cluster
    if options.table is Table.OWNERS:
        return owner_batches(blocks, cluster)
    if options.table is Table.MEMBERS:
        return member_batches(blocks, cluster)
    owners = _Owners()
    return offset_batches(owners.taken_from(blocks), owners.of, cluster)


def count(options: SourceOptions, state: State) -> Counts:
    """Look through all of it, and so find out whether it is as it was written."""
    assert options.files is not None
    selection = Selection(options.groups, options.topics)
    reading = options.files.groups(state, set(Part), selection.has_group, selection.has_topic)
    rows = dict.fromkeys(Part, 0)
    topics: set[tuple[str, str]] = set()
    for block in reading.blocks():
        place = block.parts[0].key
        rows[place.part] += block.count
        if place.part is Part.OFFSETS:
            topics.add((place.group, place.topic))
    return Counts(len(reading.groups), len(topics), rows[Part.OFFSETS], rows[Part.OWNERS], rows[Part.IDS])


@dataclass(slots=True)
class _Owners:
    """Who owns the partitions, as long as their groups go by: the owners of a group come before its offsets."""

    _groups: dict[str, dict[str, dict[str, tuple[_Rank, str]]]] = field(default_factory=dict)

    def taken_from(self, blocks: Iterator[Block[PartDirectory]]) -> Iterator[Block[PartDirectory]]:
        """Keep the owners, and pass on the offsets."""
        for block in blocks:
            place = block.parts[0].key
            topics = self._groups.setdefault(place.group, {})
            if place.part is Part.OWNERS:
                _add(topics, block)
            else:
                yield block

    def of(self, group: str, topic: str) -> Mapping[str, str]:
        """By the names of the partitions; groups that came before this one are forgotten."""
        while (before := next(iter(self._groups))) != group:
            del self._groups[before]
        return {name: owner for name, (_, owner) in self._groups[group].get(topic, {}).items()}


_Rank = tuple[str, int, str]
"""Two clients whose nodes do not exclude each other may hold the same partition: the first counts, as in a walk."""


def _add(topics: dict[str, dict[str, tuple[_Rank, str]]], block: Block[PartDirectory]) -> None:
    for place, name, node in tree_walk.nodes([block]):
        owner = group_reader.owner(place.topic, name, node) if isinstance(node, Node) else node
        if isinstance(owner, Owner):
            number = parse_partition(name)
            held = ((place.topic, -1 if number is None else number, name), owner.id)
            known = topics.setdefault(decode_owned_topic(place.topic), {})
            partition = str(owner.at.partition)
            known[partition] = min(held, known.get(partition, held))
