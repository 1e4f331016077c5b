"""What both sides have of whole groups at this moment, in bulk: what the guards are looked at with."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.carrying import Place, SourceSeen, TargetSeen, Znode
from ..core.codec import decode_offset, is_plain_offset
from ..core.mark import Mark
from ..core.model import DeniedNode, MalformedNode, NativeGroup, NativeOffset, TopicPartition
from ..core.paths import Part, parse_partition
from ..exceptions import InvalidNameError, ZkgroupsException
from ..kafka import Brokers
from ..kafka.committed import check_native_group
from ..zookeeper import walk
from ..zookeeper.node import Node
from ..zookeeper.registry import Registry


def look_at_sources(registry: Registry, groups: Iterable[str]) -> dict[str, SourceSeen]:
    """What ZooKeeper has of these groups now, and not what it had a moment ago: who is registered, and all offsets."""
    names = list(dict.fromkeys(groups))
    registry.sync()
    found = {group: _Source() for group in names}
    for siblings in walk.instances(registry.handle, names):
        found[siblings.key.group].registered(siblings.names, siblings.key.hidden)
    for place, name, node in walk.nodes(walk.leaves(registry.handle, names, Part.OFFSETS)):
        found[place.group].offset(place.topic, name, node)
    return {group: it.seen() for group, it in found.items()}


class _Source:
    """What is found of one group."""

    def __init__(self) -> None:
        self._instances: tuple[str, ...] = ()
        self._offsets: dict[Place, Znode] = {}
        self._unreadable = ""

    def registered(self, names: Iterable[str], hidden: DeniedNode | None) -> None:
        self._instances = tuple(names)
        self._unreadable = "" if hidden is None else f"{hidden.path}: {hidden.reason}"

    def offset(self, topic: str, name: str, node: Node | DeniedNode) -> None:
        partition = parse_partition(name)
        if isinstance(node, DeniedNode):
            self._offsets[topic or None, partition] = Znode(None, None)
        elif partition is not None:
            self._offsets[topic, partition] = Znode(node.mzxid, _number(node))

    def seen(self) -> SourceSeen:
        return SourceSeen(self._instances, self._offsets, self._unreadable)


def _number(node: Node) -> int | None:
    if is_plain_offset(node.data):
        return int(node.data)
    found = decode_offset(node.path, node.data)
    return None if isinstance(found, MalformedNode) else found


def marked_by_another(found: Mark | MalformedNode, plan: str) -> list[str]:
    """Why this plan must leave a group with that mark alone; nothing where it is its own."""
    if isinstance(found, MalformedNode):
        return [f"its mark cannot be read, {found.path}: {found.reason}"]
    return [] if found.plan == plan else [f"it is marked: it {found.shown}"]


def look_at_targets(brokers: Brokers, targets: Iterable[str]) -> dict[str, TargetSeen]:
    """What the brokers have of these groups of their own now."""
    names, found = [], {}
    for target in dict.fromkeys(targets):
        try:
            names.append(check_native_group(target))
        except InvalidNameError as error:
            found[target] = TargetSeen(unreadable=str(error))
    groups, committed = brokers.groups(names), brokers.committed_or_error(names)
    return found | {name: _target(groups[name], committed[name]) for name in names}


def _target(
    group: NativeGroup | ZkgroupsException, committed: dict[TopicPartition, NativeOffset] | ZkgroupsException
) -> TargetSeen:
    unreadable = "; ".join(str(each) for each in (group, committed) if isinstance(each, ZkgroupsException))
    if isinstance(group, ZkgroupsException) or isinstance(committed, ZkgroupsException):
        return TargetSeen(unreadable=unreadable)
    return TargetSeen(taking_part(group), committed)


def taking_part(group: NativeGroup) -> tuple[str, ...]:
    """Who takes part in a group of Kafka's own, or that somebody does."""
    return tuple(map(str, group.members)) or ((f"somebody: it is {group.state}",) if group.in_use else ())
