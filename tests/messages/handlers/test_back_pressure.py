"""No more messages of a partition are in memory than its window, and no partition waits long for another."""

from __future__ import annotations

import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from zkgroups.core.delivery import Order
from zkgroups.messages.runs import TURN, HandlerOptions

from .running import AT, OTHER, Blocking, Clock, idle, messages, running, wait_until


@pytest.mark.parametrize("order", Order)
@settings(deadline=None, max_examples=20)
@given(window=st.integers(1, 300))
def test_a_partition_never_has_more_messages_than_its_window(order: Order, window: int) -> None:
    """The loop adds as many as one fetch may bring, until the partition is full."""
    blocked = Blocking()
    most = HandlerOptions(window=window).fetched
    with blocked.ended(), running(blocked, order=order, window=window) as runner:
        added, full = 0, False
        while not full:
            full = runner.runs.add(AT, messages(*range(added, added + most)))
            added += most
        assert added <= window
        assert runner.runs.stats().unfinished == added


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
