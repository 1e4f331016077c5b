"""A storage in memory, the strategies by which it assigns partitions, and its commits as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..core.rebalance.assignors import ASSIGNORS, round_robin_assignor, sticky_assignor
from ..core.rebalance.members import Assignor, Members
from ..core.znodes.topic_partition import TopicPartition
from . import storage
from .actions import ReportCommit
from .values import CommittedValue, FetchedOffsets, KafkaError

# The strategies by which a coordinator assigns partitions to Kafka's clients. zkgroups members use the same ones.


BY_KAFKAS_NAME: Final[Mapping[str, Assignor]] = {
    **ASSIGNORS,
    "cooperative-sticky": sticky_assignor,
    "RoundRobinAssigner": round_robin_assignor,  # kafkajs
    "roundrobin_v2": round_robin_assignor,  # brod
    "standard": round_robin_assignor,  # old releases of ruby-kafka
    "assign": round_robin_assignor,  # kafka_ex
}
"""The strategies by the names under which Kafka's clients offer them. A member that offers only others is refused."""


def assign_partitions(
    strategy: str, members: Mapping[str, storage.PlannedMember], partitions: Mapping[str, int | Sequence[int]]
) -> dict[str, frozenset[TopicPartition]]:
    """Assign all partitions of the topics to which members subscribe.

    `partitions` has the number of partitions of each topic, or the list of their numbers. The sticky strategies leave a
    partition with its owner: the member that listed it when it joined, or else the member that had it before.

    >>> from zkgroups.coordinator.consumer_protocol import Subscription
    >>> from zkgroups.coordinator.storage import PlannedMember
    >>> alike = PlannedMember(Subscription(frozenset({"orders"})))
    >>> shares = assign_partitions("range", {"a": alike, "b": alike}, {"orders": 3})
    >>> {member: sorted(at.partition for at in share) for member, share in shares.items()}
    {'a': [0, 1], 'b': [2]}
    """
    streams = {id: dict.fromkeys(member.subscription.topics, 1) for id, member in members.items()}
    numbers = {topic: range(some) if isinstance(some, int) else some for topic, some in partitions.items()}
    owners = {at: id for id, member in members.items() for at in member.previous}
    owners |= {at: id for id, member in members.items() for at in member.subscription.owned}
    assigned = BY_KAFKAS_NAME[strategy](Members(streams, numbers, owners))
    shares: dict[str, set[TopicPartition]] = {id: set() for id in members}
    for at, stream in assigned.items():
        shares[stream.instance].add(at)
    return {id: frozenset(share) for id, share in shares.items()}


# A storage that keeps everything in memory.


@dataclass(slots=True)
class _MemoryGroup:
    generation: int = 0
    protocol_type: str = ""
    offsets: dict[TopicPartition, CommittedValue] = field(default_factory=dict)


class MemoryStorage:
    """Keeps everything in memory, and answers at once. `partitions` has the number of partitions of each topic."""

    def __init__(self, partitions: Mapping[str, int] | None = None) -> None:
        self.partitions: dict[str, int] = dict(partitions or {})
        self._groups: dict[str, _MemoryGroup] = {}

    def start(self, _work_id: int, work: storage.Work) -> storage.Result | None:  # noqa: C901 - one case for each kind of work
        """Carry out work, and return its result."""
        match work:
            case storage.LoadGroup(name):
                group = self._group(name)
                return storage.GroupLoaded(bool(group.offsets), group.generation, group.protocol_type)
            case storage.LocateGroups():
                return storage.GroupsLocated()
            case storage.PerformAssignment():
                return storage.AssignmentMade(assign_partitions(work.strategy, work.members, self.partitions))
            case storage.StoreGeneration():
                group = self._groups.setdefault(work.group, _MemoryGroup())
                group.generation, group.protocol_type = work.generation, work.protocol_type
                return storage.GenerationStored()
            case storage.ReleaseMembers():
                return storage.MembersReleased()
            case storage.StoreOffsets():
                self._groups.setdefault(work.group, _MemoryGroup()).offsets.update(work.offsets)
                return storage.OffsetsStored()
            case storage.ReadOffsets(groups):
                return storage.OffsetsRead({name: self._read(name, wanted) for name, wanted in groups.items()})
            case storage.RemoveOffsets(name, partitions):
                for at in partitions:
                    self._group(name).offsets.pop(at, None)
                return storage.OffsetsRemoved()
            case storage.ExpireOffsets():
                return self._expire(work)
            case storage.RemoveGroup(name):
                self._groups.pop(name, None)
                return storage.GroupRemoved()
            case storage.ListStored():
                return storage.StoredListed(self._described())
            case storage.DescribeStored(names):
                described = self._described()
                return storage.StoredDescribed({name: described[name] for name in names if name in described})

    def let_leave(self) -> bool:
        """True: what members commit would not outlive the coordinator."""
        return True

    def may_be_lost(self, _group: str) -> bool:
        """False: there is no other coordinator."""
        return False

    def _group(self, name: str) -> _MemoryGroup:
        return self._groups.get(name) or _MemoryGroup()

    def _described(self) -> dict[str, storage.StoredGroup]:
        """Return all groups with offsets: a group without offsets exists only while it has members."""
        groups = self._groups.items()
        return {name: storage.StoredGroup("Empty", group.protocol_type) for name, group in groups if group.offsets}

    def _read(self, name: str, wanted: tuple[TopicPartition, ...] | None) -> FetchedOffsets:
        offsets = self._group(name).offsets
        some = {at: offsets[at] for at in (offsets if wanted is None else wanted) if at in offsets}
        return FetchedOffsets(KafkaError.NONE, some)

    def _expire(self, work: storage.ExpireOffsets) -> storage.OffsetsExpired:
        offsets = self._group(work.group).offsets
        if (limit := work.committed_before) is not None:
            expired = [at for at, value in offsets.items() if value.committed_at is None or value.committed_at <= limit]
            for at in expired:
                if at.topic not in work.except_topics:
                    del offsets[at]
        return storage.OffsetsExpired(len(offsets))


# Stored commits as JSON lines, for audit and replay.


def commit_lines(commit: ReportCommit) -> list[str]:
    """Return one JSON object for each committed offset, without line ends.

    >>> from zkgroups.coordinator import CommittedValue
    >>> offsets = {TopicPartition("orders", 0): CommittedValue(17, committed_at=5.0)}
    >>> commit_lines(ReportCommit("billing", "app-1", 3, offsets))[0][:76]
    '{"time": 5.0, "group": "billing", "topic": "orders", "partition": 0, "offset'
    """
    return [
        json.dumps(
            {
                "time": value.committed_at,
                "group": commit.group,
                "topic": at.topic,
                "partition": at.partition,
                "offset": value.offset,
                "metadata": value.metadata,
                "leader_epoch": value.leader_epoch,
                "member": commit.member_id,
                "generation": commit.generation,
            }
        )
        for at, value in sorted(commit.offsets.items(), key=lambda item: item[0])
    ]
