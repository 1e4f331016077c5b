"""Groups that are moved to a broker and back, one after the other, while faults strike their ensemble."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, Self, TypeVar

from tests.consumer.history import Kind, Violation
from tests.migration.moving import Move
from tests.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.plan_rows import Match, Outcome
from zkgroups.exceptions import GroupMigratedError, UnavailableError
from zkgroups.testing import KafkaBroker

from .faults import Route

T = TypeVar("T")

PARTITIONS, MESSAGES = 3, 30
CALL: Final = 2.0
"""In seconds: the timeout of a call. It is shorter than many faults, so that steps fail."""
LONGEST: Final = 90.0
"""In seconds: how long one step may take, with all repetitions."""


class Migrations:
    """Moves one group after the other in a thread, until the end of the `with` block. Each step is repeated until it
    succeeds. In between, the migration is judged."""

    def __init__(self, routes: list[Route], broker: KafkaBroker, topic: str, *, session_timeout: float) -> None:
        self._addresses = [route.address for route in routes]
        self._broker, self._timeout = broker, session_timeout
        self._at = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failures: list[str] = []
        self._repeated: list[str] = []
        self.moved = 0

    def __enter__(self) -> Self:
        self._broker.create_topic(self._at[0].topic, PARTITIONS)
        for at in self._at:
            self._broker.write(at.topic, at.partition, MESSAGES)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Wait until the current group has been moved and moved back."""
        self._stop.set()
        self._thread.join(4 * LONGEST)

    def note(self, _kind: Kind, text: str = "") -> None:
        """Record an action of the nemesis."""
        self._repeated.append(text)

    def settle(self, bound: float = 40.0) -> bool:
        """Wait until another group has been moved completely."""
        before = self.moved
        eventually(lambda: self.moved > before + 1 or self._failures, timeout=bound)
        return self.moved > before + 1

    def calm(self, bound: float) -> None:
        """Wait until another group has been moved completely since all faults are over."""
        if not self.settle(bound):
            self._failures.append(f"no migration succeeded within {bound} s after all faults")

    def violations(self, _bound: float) -> list[Violation]:
        """Return what is wrong, after the end."""
        return [Violation("a migration failed", text) for text in self._failures]

    def summary(self) -> str:
        """Numbers of the run."""
        return f"migrations: {self.moved} groups there and back; {self._failures}; repeated: {self._repeated}"

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                mover, late = (stack.enter_context(self._connected(address)) for address in self._addresses)
                while not self._stop.is_set():
                    self._there_and_back(mover, late)
                    self.moved += 1
        except BaseException:
            self._failures.append(traceback.format_exc())

    def _connected(self, address: str) -> Registry:
        connect = partial(Registry.connect, address, session_timeout=self._timeout, timeout=CALL)
        return self._until("connect", connect)

    def _there_and_back(self, registry: Registry, late: Registry) -> None:
        name = f"{self._at[0].topic}-{self.moved}"
        group = registry.group(name)
        offsets = {at: 1 + (self.moved + at.partition) % MESSAGES for at in self._at}
        self._until("set", lambda: group.offsets.set_many(offsets))
        move = Move(registry, self._broker.address, name)
        self._until("plan", lambda: [row.planned for row in move.plan()], list(offsets.values()).__eq__)
        self._until("apply", move.apply, _is_done)
        assert self._until("verify", move.verify) == {Match.EQUAL: PARTITIONS}
        assert {at: there.offset for at, there in move.on_target().items()} == offsets
        self._until("register", lambda: self._is_refused(late, name))
        self._until("roll back", move.roll_back, _is_done)
        assert move.on_target() == {}
        assert self._until("read the mark", move.mark) is None
        found = self._until("fetch", lambda: dict(group.offsets.fetch_many(self._at)))
        assert {at: each and each.offset for at, each in found.items()} == offsets

    def _is_refused(self, registry: Registry, name: str) -> None:
        """A member cannot register in a group that was moved, whichever server it is connected to."""
        with suppress(GroupMigratedError):
            registry.group(name).instance("late").register([self._at[0].topic])
            raise AssertionError("an instance has registered in a group that was moved")

    def _until(self, name: str, step: Callable[[], T], good: Callable[[T], bool] = lambda _found: True) -> T:
        """Repeat the step until its result is good. Only a server that does not answer excuses an error."""
        end = time.monotonic() + LONGEST
        while True:
            try:
                found = step()
                if good(found):
                    return found
                why = str(found)
            except UnavailableError as error:
                why = f"{type(error).__name__}: {error}"
            assert time.monotonic() < end, f"{name}: {why}"
            self._repeated.append(f"{name}: {why}")
            time.sleep(0.1)


def _is_done(outcomes: Counter[Outcome]) -> bool:
    return set(outcomes) <= {Outcome.WRITTEN, Outcome.THERE}
