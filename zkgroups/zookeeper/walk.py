"""Walking the tree of groups, breadth first: groups, what is in their parts, the partitions of topics.

Each level is a stream that draws on the one above and reads ahead no more than `bulk.py` does, so that a tree of any
size takes the same memory. A group or topic that goes away in mid-walk is left out. One that may not be listed keeps
its place in the stream, with no names but a `hidden` that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from ..core.codec import decode_owned_topic
from ..core.model import DeniedNode
from ..core.paths import CONSUMERS, Part, join, parse_partition
from .bulk import Block, Siblings, below, failure, read
from .handle import Handle
from .multiread import Kind
from .node import Node


@dataclass(frozen=True, slots=True)
class Place:
    """A directory in one part of a group; `topic` is the name it has there, empty for the part itself."""

    group: str
    part: Part
    topic: str = ""
    hidden: DeniedNode | None = None


Wanted: TypeAlias = Callable[[str, str], bool]
"""Whether to read a topic of a group; where topics may not be listed, its name is empty."""


def leaves(
    handle: Handle, groups: Iterable[str], parts: Sequence[Part], wanted: Wanted = lambda _group, _topic: True
) -> Iterator[Block[Place]]:
    """The nodes of all partitions in these parts of the groups. A topic's owners come right before its offsets."""
    return read(handle, Kind.NODE, _partitions(handle, _topics(handle, groups, parts, wanted)))


def registrations(handle: Handle, groups: Iterable[str]) -> Iterator[Block[Place]]:
    """The nodes of all instances of the groups."""
    asked = (Siblings(group, join(CONSUMERS, group), [Part.IDS]) for group in groups)
    return read(handle, Kind.NODE, _instances(below(handle, asked)))


def _instances(
    listed: Iterable[tuple[Siblings[str], str, list[str] | DeniedNode | None]],
) -> Iterator[Siblings[Place]]:
    for siblings, part, names in listed:
        hidden = names if isinstance(names, DeniedNode) else None
        place = Place(siblings.key, Part.IDS, hidden=hidden)
        yield Siblings(place, siblings.path(part), sorted(names) if isinstance(names, list) else ())


def nodes(blocks: Iterable[Block[Place]]) -> Iterator[tuple[Place, str, Node | DeniedNode]]:
    """The nodes in these blocks, each with its place and name; and what may not be listed, with an empty name."""
    for block in blocks:
        found = block.records()
        for siblings in block.parts:
            place = siblings.key
            if place.hidden is not None:
                yield place, "", place.hidden
            for name in siblings.names:
                record, path = next(found), siblings.path(name)
                node = failure(path, record) if isinstance(record, int) else Node(path, *record)
                if node is not None:
                    yield place, name, node


def _topics(handle: Handle, groups: Iterable[str], parts: Sequence[Part], wanted: Wanted) -> Iterator[Siblings[Place]]:
    """The directories of topics, group by group, those of one topic together."""
    asked = (Siblings(group, join(CONSUMERS, group), parts) for group in groups)
    for _group, listed in groupby(below(handle, asked), lambda found: found[0].key):
        directories = [directory for found in listed for directory in _directories(*found)]
        directories.sort(key=lambda directory: _topic(directory.key))
        yield from (directory for directory in directories if wanted(directory.key.group, _topic(directory.key)))


def _directories(
    siblings: Siblings[str], part: str, topics: list[str] | DeniedNode | None
) -> Iterator[Siblings[Place]]:
    group, directory = siblings.key, siblings.path(part)
    if isinstance(topics, DeniedNode):
        yield Siblings(Place(group, Part(part), "", topics), directory, ())
        return
    for topic in topics or ():
        yield Siblings(Place(group, Part(part), topic), directory, (topic,))


def _topic(place: Place) -> str:
    return decode_owned_topic(place.topic) if place.part is Part.OWNERS else place.topic


def _partitions(handle: Handle, topics: Iterable[Siblings[Place]]) -> Iterator[Siblings[Place]]:
    """The partitions of these topics, in their order."""
    for siblings, topic, names in below(handle, topics):
        place = siblings.key
        if place.hidden is not None:
            yield siblings
        elif isinstance(names, DeniedNode):
            yield Siblings(replace(place, hidden=names), siblings.path(topic), ())
        elif names:
            yield Siblings(place, siblings.path(topic), in_order(names))


def in_order(names: list[str]) -> list[str]:
    """Names of partitions by number; before them what is none."""
    try:
        return sorted(names, key=int)
    except ValueError:
        return sorted(names, key=_by_number)


def _by_number(name: str) -> tuple[int, str]:
    partition = parse_partition(name)
    return (-1 if partition is None else partition, name)
