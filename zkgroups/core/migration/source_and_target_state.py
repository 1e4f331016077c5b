"""The current state of a group on both sides: ZooKeeper (the source) and the brokers (the target)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class SourceState:
    """A group in ZooKeeper."""

    instances: tuple[str, ...] = ()
    offsets: Mapping[OffsetKey, OffsetNode] = field(default_factory=dict)
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
