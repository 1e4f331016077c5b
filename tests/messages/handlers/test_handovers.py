"""Partitions that are taken away while their messages are handled, and how many are in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import TopicPartition, deadline
from zkgroups.core.delivery import Order
from zkgroups.messages.deliverer import wind_down
from zkgroups.messages.runs import TURN, HandlerOptions, Runs

from .running import (
    AT,
    FAILED,
    LONG,
    OTHER,
    Blocking,
    Clock,
    LateLetters,
    add_keys,
    idle,
    messages,
    running,
    wait_until,
)


@given(window=st.integers(1, 100_000))
def test_a_partition_never_has_more_messages_than_its_window(window: int) -> None:
    """It is full from `full` messages on. Before that, one more fetch may come."""
    options = HandlerOptions(window=window)
    assert options.full - 1 + options.fetched <= window


@pytest.mark.parametrize("order", Order)
def test_the_loop_is_told_when_a_full_partition_has_room(order: Order) -> None:
    blocked, told = Blocking(), [0]

    def tell() -> None:
        told[0] += 1

    with blocked.ended(), running(blocked, order=order, window=4, told_of_room=tell) as runner:
        assert not runner.runs.add(AT, messages(0, 1))
        assert runner.runs.add(AT, messages(2, 3))
        assert not runner.runs.has_room(AT)
        blocked.let_return()
        wait_until(lambda: told == [1])
        assert runner.runs.has_room(AT)
        idle(runner)
        assert told == [1]


def test_a_partition_with_slow_messages_does_not_keep_the_worker() -> None:
    handled: list[tuple[int | None, int | None]] = []
    clock = Clock()

    def handle(message: Message) -> None:
        handled.append((message.partition(), message.offset()))
        clock.now += TURN

    with running(handle, clock=clock, workers=1) as runner:
        with runner.runs.lock:  # the worker finds both
            runner.runs.add(AT, messages(*range(5)))
            runner.runs.add(OTHER, messages(*range(5), at=OTHER))
        idle(runner)

    assert [partition for partition, _offset in handled] == [0, 1] * 5


def test_a_dead_letter_on_its_way_is_waited_for_before_the_hand_over() -> None:
    letters = LateLetters()

    def handle(_message: Message) -> None:
        raise ValueError("no")

    with running(handle, letters, attempts=1, then=FAILED) as runner:
        runner.runs.add(AT, messages(0))
        wait_until(lambda: len(letters.sent) == 1)
        runner.runs.revoke([AT])
        assert runner.runs.is_busy([AT])
        letters.confirm()
        assert not runner.runs.is_busy([AT])
        assert runner.runs.positions([AT]) == {AT: 1}


def test_a_worker_begins_no_other_message_of_a_revoked_partition() -> None:
    """It has taken several at once, because they are handled so quickly."""
    begun, may_return, handled = threading.Event(), threading.Event(), list[int]()

    def handle(message: Message) -> None:
        handled.append(message.offset() or 0)
        if handled[-1] == 100:
            begun.set()
            assert may_return.wait(LONG)

    with running(handle) as runner:
        runner.runs.add(AT, messages(*range(300)))
        assert begun.wait(LONG)
        runner.runs.revoke([AT])
        may_return.set()
        wait_until(lambda: not runner.runs.is_busy([AT]))
        assert (len(handled), runner.runs.positions([AT])) == (101, {AT: 101})


def test_a_handler_that_returns_too_late_counts_for_nothing() -> None:
    blocked = Blocking()
    with blocked.ended(), running(blocked, workers=2) as runner:
        runs = runner.runs
        runs.add(AT, messages(0))
        wait_until(lambda: blocked.begun == 1)
        runs.revoke([AT])
        runs.give_up([AT])
        assert runs.positions([AT]) == {AT: 0}
        runs.forget([AT])
        assert runs.positions([AT]) == {}

        runs.assign(AT, 0)  # another member has released it again
        blocked.let_return()
        idle(runner)
        assert runs.positions([AT]) == {AT: 0}
        runs.add(AT, messages(0))
        wait_until(lambda: runs.positions([AT]) == {AT: 1})


class Deliveries:
    """Is busy until it is asked for something. Notes what it is asked for, and when."""

    def __init__(self, last: str, clock: Clock) -> None:
        self.asked: dict[str, float] = {}
        self._last, self._clock = last, clock

    def _ask(self, what: str) -> None:
        self.asked[what] = round(self._clock())

    def wind_down(self, _partitions: Iterable[TopicPartition]) -> None:
        self._ask("wind down")

    def revoke(self, _partitions: Iterable[TopicPartition]) -> None:
        self._ask("revoke")

    def give_up(self, _partitions: Iterable[TopicPartition]) -> None:
        self._ask("give up")

    def is_busy(self, _partitions: Iterable[TopicPartition]) -> bool:
        return self._last not in self.asked


class Waits(threading.Condition):
    """Lets the time of a clock pass, and does not wait."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout or 0.0
        return False


