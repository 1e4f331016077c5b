"""The storage itself: work goes in, and its result comes back as an event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ...coordinator.actions import Event, WorkFinished
from ...coordinator.config import AssignmentBy, CoordinatorConfig
from ...coordinator.storage.work import (
    DescribeStored,
    ListStored,
    OffsetsRead,
    ReadOffsets,
    Result,
    StoredDescribed,
    StoredListed,
    Work,
    WorkFailed,
)
from ...coordinator.values.kafka_errors import KafkaError
from ...zookeeper.registry import Registry
from ...zookeeper.session.registry_context import context_of
from .described_groups import stored_groups
from .kafka_errors import kafka_error_of
from .stored_offsets import read_offsets
from .work_queues import WorkQueues

log = logging.getLogger("zkgroups.gateway")

_GROUP_THREADS: Final = 8
"""They wait for ZooKeeper most of the time."""
_READING_THREADS: Final = 2
"""For lists and descriptions of many groups, which must not delay the commits of members."""


def coordinator_config(*, storage_timeout: float = 15.0, report_commits: bool = False) -> CoordinatorConfig:
    """Return the settings for a coordinator with this storage.

    The coordinator assigns the partitions, because members of other clients take part. Offsets are never deleted
    because of their age: the old clients never did that.
    """
    return CoordinatorConfig(
        assignment_by=AssignmentBy.COORDINATOR,
        preferred_protocols=("range",),
        leader_name="zkgroups-gateway",
        storage_timeout=storage_timeout,
        offset_retention=None,
        report_commits=report_commits,
    )


class ZooKeeperStorage:
    """Keeps the groups of a coordinator in ZooKeeper. Make the settings of the coordinator with `coordinator_config`.

    `on_event` gets the events for the coordinator: results of work, and changes that other clients make. It is called
    on the threads of this storage, so it must be thread-safe, and must not block:

        storage = ZooKeeperStorage(registry, lambda event: loop.call_soon_threadsafe(process, event), read_only=True)

    With `read_only`, nothing is ever written: the coordinator lists and describes groups, and returns their offsets.
    All other requests get GROUP_AUTHORIZATION_FAILED. Every client knows this error, does not repeat the request, and
    shows the name of the group. It means that a client may see a group, but not take part in it.

    `close` ends the threads. It does not close the registry.
    """

    def __init__(self, registry: Registry, on_event: Callable[[Event], object], *, read_only: bool = False) -> None:
        self._registry = registry
        self._context = context_of(registry)
        self._on_event = on_event
        self._read_only = read_only
        self._groups = WorkQueues("group", _GROUP_THREADS)
        self._reads = WorkQueues("read", _READING_THREADS)

    def start(self, work_id: int, work: Work) -> Result | None:
        """Put work into the queue of its group. Its result comes as an event."""
        queues, key = self._groups, self._group_of(work)
        if key is None:
            queues, key = self._reads, f"work {work_id}"

        def task() -> None:
            self._send(WorkFinished(work_id, self._result_of(work)))

        return None if queues.put(key, task) else WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE)

    def close(self) -> None:
        """Finish the work that was started, and end the threads. Later work fails at once."""
        for queues in (self._groups, self._reads):
            queues.close(self._context.timeout)

    def __enter__(self) -> ZooKeeperStorage:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _group_of(self, work: Work) -> str | None:
        """Return the group whose work must stay in order. None for reads of many groups."""
        match work:
            case ListStored() | DescribeStored():
                return None
            case ReadOffsets(groups):
                return next(iter(groups)) if len(groups) == 1 else None
            case _:
                return work.group

    def _send(self, event: Event) -> None:
        try:
            self._on_event(event)
        except Exception:
            log.exception("the gateway could not process an event of its storage")

    def _result_of(self, work: Work) -> Result:
        try:
            return self._carry_out(work)
        except Exception as error:
            return WorkFailed(kafka_error_of(error))

    def _carry_out(self, work: Work) -> Result:
        match work:
            case ListStored():
                return StoredListed(stored_groups(self._context, self._registry.groups(), {}))
            case DescribeStored(groups):
                return StoredDescribed(stored_groups(self._context, groups, {}))
            case ReadOffsets(wanted):
                return OffsetsRead({group: read_offsets(self._registry, group, some) for group, some in wanted.items()})
            case _:
                return WorkFailed(KafkaError.GROUP_AUTHORIZATION_FAILED)
