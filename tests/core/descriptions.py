"""Descriptions of groups, built from values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zkgroups.core.znodes.describe_group import describe
from zkgroups.core.znodes.group_description import (
    GroupDescription,
    InstanceDescription,
    Obstacle,
    PartitionDescription,
)
from zkgroups.core.znodes.group_view import GroupView, RegisteredInstance
from zkgroups.core.znodes.states import InstanceState
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import (
    CommittedOffset,
    MalformedNode,
    Owner,
    ReadRegistration,
    Registration,
    UnreadableNode,
)

MALFORMED = MalformedNode("/consumers/billing/ids/bad", b"", "empty", session=99)


def at(text: str) -> TopicPartition:
    """Parse `orders/3`."""
    topic, _, partition = text.rpartition("/")
    return TopicPartition(topic, int(partition))


def instance(id: str, session: int, topics: Iterable[str] | ReadRegistration = ("orders",)) -> RegisteredInstance:
    if not isinstance(topics, ReadRegistration):
        topics = Registration(dict.fromkeys(topics, 1))
    return RegisteredInstance(id, session, topics, registered_ms=1000 + session)


def owner(partition: str, id: str, session: int, path: str = "") -> Owner:
    return Owner(at(partition), id, session, path=path)


def offset(partition: str, offset: int = 5, committed_ms: int = 0) -> CommittedOffset:
    return CommittedOffset("billing", at(partition), offset, committed_ms=committed_ms)


def described(
    *nodes: RegisteredInstance | Owner | CommittedOffset | UnreadableNode,
    partitions: Mapping[str, int] | None = None,
    exists: bool = True,
) -> GroupDescription:
    """Describe a group with these nodes. `orders` has two partitions by default."""
    counts = {"orders": 2} if partitions is None else partitions
    return describe(
        GroupView(
            "billing",
            exists,
            tuple(node for node in nodes if isinstance(node, RegisteredInstance)),
            tuple(node for node in nodes if isinstance(node, Owner)),
            tuple(node for node in nodes if isinstance(node, CommittedOffset)),
            tuple(node for node in nodes if isinstance(node, UnreadableNode)),
            {topic: tuple(range(count)) for topic, count in counts.items()},
        )
    )


def states(description: GroupDescription) -> dict[str, InstanceState]:
    return {each.id: each.state for each in description.instances}


def one(description: GroupDescription, id: str) -> InstanceDescription:
    [found] = [each for each in description.instances if each.id == id]
    return found


def partition(description: GroupDescription, name: str) -> PartitionDescription:
    [found] = [each for each in description.partitions if each.at == at(name)]
    return found


def blocked(description: GroupDescription) -> dict[str, tuple[str, Obstacle]]:
    return {
        str(each.at): (each.holder.id if isinstance(each.holder, Owner) else each.holder.path, each.obstacle)
        for each in description.blocked
    }
