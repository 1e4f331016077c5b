"""Walking the tree of groups, breadth first: groups, what is in their parts, the partitions of topics.

Each level is a stream that draws on the one above and reads ahead no more than `zookeeper/requests/bulk_read.py`
does, so that a tree of any
size takes the same memory. A group or topic that goes away in mid-walk is left out. One that may not be listed keeps
its place in the stream, with no names but a `hidden` that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from ...core.znodes.names import parse_partition
from ...core.znodes.owner_codec import decode_owned_topic
from ...core.znodes.paths import CONSUMERS, Part, join
from ...core.znodes.values import ForbiddenNode
from ..requests.bulk_read import Block, Siblings, below, failure, read
from ..requests.multiread import Kind
from ..requests.node import Node
from ..session.registry_context import RegistryContext


class Place(NamedTuple):
    """A directory in one part of a group; `topic` is the name it has there, empty for the part itself."""

    group: str
    part: Part
    topic: str = ""
    hidden: ForbiddenNode | None = None


Wanted: TypeAlias = Callable[[str, str], bool]
"""Whether to read a topic of a group; where topics may not be listed, its name is empty."""


def everything(_group: str, _topic: str) -> bool:
    """Every topic."""
    return True


def leaves(
    context: RegistryContext, groups: Iterable[str], part: Part, wanted: Wanted = everything
) -> Iterator[Block[Place]]:
    """The nodes of all partitions in one part of the groups: group by group as given, in each topic by topic."""
    return read(context, Kind.NODE, partitions(context, groups, part, wanted))


def registrations(context: RegistryContext, groups: Iterable[str]) -> Iterator[Block[Place]]:
    """The nodes of all instances of the groups."""
    return read(context, Kind.NODE, instances(context, groups))


def instances(context: RegistryContext, groups: Iterable[str]) -> Iterator[Siblings[Place]]:
    """The names of all instances of the groups, sorted."""
    asked = (Siblings(group, join(CONSUMERS, group), [Part.IDS]) for group in groups)
    for siblings, part, names in below(context, asked):
        hidden = names if isinstance(names, ForbiddenNode) else None
        place = Place(siblings.key, Part.IDS, hidden=hidden)
        yield Siblings(place, siblings.path(part), sorted(names) if isinstance(names, list) else ())


def nodes(blocks: Iterable[Block[Place]]) -> Iterator[tuple[Place, str, Node | ForbiddenNode]]:
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


def partitions(
    context: RegistryContext, groups: Iterable[str], part: Part, wanted: Wanted = everything
) -> Iterator[Siblings[Place]]:
    """The names of all partitions in one part of the groups, those of each topic in their order."""
    for siblings, topic, names in below(context, _topics(context, groups, part, wanted)):
        place = siblings.key
        if place.hidden is not None:
            yield siblings
        elif isinstance(names, ForbiddenNode):
            yield Siblings(Place(place.group, part, topic, names), siblings.path(topic), ())
        elif names:
            yield Siblings(Place(place.group, part, topic), siblings.path(topic), in_order(names))


def _topics(context: RegistryContext, groups: Iterable[str], part: Part, wanted: Wanted) -> Iterator[Siblings[Place]]:
    """The directories of topics, those of a group together; two forms of one topic stand side by side."""
    known_as = decode_owned_topic if part is Part.OWNERS else str
    asked = (Siblings(group, join(CONSUMERS, group), [part]) for group in groups)
    for siblings, _part, topics in below(context, asked):
        group, directory = siblings.key, siblings.path(part)
        if isinstance(topics, ForbiddenNode):
            if wanted(group, ""):
                yield Siblings(Place(group, part, hidden=topics), directory, ())
            continue
        known = sorted((known_as(name), name) for name in topics or ())
        if names := [name for topic, name in known if wanted(group, topic)]:
            yield Siblings(Place(group, part), directory, names)


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Names of partitions by number; before them what is none."""
    return (_in_order if len(names) > _FEW else _few_in_order)(tuple(names))


_FEW: Final = 1000
"""So many names are kept in case that the next topic has the same, which most have."""


def _in_order(names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(sorted(names, key=parse_partition))  # type: ignore[arg-type]
    except TypeError:  # something is none
        return tuple(sorted(names, key=_by_number))


_few_in_order = lru_cache(maxsize=256)(_in_order)


def _by_number(name: str) -> tuple[int, str]:
    partition = parse_partition(name)
    return (-1 if partition is None else partition, name)
