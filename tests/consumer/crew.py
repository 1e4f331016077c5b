"""Members in threads of this process, and a verdict on them at the end."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.testing.waiting import eventually
from zkgroups import Consumergroup, InstanceState, Registry, TopicPartition
from zkgroups.testing import expire_session

from .history import Event, History, Kind, clock, judge, read, shown
from .nemesis import plant_topics, settle
from .worker import Worker, options


class Crew:
    """Members of one group. Leaving the `with` block closes them and judges their history by all rules except the
    `excused`."""

    def __init__(self, directory: Path, hosts: str, topics: dict[str, int], *arguments: str) -> None:
        self.directory = directory
        self.hosts = hosts
        self.partitions = frozenset(TopicPartition(topic, n) for topic, size in topics.items() for n in range(size))
        self._topics = topics
        self._arguments = arguments
        self.excused: set[str] = set()
        self._stack = ExitStack()
        self._threads: dict[str, threading.Thread] = {}
        self.workers: dict[str, Worker] = {}
        self.registries: dict[str, Registry] = {}

    def __enter__(self) -> Self:
        registry = self._stack.enter_context(Registry.connect(self.hosts))
        self.group: Consumergroup = registry.group("billing")
        plant_topics(self.hosts, self._topics)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for worker in self.workers.values():
                worker.member.stop()
            for id in list(self.workers):
                self.leave(id)
        finally:
            self._stack.close()
        if error is None:
            violations = [each for each in judge(self.history()) if each.rule not in self.excused]
            assert not violations, f"logs in {self.directory}:\n{shown(violations)}"

    def join(self, id: str, *arguments: str, hosts: str = "", session_timeout: float = 20.0) -> Worker:
        """Start a member."""
        if id not in self.registries:
            self.registries[id] = self.connect(hosts, session_timeout=session_timeout)
        log = self.directory / f"{id}.jsonl"
        fixed = ["--hosts", "", "--group", self.group.name, "--topics", ",".join(self._topics), "--log", str(log)]
        chosen = options([*fixed, "--id", id, *self._arguments, *arguments])
        worker = self.workers[id] = Worker(self.registries[id], chosen)
        thread = self._threads[id] = threading.Thread(target=worker.run, name=id, daemon=True)
        thread.start()
        return worker

    def connect(self, hosts: str = "", *, session_timeout: float = 20.0) -> Registry:
        """Connect another registry, which is closed with the crew."""
        return self._stack.enter_context(Registry.connect(hosts or self.hosts, session_timeout=session_timeout))

    def leave(self, id: str, *, timeout: float = 60.0) -> None:
        """Close a member, and wait until it has left."""
        self.workers.pop(id).member.stop()
        thread = self._threads.pop(id)
        thread.join(timeout)
        assert not thread.is_alive(), f"{id} hangs"

    def settle(self, bound: float = 90.0) -> None:
        """Wait until all partitions are worked on, and each member here has its share."""
        assert eventually(self._is_stable, timeout=bound), f"{[worker.member for worker in self.workers.values()]}"
        assert settle(self.group, self.partitions, bound), f"{self.group.describe()}"

    def _is_stable(self) -> bool:
        return all(worker.member.state is InstanceState.STABLE for worker in self.workers.values())

    def expire(self, id: str) -> None:
        """Expire the session of a member at the server, and return once it has expired."""
        client = self.registries[id].client
        with (self.directory / "nemesis.jsonl").open("a") as file:
            file.write(Event(Kind.ENDING, clock(), "nemesis", session=client.client_id[0]).line() + "\n")
        expire_session(client, address=self.hosts.partition("/")[0])

    def events(self, *kinds: Kind, member: str = "") -> list[Event]:
        """The events recorded so far."""
        return [event for event in read(self.directory) if event.kind in kinds and member in ("", event.member)]

    def history(self) -> History:
        """All recorded events."""
        return History(read(self.directory), frozenset(map(str, self.partitions)))
