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
    """One partition of a group: its owners and its committed offset.

    A partition can have two owners if their clients name owner nodes differently (Scala and pykafka). `instance` is the
    first owner that is a registered instance.
    """

    at: TopicPartition
    owners: tuple[Owner, ...]
    instance: str | None
    offset: CommittedOffset | None


class Obstacle(StrEnum):
    """Why no member can claim a partition: the problem with its current owner."""

    NOT_REGISTERED = "not registered"
    NOT_SUBSCRIBED = "not subscribed"
    REGISTRATION_UNREADABLE = "registration cannot be read"
    OWNER_UNREADABLE = "owner cannot be read"


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A partition whose owner does not subscribe to its topic, although other instances do."""

    at: TopicPartition
    holder: Owner | MalformedNode
    obstacle: Obstacle

    @property
    def since(self) -> datetime | None:
        """When the partition was claimed by its current owner."""
        return self.holder.claimed_at if isinstance(self.holder, Owner) else self.holder.created_at


@dataclass(frozen=True, slots=True)
class InstanceDescription:
    """One instance of a group, with its state and its partitions. `registration` is None if it is leaving."""

    id: str
    state: InstanceState
    session: int
    _registered_ms: int
    registration: ReadRegistration | None
    owned: tuple[TopicPartition, ...]

    @property
    def registered_at(self) -> datetime | None:
        """When the instance registered; None if it is leaving."""
        return from_ms(self._registered_ms)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The result of `describe()`: the state of a group, its instances and its partitions."""

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
    """The migration mark, if the group is being migrated, or was: zkgroups members cannot join it."""

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
        """When an offset was last committed; None if the group has no offsets."""
        offsets = (partition.offset for partition in self.partitions)
        return from_ms(max((offset._committed_ms for offset in offsets if offset is not None), default=0))
