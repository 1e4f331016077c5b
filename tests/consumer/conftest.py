"""Topics as Kafka registers them, and members that work in the background."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Self, TypeVar

import pytest

from zkgroups import Consumergroup, Generation, Member, MemberEvent, Registry, TopicPartition
from zkgroups.core.znodes.states import InstanceState

E = TypeVar("E", bound=BaseException)
Work = Callable[[Generation], object]

LONGEST = 40.0
"""In seconds. An event that takes longer counts as missing."""


def plant_topic(client: Any, name: str, partitions: int | Iterable[int]) -> None:
    """Register a topic as Kafka does, or change its partitions."""
    numbers = range(partitions) if isinstance(partitions, int) else partitions
    data = json.dumps({"version": 1, "partitions": {str(number): [1] for number in numbers}}).encode()
    path = f"/brokers/topics/{name}"
    if client.exists(path):
        client.set(path, data)
    else:
        client.create(path, data, makepath=True)


def ats(topic: str, *numbers: int) -> frozenset[TopicPartition]:
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

    def until_holding(self, *partitions: TopicPartition | frozenset[TopicPartition]) -> Self:
        """Wait until the member works on exactly these partitions."""
        wanted = frozenset().union(*(at if isinstance(at, frozenset) else {at} for at in partitions))

        def works() -> bool:
            generations, member = self.generations, self.member
            settled = member.assignment == wanted and member.state is InstanceState.STABLE
            return settled and (not wanted or (bool(generations) and generations[-1].active))

        self.until(works, f"{len(wanted)} partitions")
        return self

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


@pytest.fixture
def connect(zookeeper_hosts: str) -> Iterator[Callable[..., Registry]]:
    """Connect more registries in the chroot of this test, each with its own session. The options are those of
    `Registry.connect`."""
    with ExitStack() as stack:
        yield lambda hosts=zookeeper_hosts, **options: stack.enter_context(Registry.connect(hosts, **options))


@pytest.fixture
def group(registry: Registry) -> Consumergroup:
    return registry.group("billing")


@pytest.fixture
def orders(registry: Registry) -> frozenset[TopicPartition]:
    """A topic of six partitions."""
    plant_topic(registry.client, "orders", 6)
    return ats("orders", *range(6))


@pytest.fixture
def run(group: Consumergroup, connect: Callable[..., Registry]) -> Iterator[Run]:
    """Start members of the group. The options are those of `Member`. They are closed before their registries."""
    with ExitStack() as stack:
        yield lambda *args, on=group, **options: stack.enter_context(Running(on, *args, **options))
