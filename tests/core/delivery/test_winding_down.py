"""A partition that is handed over: what was begun counts, and so do the messages before it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkgroups.core.delivery.failure_policy import FailurePolicy, LastResort
from zkgroups.core.delivery.lane import Run
from zkgroups.core.delivery.order import Order

from .messages import (
    AT,
    OTHER,
    Message,
    add,
    add_keys,
    begin,
    delivery_of,
    finish,
    handle,
    offsets_of,
    position,
    taken,
)


def test_a_partition_that_winds_down_begins_only_messages_before_finished_ones() -> None:
    delivery = delivery_of(Order.KEY)
    add_keys(delivery, "aabba")
    first = begin(delivery)
    handle(taken(delivery), delivery)  # 2 and 3
    delivery.wind_down([AT])

    assert finish(first, delivery) == []
    assert delivery.is_busy([AT])
    run = taken(delivery)
    assert offsets_of(run) == [1]
    handle(run, delivery)
    assert (position(delivery), delivery.is_busy([AT]), delivery.take()) == (4, False, None)


def test_a_partition_that_winds_down_begins_messages_before_one_that_is_being_handled() -> None:
    delivery = delivery_of(Order.KEY)
    add_keys(delivery, "aab")
    first, second = begin(delivery), begin(delivery)
    delivery.wind_down([AT])
    finish(first, delivery)

    assert offsets_of(taken(delivery)) == [1]
    finish(second, delivery)
    assert delivery.is_busy([AT])


def test_messages_before_finished_ones_are_begun_in_the_order_of_the_log() -> None:
    """Otherwise the finished ones might count for nothing when the time is up."""
    delivery = delivery_of(Order.KEY)
    add_keys(delivery, "abbcaad")
    for _ in range(3):
        handle(taken(delivery, 1), delivery)
    handle(taken(delivery), delivery)
    delivery.wind_down([AT])

    runs = [taken(delivery), taken(delivery)]
    assert [offsets_of(run) for run in runs] == [[2], [4]]
    assert delivery.take() is None
    for run in runs:
        handle(run, delivery)
    assert offsets_of(taken(delivery)) == [5]


def test_a_run_that_no_worker_has_begun_does_not_count_as_being_handled() -> None:
    delivery = delivery_of(Order.NONE)
    add(delivery, 0, 1)
    runs = [taken(delivery), taken(delivery)]
    delivery.wind_down([AT])

    assert [list(run) for run in runs] == [[], []]
    for run in runs:
        delivery.end(run)
    assert (delivery.take(), delivery.is_busy([AT]), position(delivery)) == (None, False, 0)


def test_what_winds_down_comes_before_messages_of_other_partitions() -> None:
    delivery = delivery_of(Order.KEY)
    add_keys(delivery, "aab")
    first = begin(delivery)
    handle(taken(delivery), delivery)
    for offset in range(2):
        add(delivery, offset, at=OTHER)
    delivery.wind_down([AT])
    finish(first, delivery)

    assert [taken(delivery).lane.at for _ in range(3)] == [AT, OTHER, OTHER]


def test_what_waits_for_a_worker_comes_before_messages_of_other_partitions_when_it_winds_down() -> None:
    delivery = delivery_of(Order.KEY)
    add_keys(delivery, "aab")
    first = delivery.take(1)
    assert first is not None
    add(delivery, 0, at=OTHER)
    handle(first, delivery)
    handle(taken(delivery), delivery)  # 2
    delivery.wind_down([AT])

    assert [taken(delivery).lane.at for _ in range(2)] == [AT, OTHER]


@pytest.mark.parametrize("attempts", [1, 9])
@pytest.mark.parametrize("fails", ["before", "meanwhile"])
def test_nothing_is_begun_after_a_message_that_fails_before_or_while_its_partition_winds_down(
    attempts: int, fails: str
) -> None:
    delivery = delivery_of(Order.KEY, FailurePolicy(attempts=attempts, first_delay=1.0, then=LastResort.PARK))
    add_keys(delivery, "abbcccd")
    first, failing, second = begin(delivery), begin(delivery), begin(delivery)
    handle(taken(delivery), delivery)  # 6
    if fails == "before":
        delivery.fail(failing[0], now=0.0)  # 1
    delivery.wind_down([AT])
    if fails == "meanwhile":
        delivery.fail(failing[0], now=0.0)
    finish(second, delivery)
    delivery.wake(2.0)

    assert delivery.take() is None
    finish(first, delivery)
    assert (position(delivery), delivery.is_busy([AT])) == (1, False)


def test_a_partition_that_winds_down_goes_on_after_a_dead_letter() -> None:
    delivery = delivery_of(Order.KEY, FailurePolicy(attempts=1, then=LastResort.DEAD_LETTER))
    add_keys(delivery, "aab")
    failing = begin(delivery)
    handle(taken(delivery), delivery)
    delivery.wind_down([AT])
    delivery.fail(failing[0], now=0.0)
    assert delivery.take() is None
    delivery.dead_letter_written(failing[0].lane)

    handle(taken(delivery), delivery)
    assert position(delivery) == 3


def test_messages_before_a_dead_letter_that_is_being_written_are_begun() -> None:
    """Otherwise it would be written twice."""
    delivery = delivery_of(Order.KEY, FailurePolicy(attempts=1, then=LastResort.DEAD_LETTER))
    add_keys(delivery, "aab")
    first, failing = begin(delivery), begin(delivery)
    delivery.fail(failing[0], now=0.0)
    delivery.wind_down([AT])
    finish(first, delivery)

    assert offsets_of(taken(delivery)) == [1]


def test_a_refused_dead_letter_ends_the_winding_down_at_its_message() -> None:
    delivery = delivery_of(Order.KEY, FailurePolicy(attempts=1, then=LastResort.DEAD_LETTER))
    add_keys(delivery, "aab")
    failing = begin(delivery)
    handle(taken(delivery), delivery)
    delivery.wind_down([AT])
    delivery.fail(failing[0], now=0.0)
    delivery.park(failing[0].lane)

    assert not delivery.is_busy([AT])


def test_a_revocation_ends_the_winding_down() -> None:
    delivery = delivery_of(Order.KEY)
    add_keys(delivery, "abaabc")
    first, second = begin(delivery), begin(delivery)
    handle(taken(delivery), delivery)
    delivery.wind_down([AT])
    finish(first, delivery)
    third = begin(delivery)
    finish(second, delivery)
    assert delivery.ready == 1
    delivery.revoke([AT])
    delivery.wind_down([AT])

    assert delivery.ready == 0
    finish(third, delivery)
    assert (delivery.is_busy([AT]), delivery.take(), position(delivery)) == (False, None, 3)


@settings(deadline=None)
@given(st.sampled_from(Order), st.integers(0, 2**32))
def test_everything_that_was_begun_counts_after_winding_down_whenever_it_begins(order: Order, seed: int) -> None:
    random, delivery, handled = Random(seed), delivery_of(order), list[int]()
    add_keys(delivery, "".join(random.choice("abc") for _ in range(30)))
    running: list[tuple[Run[Message], Iterator[Message]]] = []

    def step() -> None:
        if len(running) < 3 and (run := delivery.take(random.randint(1, 5))) is not None:
            messages = iter(run)
            handled.append(next(messages).offset)
            running.append((run, messages))
        elif running:
            run, messages = running.pop(random.randrange(len(running)))
            if (following := next(messages, None)) is None:
                delivery.end(run)
            else:
                handled.append(following.offset)
                running.append((run, messages))

    for _ in range(random.randrange(60)):
        step()
    last = max(handled, default=0)
    delivery.wind_down([AT])
    while delivery.is_busy([AT]):
        step()

    assert sorted(handled) == list(range(position(delivery)))
    assert max(handled, default=0) == last
