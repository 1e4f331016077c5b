"""Members in simulated time: a ZooKeeper server in memory, topics as Kafka registers them, and what members report.

Tests with real servers and processes are in folders that replace these fixtures.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Self, TypeVar

import pytest

from tests.seeds import seed
from tests.simulation.world import World
from tests.waiting import LONGEST as LONGEST
from zkgroups import Consumergroup, EventKind, Generation, InstanceState, Member, MemberEvent, Registry, TopicPartition

E = TypeVar("E", bound=BaseException)
Work = Callable[[Generation], object]
Partitions = frozenset[TopicPartition]


def plant_topic(client: Any, name: str, partitions: int | Iterable[int]) -> None:
    """Register a topic as Kafka does, or change its partitions."""
    numbers = range(partitions) if isinstance(partitions, int) else partitions
    data = json.dumps({"version": 1, "partitions": {str(number): [1] for number in numbers}}).encode()
    path = f"/brokers/topics/{name}"
    if client.exists(path):
        client.set(path, data)
    else:
        client.create(path, data, makepath=True)


def ats(topic: str, *numbers: int) -> Partitions:
    return frozenset(TopicPartition(topic, number) for number in numbers)


class Running:
    """A member whose thread works on its generations, and all its events. An error that the test does not expect fails
    it when the member is closed."""

    def __init__(
        self, group: Any, topics: Any = ("orders",), *, work: Work | None = None, make: Any = Member, **options: Any
    ) -> None:
        self.events: list[MemberEvent] = []
        self.generations: list[Generation] = []
        self.errors: list[BaseException] = []
        self._expected: tuple[type[BaseException], ...] = ()
        self._news = threading.Condition()
        self._work = work
        self.member = make(group, topics, on_event=self._hear, **options)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _hear(self, event: MemberEvent) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def _run(self) -> None:
        while not self.member._closed:
            try:
                for generation in self.member.generations():
                    self._take(generation)
            except BaseException as error:
                with self._news:
                    self.errors.append(error)
                    self._news.notify_all()

    def _take(self, generation: Generation) -> None:
        with self._news:  # whoever sees the generation may rely on its worker
            if self._work is not None:
                generation.start(self._work)
            self.generations.append(generation)
            self._news.notify_all()
        generation.wait()

    @property
    def generation(self) -> Generation:
        """The latest one."""
        return self.generations[-1]

    def told(self, kind: EventKind) -> list[MemberEvent]:
        """The events of a kind so far."""
        return [event for event in self.events if event.kind is kind]

    def until_told(self, kind: EventKind) -> MemberEvent:
        """Wait for an event. Return the first of this kind."""
        self.until(lambda: self.told(kind), f"the event {kind}")
        return self.told(kind)[0]

    def until(self, so: Callable[[], object], what: str = "it") -> None:
        """Wait for a condition. It is evaluated after each event, and every 50 ms."""
        deadline = time.monotonic() + LONGEST
        with self._news:
            while not so():
                if time.monotonic() > deadline:
                    break
                self._news.wait(0.05)
            else:
                return
        raise AssertionError(f"{what} has not come: {self.member!r}, {self.events[-5:]}")

    def expect(self, kind: type[BaseException]) -> None:
        """Let errors of this class not fail the test."""
        self._expected += (kind,)

    def until_error(self, kind: type[E]) -> E:
        """Wait for the first error, and expect more of its class: a member that cannot join repeats it."""
        self.expect(kind)
        self.until(lambda: self.errors, f"a {kind.__name__}")
        error = self.errors[0]
        assert isinstance(error, kind), repr(error)
        return error

    def until_holding(self, *partitions: TopicPartition | Partitions) -> Self:
        """Wait until the member works on exactly these partitions."""
        wanted = frozenset().union(*(at if isinstance(at, frozenset) else {at} for at in partitions))
        self.until(lambda: self.member.assignment == wanted and self.works_on(len(wanted)), f"{len(wanted)} partitions")
        return self

    def until_holding_some(self, count: int) -> Self:
        """Wait until the member works on so many partitions."""
        self.until(lambda: self.works_on(count), f"{count} partitions")
        return self

    def works_on(self, count: int) -> bool:
        """Whether it works on so many partitions, and waits for none."""
        member, generations = self.member, self.generations
        settled = len(member.assignment) == count and member.state is InstanceState.STABLE
        return settled and (not count or (bool(generations) and generations[-1].active))

    def close(self) -> None:
        self.member.close()
        self._thread.join(LONGEST)
        assert not self._thread.is_alive()
        assert [error for error in self.errors if not isinstance(error, self._expected)] == []

    def __enter__(self) -> Self:
        self.member.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Run = Callable[..., Running]
Connect = Callable[..., Registry]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A simulated machine and a ZooKeeper server."""
    with World(seed()).running() as world:
        for handler in logging.root.handlers:  # a thread may log while it must let others run
            monkeypatch.setattr(handler, "lock", threading.RLock())
        yield world


@pytest.fixture
def connect(world: World) -> Iterator[Connect]:
    """Connect more registries, each in a process of its own. The options are those of `World.connect`."""
    with ExitStack() as stack:
        yield lambda process="", **options: stack.enter_context(world.connect(process, **options))


@pytest.fixture
def registry(connect: Connect) -> Registry:
    return connect("here", session_timeout=300.0)


@pytest.fixture
def client(registry: Registry) -> Any:
    return registry.client


@pytest.fixture
def group(registry: Registry) -> Consumergroup:
    return registry.group("billing")


@pytest.fixture
def orders(registry: Registry) -> Partitions:
    """A topic of six partitions."""
    plant_topic(registry.client, "orders", 6)
    return ats("orders", *range(6))


@pytest.fixture
def run(world: World, group: Consumergroup, connect: Connect) -> Iterator[Run]:
    """Start members of the group. The options are those of `Member`, and `on`, the registry. They are closed before
    their registries."""
    with ExitStack() as stack:

        def run(*arguments: Any, on: Registry | Consumergroup | None = None, **options: Any) -> Running:
            place = group if on is None else on.group(group.name) if isinstance(on, Registry) else on
            return stack.enter_context(Running(place, *arguments, **options))

        yield run
        world.end_faults()


def committed(group: Consumergroup) -> dict[TopicPartition, int]:
    """The offsets of the group."""
    return {found.at: found.offset for found in group.offsets}  # type: ignore[union-attr]
