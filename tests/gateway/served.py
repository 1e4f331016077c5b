"""A coordinator with its groups in ZooKeeper, on a thread of its own, as a gateway runs it; and its storage alone."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, Self

from tests.waiting import LONGEST
from zkgroups import Registry, TopicPartition, coordinator
from zkgroups.coordinator import GroupCoordinator, storage
from zkgroups.gateway.zookeeper_storage import ZooKeeperStorage, coordinator_config


class Served:
    """Sends requests to the coordinator, and waits for their answers."""

    def __init__(self, registry: Registry, *, config: dict[str, Any] | None = None, **options: Any) -> None:
        self.events: list[coordinator.Event] = []
        self.incidents: list[coordinator.ReportIncident] = []
        self._inbox: queue.SimpleQueue[coordinator.Event | None] = queue.SimpleQueue()
        self._answers: dict[int, Future[Any]] = {}
        self._ids = count(1)
        self.storage = ZooKeeperStorage(registry, self._inbox.put, **options)
        settings: coordinator.CoordinatorConfig = replace(
            coordinator_config(), **{"initial_rebalance_delay": 0, **(config or {})}
        )
        self.coordinator = GroupCoordinator(self.storage, settings)
        self._thread = threading.Thread(target=self._run, name="coordinator")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.storage.close()
        self._inbox.put(None)
        self._thread.join(LONGEST)

    def _run(self) -> None:
        while True:
            deadline = self.coordinator.next_deadline
            pause = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            event: coordinator.Event | None = coordinator.TimePassed()
            with suppress(queue.Empty):
                event = self._inbox.get(timeout=pause)
            if event is None:
                return
            self.events.append(event)
            for outcome in self.coordinator.receive(event, time.monotonic()):
                if isinstance(outcome, coordinator.SendAnswer):
                    self._answers[outcome.request_id].set_result(outcome.answer)
                elif isinstance(outcome, coordinator.ReportIncident):
                    self.incidents.append(outcome)

    # Requests

    def send(self, request: coordinator.Request) -> Future[Any]:
        """Send a request. Its answer is the result of the future."""
        id, answer = next(self._ids), Future[Any]()
        self._answers[id] = answer
        self._inbox.put(coordinator.RequestReceived(id, request))
        return answer

    def ask(self, request: coordinator.Request) -> Any:
        """Send a request, and wait for its answer."""
        return self.send(request).result(LONGEST)

    def list(self) -> dict[str, str]:
        answer = self.ask(coordinator.ListRequest())
        assert answer.error.name == "NONE"
        return {group.group: group.state for group in answer.groups}

    def describe(self, group: str) -> Any:
        [found] = self.ask(coordinator.DescribeRequest((group,))).groups
        return found

    def fetch(self, group: str, *partitions: TopicPartition) -> dict[TopicPartition, coordinator.CommittedValue]:
        """Fetch these offsets of a group, or all."""
        found = self.ask(coordinator.FetchRequest({group: partitions or None})).groups[group]
        assert found.error.name == "NONE"
        return dict(found.offsets)


PLANNED = storage.PlannedMember(
    coordinator.Subscription(frozenset({"orders"})), client_id="app", client_host="/10.0.0.7"
)


class Script:
    """A storage without a coordinator: carries out work for group `billing`, and waits for each result."""

    def __init__(self, registry: Registry, **options: Any) -> None:
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.storage = ZooKeeperStorage(registry, self._events.put, **options)
        self._work_id = 0
        self._others: list[Any] = []

    def ask(self, work: storage.Work) -> storage.Result:
        self._work_id += 1
        assert self.storage.start(self._work_id, work) is None
        while True:
            event = self._events.get(timeout=LONGEST)
            if isinstance(event, coordinator.WorkFinished) and event.work_id == self._work_id:
                return event.result
            self._others.append(event)

    def received(self, event: object) -> bool:
        """True if an event has come that was no answer to `ask`."""
        while not self._events.empty():
            self._others.append(self._events.get())
        return event in self._others

    def do(self, work: storage.Work) -> storage.Result:
        result = self.ask(work)
        assert not isinstance(result, storage.WorkFailed), (work, result)
        return result

    def assign(self, number: int, members: Mapping[str, storage.PlannedMember]) -> dict[str, list[TopicPartition]]:
        """Make an assignment. Return the partitions of each member."""
        made = self.do(storage.PerformAssignment("billing", number, "range", members))
        assert isinstance(made, storage.AssignmentMade)
        return {id: sorted(made.partitions[id]) for id in members}

    def generation(self, number: int, *members: str) -> dict[str, list[TopicPartition]]:
        """Assign and store a generation. Return the partitions of each member."""
        shares = self.assign(number, dict.fromkeys(members, PLANNED))
        stored = {
            id: storage.StoredMember(None, "", "", b"", coordinator.encode_assignment(share))
            for id, share in shares.items()
        }
        self.do(storage.StoreGeneration("billing", number, "consumer", "range", "", stored))
        return shares
