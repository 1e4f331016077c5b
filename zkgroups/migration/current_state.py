"""What both sides have of whole groups at this moment, in bulk: what the guards are looked at with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

from ..core.kafka_values import NativeGroup, NativeOffset
from ..core.migration.apply_rules import Place, SourceSeen, TargetSeen, TopicIds, Znode
from ..core.migration.plain_groups import Shape, Znodes, plain_of, shape_of
from ..core.migration.plan_rows import PlanRow
from ..core.znodes.migration_mark import Mark
from ..core.znodes.names import parse_partition
from ..core.znodes.offset_codec import decode_offset, is_plain_offset
from ..core.znodes.paths import Part
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import ForbiddenNode, UnreadableNode
from ..exceptions import InvalidNameError, ZkgroupsException
from ..kafka import Brokers
from ..kafka.fetch_offsets import check_native_group
from ..zookeeper.reading import group_reader, tree_walk
from ..zookeeper.registry import Registry
from ..zookeeper.requests.bulk_read import Block
from ..zookeeper.requests.multiread import plain_offsets
from ..zookeeper.requests.node import Node
from ..zookeeper.session.registry_context import context_of


def look_at_sources(registry: Registry, groups: Iterable[str]) -> dict[str, SourceSeen]:
    """Read the living instances and all offsets of these groups, as the leader has them now."""
    names = list(dict.fromkeys(groups))
    registry.sync()
    found = {group: _Source() for group in names}
    for siblings in tree_walk.instances(context_of(registry), names):
        found[siblings.key.group].registered(siblings.names, siblings.key.forbidden)
    for group, dead in group_reader.read_dead(
        context_of(registry), [group for group in names if found[group].instances]
    ).items():
        found[group].instances = tuple(id for id in found[group].instances if id not in {each.id for each in dead})
    for block in tree_walk.leaves(context_of(registry), names, Part.OFFSETS):
        parts = _plain_parts(block)
        for part in parts or ():
            found[part.group].parts.append(part)
        for place, name, node in tree_walk.nodes([block] if parts is None else ()):
            found[place.group].offset(place.topic, name, node)
    return {group: it.seen() for group, it in found.items()}


class _Part(NamedTuple):
    """Offsets of some partitions of one topic, which are in order."""

    group: str
    topic: str
    partitions: tuple[int, ...]
    zxids: list[int]
    offsets: list[int]


def _plain_parts(block: Block[tree_walk.PartDirectory]) -> list[_Part] | None:
    """What a block has; None where anything in it is no plain offset of a partition."""
    if any(siblings.key.forbidden is not None for siblings in block.parts):
        return None
    partitions = [_partitions(tuple(siblings.names)) for siblings in block.parts]
    if None in partitions or (columns := plain_offsets(block.answer, block.count)) is None:
        return None
    zxids, offsets = columns
    ends = list(accumulate(len(siblings.names) for siblings in block.parts))
    return [
        _Part(
            siblings.key.group,
            siblings.key.topic,
            numbers,
            zxids[end - len(numbers) : end],
            offsets[end - len(numbers) : end],
        )
        for siblings, numbers, end in zip(block.parts, partitions, ends, strict=True)
        if numbers is not None
    ]


@lru_cache(maxsize=256)  # most topics have the partitions that another had, too
def _partitions(names: tuple[str, ...]) -> tuple[int, ...] | None:
    numbers = tuple(number for name in names if (number := parse_partition(name)) is not None)
    return numbers if len(numbers) == len(names) else None


@lru_cache(maxsize=256)
def _shape(parts: tuple[tuple[str, tuple[int, ...]], ...]) -> Shape:
    topics = tuple(topic for topic, numbers in parts for _ in numbers)
    return shape_of(topics, tuple(chain.from_iterable(numbers for _, numbers in parts)))


class _Source:
    """What is found of one group."""

    def __init__(self) -> None:
        self.instances: tuple[str, ...] = ()
        self._offsets: dict[Place, Znode] = {}
        self._unreadable = ""
        self.parts: list[_Part] = []

    def registered(self, names: Iterable[str], hidden: ForbiddenNode | None) -> None:
        self.instances = tuple(names)
        self._unreadable = "" if hidden is None else f"{hidden.path}: {hidden.reason}"

    def offset(self, topic: str, name: str, node: Node | ForbiddenNode) -> None:
        partition = parse_partition(name)
        if isinstance(node, ForbiddenNode):
            self._offsets[topic or None, partition] = Znode(None, None)
        elif partition is not None:
            self._offsets[topic, partition] = Znode(node.mzxid, _number(node))

    def seen(self) -> SourceSeen:
        return SourceSeen(self.instances, self._all() if self.parts else self._offsets, self._unreadable)

    def _all(self) -> Mapping[Place, Znode]:
        zxids = list(chain.from_iterable(part.zxids for part in self.parts))
        offsets = list(chain.from_iterable(part.offsets for part in self.parts))
        plain = Znodes(_shape(tuple((part.topic, part.partitions) for part in self.parts)), zxids, offsets)
        return {**plain, **self._offsets} if self._offsets else plain


def _number(node: Node) -> int | None:
    if is_plain_offset(node.data):
        return int(node.data)
    found = decode_offset(node.path, node.data)
    return None if isinstance(found, UnreadableNode) else found


def marked_by_another(found: Mark | UnreadableNode, plan: str) -> list[str]:
    """Why this plan must leave a group with that mark alone; nothing where it is its own."""
    if isinstance(found, UnreadableNode):
        return [f"its mark cannot be read, {found.path}: {found.reason}"]
    return [] if found.plan == plan else [f"it is marked: it {found.shown}"]


def look_at_targets(brokers: Brokers, targets: Iterable[str], *, members: bool = True) -> dict[str, TargetSeen]:
    """What the brokers have of these groups of their own now; who takes part takes as long again to find out."""
    names, found = _askable(targets)
    groups = brokers.groups(names) if members else {}
    committed = brokers.committed_or_error(names)
    return found | {name: _target(groups.get(name), committed[name]) for name in names}


def topic_ids(brokers: Brokers, plans: Mapping[str, Sequence[PlanRow]]) -> TopicIds:
    """The ids that the topics of these plans have now, as far as the plans know any."""
    topics: set[str | None] = set()
    for rows in plans.values():
        plain = plain_of(rows)
        known = (
            zip(plain.shape.topics, plain.topic_ids, strict=True) if plain else ((r.topic, r.topic_id) for r in rows)
        )
        topics.update(topic for topic, planned in known if planned is not None)
    names = [topic for topic in topics if topic is not None]
    return brokers.topic_ids(brokers.partitions(names)) if names else {}


def _askable(targets: Iterable[str]) -> tuple[list[str], dict[str, TargetSeen]]:
    """Those that brokers can be asked for, and what is to be said of the others."""
    names, found = [], {}
    for target in dict.fromkeys(targets):
        try:
            names.append(check_native_group(target))
        except InvalidNameError as error:
            found[target] = TargetSeen(unreadable=str(error))
    return names, found


def _target(
    group: NativeGroup | ZkgroupsException | None, committed: Mapping[TopicPartition, NativeOffset] | ZkgroupsException
) -> TargetSeen:
    unreadable = "; ".join(str(each) for each in (group, committed) if isinstance(each, ZkgroupsException))
    if isinstance(group, ZkgroupsException) or isinstance(committed, ZkgroupsException):
        return TargetSeen(unreadable=unreadable)
    return TargetSeen(() if group is None else taking_part(group), committed)


def taking_part(group: NativeGroup) -> tuple[str, ...]:
    """Who takes part in a group of Kafka's own, or that somebody does."""
    return tuple(map(str, group.members)) or ((f"somebody: it is {group.state}",) if group.in_use else ())
