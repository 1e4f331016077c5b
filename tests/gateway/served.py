"""A coordinator with its groups in ZooKeeper, on a thread of its own, as a gateway runs it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Self

from zkgroups import Registry, TopicPartition
from zkgroups.coordinator import (
    CommittedValue,
    CoordinatorConfig,
    DescribeRequest,
    Event,
    FetchRequest,
    GroupCoordinator,
    ListRequest,
    ReportIncident,
    Request,
    RequestReceived,
    SendAnswer,
    TimePassed,
)
from zkgroups.gateway.zookeeper_storage import ZooKeeperStorage, coordinator_config

PATIENCE = 30.0
"""In seconds. An answer must come, on a slow machine too."""


class Served:
    """Sends requests to the coordinator, and waits for their answers."""

    def __init__(self, registry: Registry, *, config: dict[str, Any] | None = None, **options: Any) -> None:
        self.events: list[Event] = []
        self.incidents: list[ReportIncident] = []
        self._inbox: SimpleQueue[Event | None] = SimpleQueue()
        self._answers: dict[int, Future[Any]] = {}
        self._ids = count(1)
        self._ahead = 0.0
        self.storage = ZooKeeperStorage(registry, self._inbox.put, **options)
        settings: CoordinatorConfig = replace(coordinator_config(), **{"initial_rebalance_delay": 0, **(config or {})})
        self.coordinator = GroupCoordinator(self.storage, settings)
        self._thread = threading.Thread(target=self._run, name="coordinator")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.storage.close()
        self._inbox.put(None)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while True:
            deadline = self.coordinator.next_deadline
            pause = None if deadline is None else max(deadline - self._now, 0.0)
            event: Event | None = TimePassed()
            with suppress(Empty):
                event = self._inbox.get(timeout=pause)
            if event is None:
                return
            self.events.append(event)
            for outcome in self.coordinator.receive(event, self._now):
                if isinstance(outcome, SendAnswer):
                    self._answers[outcome.request_id].set_result(outcome.answer)
                elif isinstance(outcome, ReportIncident):
                    self.incidents.append(outcome)

    @property
    def _now(self) -> float:
        return time.monotonic() + self._ahead

    def pass_time(self, seconds: float) -> None:
        """Let the clock of the coordinator jump forward."""
        self._ahead += seconds
        self._inbox.put(TimePassed())

    # Requests

    def send(self, request: Request) -> Future[Any]:
        """Send a request. Its answer is the result of the future."""
        id, answer = next(self._ids), Future[Any]()
        self._answers[id] = answer
        self._inbox.put(RequestReceived(id, request))
        return answer

    def ask(self, request: Request) -> Any:
        """Send a request, and wait for its answer."""
        return self.send(request).result(PATIENCE)

    def list(self) -> dict[str, str]:
        answer = self.ask(ListRequest())
        assert answer.error.name == "NONE"
        return {group.group: group.state for group in answer.groups}

    def describe(self, group: str) -> Any:
        [found] = self.ask(DescribeRequest((group,))).groups
        return found

    def fetch(self, group: str, *partitions: TopicPartition) -> dict[TopicPartition, CommittedValue]:
        """Fetch these offsets of a group, or all."""
        found = self.ask(FetchRequest({group: partitions or None})).groups[group]
        assert found.error.name == "NONE"
        return dict(found.offsets)
