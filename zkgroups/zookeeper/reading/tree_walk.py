"""Walk the tree of groups, breadth first: groups, their parts (ids, owners, offsets), topics, partitions.

Each level is a stream that reads from the level above, and reads ahead no further than `bulk_read.py` does. So a tree
of any size takes the same memory. A group or topic that is deleted during the walk is left out. A forbidden directory
stays in the stream, without names and with its `ForbiddenNode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from ...core.znodes.codecs import decode_owned_topic
from ...core.znodes.paths import CONSUMERS, Part, join
from ...core.znodes.topic_partition import TopicPartition, is_topic, parse_partition
from ...core.znodes.values import ForbiddenNode
from ..requests.bulk_read import Block, Siblings, children_of, failed_read, read
from ..requests.multiread import Kind
from ..requests.node import Node
from ..session.session import RegistryContext


class PartDirectory(NamedTuple):
    """A directory in one part of a group. `topic` is its name, empty for the part itself."""

    group: str
    part: Part
    topic: str = ""
    forbidden: ForbiddenNode | None = None


TopicFilter: TypeAlias = Callable[[str, str], bool]
"""Return True to read a topic of a group. The topic is empty if the topics are forbidden."""


def all_topics(_group: str, _topic: str) -> bool:
    """Select every topic."""
    return True


def leaves(
    context: RegistryContext, groups: Iterable[str], part: Part, wanted: TopicFilter = all_topics
) -> Iterator[Block[PartDirectory]]:
    """Yield the nodes of all partitions in one part of the groups: in the given order, topic by topic."""
    return read(context, Kind.NODE, partitions(context, groups, part, wanted))


def registrations(context: RegistryContext, groups: Iterable[str]) -> Iterator[Block[PartDirectory]]:
    """Yield the nodes of all instances of the groups."""
    return read(context, Kind.NODE, instances(context, groups))


def instances(context: RegistryContext, groups: Iterable[str]) -> Iterator[Siblings[PartDirectory]]:
    """Yield the sorted names of all instances of the groups."""
    asked = (Siblings(group, join(CONSUMERS, group), [Part.IDS]) for group in groups)
    for siblings, part, names in children_of(context, asked):
        forbidden = names if isinstance(names, ForbiddenNode) else None
        directory = PartDirectory(siblings.key, Part.IDS, forbidden=forbidden)
        yield Siblings(directory, siblings.path(part), sorted(names) if isinstance(names, list) else ())


def nodes(blocks: Iterable[Block[PartDirectory]]) -> Iterator[tuple[PartDirectory, str, Node | ForbiddenNode]]:
    """Yield the nodes in these blocks, each with its directory and name. A forbidden directory has an empty name."""
    for block in blocks:
        decoded = block.records()
        for siblings in block.parts:
            directory = siblings.key
            if directory.forbidden is not None:
                yield directory, "", directory.forbidden
            for name in siblings.names:
                record, path = next(decoded), siblings.path(name)
                node = failed_read(path, record) if isinstance(record, int) else Node(path, *record)
                if node is not None:
                    yield directory, name, node


class PlainOffsets(NamedTuple):
    """The offsets of one topic of a group, or some of them, as columns."""

    group: str
    places: tuple[TopicPartition, ...]
    offsets: Sequence[int]
    zxids: Sequence[int]
    modified_ms: Sequence[int]


def plain_offsets(block: Block[PartDirectory]) -> list[PlainOffsets] | None:
    """Return the offsets in a block, by directory. None unless all nodes are partitions with plain numbers."""
    columns = block.plain_offsets()
    if columns is None:
        return None
    found, start = [], 0
    for siblings in block.parts:
        directory = siblings.key
        places = _places(directory.topic, tuple(siblings.names))
        if places is None or directory.forbidden is not None:
            return None
        end = start + len(places)
        found.append(PlainOffsets(directory.group, places, *(column[start:end] for column in columns)))
        start = end
    return found


@lru_cache(maxsize=1024)  # most topics have the same partitions in all groups
def _places(topic: str, names: tuple[str, ...]) -> tuple[TopicPartition, ...] | None:
    partitions = [number for name in names if (number := parse_partition(name)) is not None]
    if len(partitions) < len(names) or not is_topic(topic):
        return None
    return tuple(TopicPartition(topic, number) for number in partitions)


def partitions(
    context: RegistryContext, groups: Iterable[str], part: Part, wanted: TopicFilter = all_topics
) -> Iterator[Siblings[PartDirectory]]:
    """Yield the names of all partitions in one part of the groups, sorted by number within each topic."""
    for siblings, topic, names in children_of(context, _topics(context, groups, part, wanted)):
        group = siblings.key.group
        if siblings.key.forbidden is not None:
            yield siblings
        elif isinstance(names, ForbiddenNode):
            yield Siblings(PartDirectory(group, part, topic, names), siblings.path(topic), ())
        elif names:
            yield Siblings(PartDirectory(group, part, topic), siblings.path(topic), sort_partitions(names))


def _topics(
    context: RegistryContext, groups: Iterable[str], part: Part, wanted: TopicFilter
) -> Iterator[Siblings[PartDirectory]]:
    """Yield the directories of topics, group by group. Two spellings of one topic are adjacent."""
    decode = decode_owned_topic if part is Part.OWNERS else str
    asked = (Siblings(group, join(CONSUMERS, group), [part]) for group in groups)
    for siblings, _part, topics in children_of(context, asked):
        group, directory = siblings.key, siblings.path(part)
        if isinstance(topics, ForbiddenNode):
            if wanted(group, ""):
                yield Siblings(PartDirectory(group, part, forbidden=topics), directory, ())
            continue
        decoded = sorted((decode(name), name) for name in topics or ())
        if names := [name for topic, name in decoded if wanted(group, topic)]:
            yield Siblings(PartDirectory(group, part), directory, names)


def sort_partitions(names: Sequence[str]) -> tuple[str, ...]:
    """Sort names of partitions by number. Other names come first."""
    return (_sort if len(names) > _MAX_CACHED else _cached_sort)(tuple(names))


_MAX_CACHED: Final = 1000
"""How many names to cache at most. Most topics have the same partitions as another topic."""


def _sort(names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(sorted(names, key=parse_partition))  # type: ignore[arg-type]
    except TypeError:  # a name is not a partition
        return tuple(sorted(names, key=_by_number))


_cached_sort = lru_cache(maxsize=256)(_sort)


def _by_number(name: str) -> tuple[int, str]:
    partition = parse_partition(name)
    return (-1 if partition is None else partition, name)
