"""Groups in memory. The brokers are asked which partitions exist."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from ...coordinator.actions import Event, WorkFinished
from ...coordinator.storage.memory_storage import MemoryStorage
from ...coordinator.storage.work import PerformAssignment, Result, Work, WorkFailed
from ...coordinator.values.kafka_errors import KafkaError
from ...exceptions import ZkgroupsException
from ...kafka.wire.errors import WireError

_log = logging.getLogger("zkgroups.gateway")

PartitionCounts = Callable[[Collection[str]], Awaitable[Mapping[str, int]]]
"""Returns the number of partitions of each topic. Topics that do not exist are left out."""


class MemoryGroupStorage:
    """A storage that asks the brokers for partitions before each assignment. Its offsets exist only in memory."""

    def __init__(self, counts: PartitionCounts, report: Callable[[Event], None]) -> None:
        self._memory = MemoryStorage()
        self._counts = counts
        self._report = report
        self._assigning: set[asyncio.Task[None]] = set()

    def start(self, work_id: int, work: Work) -> Result | None:
        """Carry out work. The result of an assignment comes later."""
        if not isinstance(work, PerformAssignment):
            return self._memory.start(work_id, work)
        task = asyncio.create_task(self._assign(work_id, work))
        self._assigning.add(task)
        task.add_done_callback(self._assigning.discard)
        return None

    def let_leave(self) -> bool:
        """True: what members commit would not outlive the gateway."""
        return True

    def may_be_lost(self, _group: str) -> bool:
        """False: there is no other coordinator."""
        return False

    async def _assign(self, work_id: int, work: PerformAssignment) -> None:
        topics = {topic for member in work.members.values() for topic in member.subscription.topics}
        try:
            self._memory.partitions = dict(await self._counts(topics))
        except Exception as error:
            expected = isinstance(error, WireError | ZkgroupsException)
            _log.warning("could not assign the partitions of group %s: %s", work.group, error, exc_info=not expected)
            self._report(WorkFinished(work_id, WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE)))
            return
        self._report(WorkFinished(work_id, self._memory.start(work_id, work)))
