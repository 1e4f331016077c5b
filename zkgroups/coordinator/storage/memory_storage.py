"""A storage that keeps everything in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod

from ...core.znodes.topic_partition import TopicPartition
from ..values.offset_values import CommittedValue
from .strategies import assign_partitions
from .work import (
    AssignmentMade,
    DescribeStored,
    ExpireOffsets,
    GenerationStored,
    GroupLoaded,
    GroupRemoved,
    GroupsLocated,
    ListStored,
    LoadGroup,
    LocateGroups,
    MembersReleased,
    OffsetsExpired,
    OffsetsRead,
    OffsetsRemoved,
    OffsetsStored,
    PerformAssignment,
    ReadOffsets,
    ReleaseMembers,
    RemoveGroup,
    RemoveOffsets,
    Result,
    StoredDescribed,
    StoredGroup,
    StoredListed,
    StoreGeneration,
    StoreOffsets,
    Work,
)


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

    def start(self, _work_id: int, work: Work) -> Result:
        """Carry out work, and return its result."""
        return self._do(work)

    def let_leave(self) -> bool:
        """True: what members commit would not outlive the coordinator."""
        return True

    def may_be_lost(self, _group: str) -> bool:
        """False: there is no other coordinator."""
        return False

    def _group(self, name: str) -> _MemoryGroup:
        return self._groups.get(name) or _MemoryGroup()

    def _described(self) -> dict[str, StoredGroup]:
        """Return all groups with offsets: a group without offsets exists only while it has members."""
        groups = self._groups.items()
        return {name: StoredGroup("Empty", group.protocol_type) for name, group in groups if group.offsets}

    @singledispatchmethod
    def _do(self, work: Work) -> Result:
        raise TypeError(f"{work} is not work for a storage")

    @_do.register
    def _load(self, work: LoadGroup) -> Result:
        group = self._group(work.group)
        return GroupLoaded(bool(group.offsets), group.generation, group.protocol_type)

    @_do.register
    def _locate(self, _work: LocateGroups) -> Result:
        return GroupsLocated()

    @_do.register
    def _assign(self, work: PerformAssignment) -> Result:
        return AssignmentMade(assign_partitions(work.strategy, work.members, self.partitions))

    @_do.register
    def _store_generation(self, work: StoreGeneration) -> Result:
        group = self._groups.setdefault(work.group, _MemoryGroup())
        group.generation, group.protocol_type = work.generation, work.protocol_type
        return GenerationStored()

    @_do.register
    def _release(self, _work: ReleaseMembers) -> Result:
        return MembersReleased()

    @_do.register
    def _store_offsets(self, work: StoreOffsets) -> Result:
        self._groups.setdefault(work.group, _MemoryGroup()).offsets.update(work.offsets)
        return OffsetsStored()

    @_do.register
    def _read_offsets(self, work: ReadOffsets) -> Result:
        found: dict[str, dict[TopicPartition, CommittedValue]] = {}
        for name, wanted in work.groups.items():
            offsets = self._group(name).offsets
            found[name] = {at: offsets[at] for at in (offsets if wanted is None else wanted) if at in offsets}
        return OffsetsRead(found)

    @_do.register
    def _remove_offsets(self, work: RemoveOffsets) -> Result:
        for at in work.partitions:
            self._group(work.group).offsets.pop(at, None)
        return OffsetsRemoved()

    @_do.register
    def _expire(self, work: ExpireOffsets) -> Result:
        offsets = self._group(work.group).offsets
        if (limit := work.committed_before) is not None:
            expired = [at for at, value in offsets.items() if value.committed_at is None or value.committed_at <= limit]
            for at in expired:
                if at.topic not in work.except_topics:
                    del offsets[at]
        return OffsetsExpired(len(offsets))

    @_do.register
    def _remove_group(self, work: RemoveGroup) -> Result:
        self._groups.pop(work.group, None)
        return GroupRemoved()

    @_do.register
    def _list(self, _work: ListStored) -> Result:
        return StoredListed(self._described())

    @_do.register
    def _describe(self, work: DescribeStored) -> Result:
        described = self._described()
        return StoredDescribed({name: described[name] for name in work.groups if name in described})
