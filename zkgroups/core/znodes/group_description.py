"""The state of a group at one moment, as `describe_group.py` works it out from its znodes.

A partition is blocked if some instances subscribe to its topic, and another instance holds it. None of the subscribers
can get it before it is released. An instance whose subscription cannot be evaluated may subscribe to any topic, so the
partitions that it holds are never blocked.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ..times import from_ms
from .migration_mark import Mark
from .states import GroupState, InstanceState
from .topic_partition import TopicPartition
from .values import CommittedOffset, MalformedNode, Owner, ReadRegistration, UnevaluableRegistration, UnreadableNode


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a group.

    - `at`: the partition.
    - `owners`: the owners in its owner nodes, orphans included. Usually one or none. There can be two if their clients
      name owner nodes differently (Scala and pykafka).
    - `instance`: the id of the first owner that is a registered instance; None if no owner is.
    - `offset`: its committed offset; None if it has none, or if it is unreadable.
    """

    at: TopicPartition
    owners: tuple[Owner, ...]
    instance: str | None
    offset: CommittedOffset | None


class Obstacle(StrEnum):
    """Why no member can claim a partition: the problem with its current owner.

    - not registered: the owner is not a registered instance
    - not subscribed: the owner does not subscribe to the topic
    - registration cannot be read: so zkgroups cannot know its subscription
    - owner cannot be read: the owner node is malformed
    """

    NOT_REGISTERED = "not registered"
    NOT_SUBSCRIBED = "not subscribed"
    REGISTRATION_UNREADABLE = "registration cannot be read"
    OWNER_UNREADABLE = "owner cannot be read"


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A partition whose owner does not subscribe to its topic, although other instances do.

    - `at`: the partition.
    - `holder`: its owner, or its malformed owner node.
    - `obstacle`: the problem with the owner.
    """

    at: TopicPartition
    holder: Owner | MalformedNode
    obstacle: Obstacle

    @property
    def since(self) -> datetime | None:
        """When the partition was claimed by its current owner, as a datetime in UTC. None if unknown."""
        return self.holder.claimed_at if isinstance(self.holder, Owner) else self.holder.created_at


@dataclass(frozen=True, slots=True)
class InstanceDescription:
    """One instance of a group.

    - `id`: the id of the instance.
    - `state`: its state.
    - `session`: the id of the session of its registration; 0 if that belongs to no session. If the instance is
      leaving, the session of its owner nodes.
    - `registered_ms`: when it registered, in milliseconds since 1970; 0 if it is leaving.
    - `registration`: its subscription: a `Registration`, or an `UnevaluableRegistration`, `MalformedNode` or
      `ForbiddenNode`. None if it is leaving.
    - `owned`: the partitions that it owns.
    """

    id: str
    state: InstanceState
    session: int
    registered_ms: int
    registration: ReadRegistration | None
    owned: tuple[TopicPartition, ...]

    @property
    def registered_at(self) -> datetime | None:
        """When the instance registered, as a datetime in UTC. None if it is leaving."""
        return from_ms(self.registered_ms)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The result of `describe()`: the state of a group, its instances and its partitions.

    - `group`: the name of the group.
    - `state`: its state.
    - `instances`: its registered instances, sorted by id, and then the instances that own partitions without being
      registered.
    - `partitions`: all partitions that are subscribed to, are owned, or have a committed offset, sorted.
    - `orphans`: the owners that are not registered.
    - `unowned`: the partitions of subscribed topics that no registered instance owns, sorted.
    - `unreadable`: the malformed and forbidden nodes of the group.
    - `subscribed`: the topics that instances subscribe to, sorted.
    - `blocked`: the partitions that no subscriber can claim before their owners release them, sorted.
    - `mark`: the migration mark, with `plan`, `target`, `state` and `since`: the group is being migrated to
      Kafka-native offsets, or was, and zkgroups members cannot join it. Otherwise None.
    """

    group: str
    state: GroupState
    instances: tuple[InstanceDescription, ...]
    partitions: tuple[PartitionDescription, ...]
    orphans: tuple[Owner, ...]
    unowned: tuple[TopicPartition, ...]
    unreadable: tuple[UnreadableNode, ...]
    subscribed: tuple[str, ...] = ()
    blocked: tuple[BlockedPartition, ...] = ()
    mark: Mark | UnreadableNode | None = None

    @property
    def members(self) -> int:
        """The number of registered instances that may be alive."""
        not_counted = (InstanceState.LEAVING, InstanceState.DEAD)
        return sum(instance.state not in not_counted for instance in self.instances)

    @property
    def unevaluable(self) -> tuple[str, ...]:
        """The ids of the instances whose subscriptions cannot be evaluated."""
        return tuple(each.id for each in self.instances if isinstance(each.registration, UnevaluableRegistration))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are subscribed to, are owned, or have committed offsets, sorted."""
        return tuple(sorted({partition.at.topic for partition in self.partitions}.union(self.subscribed)))

    @property
    def owned(self) -> int:
        """The number of partitions that are owned by a registered instance."""
        return sum(partition.instance is not None for partition in self.partitions)

    @property
    def offsets(self) -> int:
        """The number of partitions with a committed offset."""
        return sum(partition.offset is not None for partition in self.partitions)

    @property
    def last_commit_at(self) -> datetime | None:
        """When an offset was last committed, as a datetime in UTC. None if the group has no offsets."""
        offsets = (partition.offset for partition in self.partitions)
        return from_ms(max((offset.committed_ms for offset in offsets if offset is not None), default=0))
