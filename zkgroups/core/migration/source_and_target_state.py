"""The current state of a group on both sides: ZooKeeper (the source) and the brokers (the target)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from types import MappingProxyType
from typing import NamedTuple

from ..kafka_values import NativeOffset
from ..znodes.topic_partition import TopicPartition

OffsetKey = tuple[str | None, int | None]
"""Topic and partition of an offset node. The partition of a topic that may not be listed is None. Both are None if the
topics may not be listed."""


class OffsetNode(NamedTuple):
    """An offset node. A forbidden node has no zxid, and a node without a valid number has no offset."""

    zxid: int | None
    offset: int | None


class OffsetNodes(Mapping[OffsetKey, OffsetNode]):
    """The offset nodes of a group, as columns. They become objects when one of them is looked up.

    >>> nodes = OffsetNodes({("orders", 0): OffsetNode(41, 7)})
    >>> nodes.add([("orders", 1)], [42], [None])
    >>> nodes["orders", 1], nodes.are([("orders", 0), ("orders", 1)], [41, 42])
    (OffsetNode(zxid=42, offset=None), True)
    """

    __slots__ = ("_keys", "_nodes", "_zxids", "offsets")

    def __init__(self, nodes: Mapping[OffsetKey, OffsetNode] = MappingProxyType({})) -> None:
        self._keys = [*nodes]
        self._zxids = [node.zxid for node in nodes.values()]
        self.offsets = [node.offset for node in nodes.values()]
        """The offset of each node, in the order in which they were added."""
        self._nodes: dict[OffsetKey, OffsetNode] | None = None

    def add(self, keys: Sequence[OffsetKey], zxids: Sequence[int | None], offsets: Sequence[int | None]) -> None:
        """Add nodes that are not there yet."""
        self._nodes = None
        self._keys += keys
        self._zxids += zxids
        self.offsets += offsets

    def are(self, keys: Sequence[OffsetKey | None], zxids: Sequence[int | None]) -> bool:
        """Return whether these are all nodes, in the order in which they were added."""
        return len(keys) == len(self._keys) and self._zxids == [*zxids] and self._keys == [*keys]

    def __getitem__(self, key: OffsetKey) -> OffsetNode:
        if self._nodes is None:
            nodes = map(tuple.__new__, repeat(OffsetNode), zip(self._zxids, self.offsets, strict=True))
            self._nodes = dict(zip(self._keys, nodes, strict=True))
        return self._nodes[key]

    def __iter__(self) -> Iterator[OffsetKey]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


@dataclass(frozen=True, slots=True)
class SourceState:
    """A group in ZooKeeper."""

    instances: tuple[str, ...] = ()
    offsets: OffsetNodes = field(default_factory=OffsetNodes)
    unreadable: str = ""
    """Why the state could not be read; empty if it was."""


@dataclass(frozen=True, slots=True)
class TargetState:
    """A group on the brokers."""

    members: tuple[str, ...] = ()
    """The members; if only the group's state shows that it is in use, that state."""
    committed: Mapping[TopicPartition, NativeOffset] = field(default_factory=dict)
    unreadable: str = ""
    """Why the state could not be read; empty if it was."""


TopicIds = Mapping[str, str]
"""Kafka's topic ids, by topic name. Brokers before 2.8 have none."""


def is_recreated(topic: str | None, planned_id: str | None, ids: TopicIds) -> bool:
    """Return whether a topic was recreated since the plan: the brokers know its name under another id.

    >>> is_recreated("orders", "a", {"orders": "b"}), is_recreated("orders", "a", {}), is_recreated("orders", None, {})
    (True, False, False)
    """
    now = None if topic is None else ids.get(topic)
    return None not in (planned_id, now) and planned_id != now


def key_text(key: OffsetKey) -> str:
    """Return the name of an offset node for a message.

    >>> key_text(("orders", 0)), key_text(("orders", None)), key_text((None, None))
    ('orders/0', 'orders', 'all')
    """
    return "/".join(str(part) for part in key if part is not None) or "all"