@pytest.mark.parametrize(
    ("last", "dies_at", "asked", "finished"),
    [
        ("wind down", 100, {"wind down": 0}, True),
        ("revoke", 100, {"wind down": 0, "revoke": 5}, True),
        ("never", 100, {"wind down": 0, "revoke": 5, "give up": 10}, False),
        ("never", 2, {"wind down": 0, "revoke": 2, "give up": 2}, False),
        ("never", 8, {"wind down": 0, "revoke": 5, "give up": 8}, False),
    ],
)
def test_messages_are_begun_in_the_first_half_of_the_time_and_given_up_after_the_second_or_with_the_claims(
    last: str, dies_at: int, asked: dict[str, int], finished: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=clock))
    deliveries: Any = Deliveries(last, clock)

    assert wind_down(deliveries, frozenset({AT}), Waits(clock), 10.0, alive=lambda: clock.now < dies_at) is finished
    assert deliveries.asked == asked


class Bystander:
    """Waits on a thread until a partition is not busy any more."""

    def __init__(self, runs: Runs) -> None:
        self.finished = False
        self._runs = runs
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        with self._runs.lock:
            self._runs._changed.wait_for(lambda: not self._runs.is_busy([AT]), LONG)
            self.finished = True

    def join(self) -> bool:
        """Return whether it has noticed long before its own time is up."""
        self._thread.join(LONG / 3)
        return self.finished


def test_a_revocation_wakes_those_who_wait_for_messages_that_were_still_to_begin() -> None:
    blocked, other = Blocking(), Blocking()

    def handle(message: Message) -> None:
        if message.partition() == OTHER.partition:
            other(message)
        elif message.offset() == 0:
            blocked(message)

    with blocked.ended(), other.ended(), running(handle, workers=3, order="key") as runner:
        runs = runner.runs
        with runs.lock:
            add_keys(runs, b"anna", b"anna", b"ben")
            runs.add(OTHER, messages(0, at=OTHER))
        wait_until(lambda: runs.stats().handled == 1 and blocked.begun + other.begun == 2)
        runs.wind_down([AT])
        runs._delivery.take_needed = lambda: None  # type: ignore[method-assign]  # all workers are busy elsewhere
        blocked.let_return()
        wait_until(lambda: runs.stats().handled == 2)
        assert runs.is_busy([AT])
        bystander = Bystander(runs)
        runs.revoke([AT])
        assert bystander.join()


# Coroutines


class Waiting:
    """A coroutine that does not return before it is cancelled."""

    def __init__(self) -> None:
        self.begun: list[int | None] = []
        self.cancelled: list[int | None] = []
        self.may_return = threading.Event()

    async def __call__(self, message: Message) -> None:
        self.begun.append(message.partition())
        try:
            while not self.may_return.is_set():
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled.append(message.partition())
            raise


def test_a_coroutine_that_does_not_end_in_time_is_cancelled_and_its_message_is_not_finished() -> None:
    handler = Waiting()
    with running(handler, workers=2, attempts=1) as runner:
        runs = runner.runs
        runs.add(AT, messages(0, 1))
        runs.add(OTHER, messages(0, at=OTHER))
        wait_until(lambda: sorted(handler.begun, key=str) == [0, 1])
        runs.revoke([AT])
        assert handler.cancelled == []
        runs.give_up([AT])
        wait_until(lambda: not runs.is_busy([AT]))
        assert handler.cancelled == [0]
        assert (runs.positions([AT]), runs.failure, runs.stats().failed) == ({AT: 0}, None, 0), "it has not failed"

        handler.may_return.set()  # the other partition goes on
        wait_until(lambda: runs.positions([OTHER]) == {OTHER: 1})
        assert handler.begun.count(0) == 1


def test_coroutines_that_never_wait_leave_time_for_others() -> None:
    """Otherwise the loop would not hear of a cancellation."""
    handled = [0, 0]
    seen: list[int] = []

    async def handle(message: Message) -> None:
        if message.partition() == 1:
            for _ in range(3):
                await asyncio.sleep(0)
            seen.append(handled[0])
        handled[message.partition() or 0] += 1

    with running(handle, workers=2, window=100_000) as runner:
        with runner.runs.lock:
            runner.runs.add(AT, messages(*range(20_000)))
            runner.runs.add(OTHER, messages(0, at=OTHER))
        idle(runner)
        assert runner.runs.positions() == {AT: 20_000, OTHER: 1}
    assert seen[0] < 20_000
