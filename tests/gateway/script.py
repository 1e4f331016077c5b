"""A storage without a coordinator: work for it, one piece after the other."""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

from zkgroups import Registry, TopicPartition
from zkgroups.coordinator import Subscription, WorkFinished, encode_assignment
from zkgroups.coordinator.storage.work import (
    AssignmentMade,
    PerformAssignment,
    PlannedMember,
    Result,
    StoredMember,
    StoreGeneration,
    Work,
    WorkFailed,
)
from zkgroups.gateway.zookeeper_storage import ZooKeeperStorage

PLANNED = PlannedMember(Subscription(frozenset({"orders"})), client_id="app", client_host="/10.0.0.7")


class Script:
    """Carries out work, and waits for each result."""

    def __init__(self, registry: Registry, **options: Any) -> None:
        self._events: SimpleQueue[Any] = SimpleQueue()
        self.storage = ZooKeeperStorage(registry, self._events.put, **options)
        self._work_id = 0
        self._others: list[Any] = []

    def ask(self, work: Work) -> Result:
        self._work_id += 1
        assert self.storage.start(self._work_id, work) is None
        while True:
            event = self._events.get(timeout=30)
            if isinstance(event, WorkFinished) and event.work_id == self._work_id:
                return event.result
            self._others.append(event)

    def received(self, event: object) -> bool:
        """True if an event has come that was no answer to `ask`."""
        while not self._events.empty():
            self._others.append(self._events.get())
        return event in self._others

    def do(self, work: Work) -> Result:
        result = self.ask(work)
        assert not isinstance(result, WorkFailed), (work, result)
        return result

    def assign(self, number: int, members: Mapping[str, PlannedMember]) -> dict[str, list[TopicPartition]]:
        """Make an assignment. Return the partitions of each member."""
        made = self.do(PerformAssignment("billing", number, "range", members))
        assert isinstance(made, AssignmentMade)
        return {id: sorted(made.partitions[id]) for id in members}

    def generation(self, number: int, *members: str) -> dict[str, list[TopicPartition]]:
        """Assign and store a generation. Return the partitions of each member."""
        shares = self.assign(number, dict.fromkeys(members, PLANNED))
        stored = {id: StoredMember(None, "", "", b"", encode_assignment(share)) for id, share in shares.items()}
        self.do(StoreGeneration("billing", number, "consumer", "range", "", stored))
        return shares
