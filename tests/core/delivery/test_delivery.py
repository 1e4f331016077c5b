"""The order in which messages are handled, and the positions that may be committed."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkgroups.core.delivery.delivery import Delivery
from zkgroups.core.delivery.failure_policy import FailurePolicy, LastResort
from zkgroups.core.delivery.lane import Run
from zkgroups.core.delivery.order import Order
from zkgroups.exceptions import InvalidOptionError

from .messages import (
    AT,
    OTHER,
    RETRY,
    Message,
    add,
    delivery_of,
    fail_at,
    handle,
    offsets_of,
    position,
    taken,
)

# Order


def test_messages_of_a_partition_are_handled_one_after_the_other() -> None:
    delivery = delivery_of()
    add(delivery, 0, 1)
    run = taken(delivery)
    add(delivery, 2)
    assert delivery.take() is None

    assert [message.offset for message in run] == [0, 1]
    delivery.end(run)
    assert [message.offset for message in taken(delivery)] == [2]


def test_messages_of_one_key_wait_for_each_other_and_no_others() -> None:
    delivery = delivery_of(Order.KEY)
    for offset, key in enumerate((b"anna", b"ben", b"anna", None, None)):
        add(delivery, offset, key=key)

    runs = [[message.offset for message in taken(delivery)] for _ in range(4)]

    assert runs == [[0, 2], [1], [3], [4]]
    assert delivery.take() is None


def test_without_an_order_no_message_waits() -> None:
    delivery = delivery_of(Order.NONE)
    add(delivery, 0, 1, 2, key=b"anna")

    assert [offsets_of(taken(delivery)) for _ in range(3)] == [[0], [1], [2]]


def test_partitions_take_turns() -> None:
    delivery: Delivery[Message] = Delivery(Order.PARTITION, RETRY, window=100)
    for at in (AT, OTHER):
        delivery.assign(at, 0)
        add(delivery, 0, 1, 2, 3, at=at)

    first = delivery.take(2)
    assert first is not None
    assert offsets_of(first) == [0, 1]
    handle(first, delivery)

    assert [taken(delivery).lane.at for _ in range(2)] == [OTHER, AT]


# Positions


def test_the_position_is_that_of_the_first_unfinished_message() -> None:
    delivery = delivery_of(Order.NONE)
    add(delivery, 0, 1, 5)
    runs = [taken(delivery) for _ in range(3)]
    positions = []
    for number in (1, 2, 0):
        for _message in runs[number]:
            pass
        delivery.end(runs[number])
        positions.append(position(delivery))

    assert positions == [0, 0, 6]


@pytest.mark.parametrize("order", [Order.PARTITION, Order.KEY])
def test_the_position_moves_during_a_run(order: Order) -> None:
    delivery = delivery_of(order)
    add(delivery, 3, 4, 8, key=b"anna")
    seen = [position(delivery) for _message in taken(delivery)]

    assert seen == [3, 4, 8]
    assert position(delivery) == 9


def test_a_message_is_unfinished_until_its_handler_returns() -> None:
    delivery = delivery_of()
    add(delivery, 0)
    next(iter(taken(delivery)))

    assert position(delivery) == 0


def test_messages_that_came_before_are_left_out() -> None:
    delivery = delivery_of()
    add(delivery, 0, 1)
    add(delivery, 1, 2)

    assert offsets_of(taken(delivery)) == [0, 1, 2]


# Back-pressure


def test_a_partition_is_full_until_half_of_its_messages_are_finished() -> None:
    delivery = delivery_of(Order.NONE, window=4)
    add(delivery, 0, 1, 2)
    assert not delivery.is_full(AT)
    add(delivery, 3)
    assert delivery.is_full(AT)
    assert not delivery.is_full(OTHER)

    rooms = []
    for _ in range(3):
        run = taken(delivery)
        handle(run, delivery)
        rooms.append(delivery.has_room(AT))

    assert rooms == [False, True, True]


def test_a_partition_is_full_when_the_window_has_arrived_behind_an_unfinished_message() -> None:
    """Otherwise a crash would let any number of finished messages be handled again."""
    delivery = delivery_of(Order.KEY, window=4)
    add(delivery, 0, key=b"slow")
    slow = taken(delivery)
    for offset in (1, 5, 9):  # the log of a compacted topic has gaps
        assert not delivery.is_full(AT)
        add(delivery, offset, key=b"quick")
        handle(taken(delivery), delivery)

    assert delivery.is_full(AT)
    assert not delivery.has_room(AT)
    assert delivery.unfinished() == 1
    handle(slow, delivery)
    assert delivery.has_room(AT)
    assert position(delivery) == 10


# Failures


def test_a_message_is_handled_again_after_longer_and_longer_pauses() -> None:
    delivery = delivery_of(policy=FailurePolicy(attempts=3, first_delay=1.0))
    add(delivery, 0, 1)
    fail_at(first := taken(delivery), 0)
    assert delivery.fail(first, now=10.0) is None

    assert delivery.next_wake == 11.0
    delivery.wake(10.9)
    assert delivery.take() is None
    delivery.wake(11.0)
    fail_at(second := taken(delivery), 0)
    assert offsets_of(second) == [0]  # the messages behind it wait
    assert delivery.fail(second, now=11.0) is None
    assert delivery.next_wake == 13.0


def test_each_message_has_all_attempts() -> None:
    delivery = delivery_of(policy=FailurePolicy(attempts=2, first_delay=0.0))
    add(delivery, 0, 1)
    for fails in (0, None, 1):  # the second attempt at 0 succeeds, and 1 fails for the first time
        run = taken(delivery)
        if fails is None:
            handle(run, delivery)
        else:
            fail_at(run, fails)
            assert delivery.fail(run, now=0.0) is None
            delivery.wake(0.0)


def test_a_message_behind_finished_ones_has_all_attempts() -> None:
    delivery = delivery_of(policy=FailurePolicy(attempts=2, first_delay=0, then=LastResort.PARK))
    add(delivery, 0, 1, 2)
    fail_at(run := taken(delivery), 1)
    assert delivery.fail(run, now=0.0) is None
    assert position(delivery) == 1


@pytest.mark.parametrize("then", [LastResort.PARK, LastResort.STOP])
def test_a_message_that_failed_for_the_last_time_blocks_its_lane_alone(then: LastResort) -> None:
    delivery = delivery_of(Order.KEY, FailurePolicy(attempts=1, then=then))
    add(delivery, 0, 2, key=b"anna")
    add(delivery, 3, key=b"ben")
    fail_at(run := taken(delivery), 0)

    assert delivery.fail(run, now=0.0) is then
    assert delivery.parked() == {AT: [0]}
    other = taken(delivery)
    handle(other, delivery)
    assert delivery.take() is None
    assert position(delivery) == 0


def test_the_position_moves_past_a_dead_letter_when_it_is_written() -> None:
    delivery = delivery_of(policy=FailurePolicy(attempts=1, then=LastResort.DEAD_LETTER))
    add(delivery, 0, 1)
    fail_at(run := taken(delivery), 0)

    assert delivery.fail(run, now=0.0) is LastResort.DEAD_LETTER
    assert delivery.take() is None
    assert (position(delivery), delivery.is_busy([AT])) == (0, True)
    delivery.dead_letter_written(run.lane)
    assert (position(delivery), delivery.is_busy([AT])) == (1, False)
    assert offsets_of(taken(delivery)) == [1]


def test_a_dead_letter_that_cannot_be_written_blocks_its_lane() -> None:
    delivery = delivery_of(policy=FailurePolicy(attempts=1, then=LastResort.DEAD_LETTER))
    add(delivery, 0, 1)
    fail_at(run := taken(delivery), 0)
    delivery.fail(run, now=0.0)
    delivery.park(run.lane)

    assert (position(delivery), delivery.parked()) == (0, {AT: [0]})


# Rebalances


def test_a_revoked_partition_finishes_the_message_under_way_and_no_other() -> None:
    delivery = delivery_of()
    add(delivery, 0, 1, 2)
    run, handled = taken(delivery), []
    for message in run:
        handled.append(message.offset)
        if message.offset == 1:
            delivery.revoke([AT])
            assert delivery.is_busy([AT])
    delivery.end(run)

    assert handled == [0, 1]
    assert (position(delivery), delivery.is_busy([AT])) == (2, False)
    assert delivery.take() is None


def test_other_partitions_go_on_when_one_is_revoked() -> None:
    delivery = delivery_of()
    for at in (AT, OTHER):
        add(delivery, 0, at=at)
    delivery.revoke([AT])

    assert taken(delivery).lane.at == OTHER


def test_a_handler_that_returns_after_its_partition_has_begun_again_counts_for_nothing() -> None:
    delivery = delivery_of()
    add(delivery, 0, 1)
    late = iter(run := taken(delivery))
    next(late)
    delivery.assign(AT, 0)
    add(delivery, 0)
    assert list(late) == []
    delivery.end(run)
    assert delivery.fail(run, now=0.0) is None

    assert position(delivery) == 0
    assert offsets_of(taken(delivery)) == [0]


def test_a_late_dead_letter_counts_for_nothing_after_its_partition_has_begun_again() -> None:
    delivery = delivery_of(policy=FailurePolicy(attempts=1, then=LastResort.DEAD_LETTER))
    add(delivery, 0)
    fail_at(run := taken(delivery), 0)
    delivery.fail(run, now=0.0)
    delivery.assign(AT, 0)
    add(delivery, 0)
    delivery.dead_letter_written(run.lane)
    delivery.park(run.lane)

    assert position(delivery) == 0
    assert offsets_of(taken(delivery)) == [0]


def test_a_forgotten_partition_leaves_nothing_behind() -> None:
    delivery = delivery_of()
    add(delivery, 0, 1)
    fail_at(run := taken(delivery), 0)
    delivery.fail(run, now=0.0)
    delivery.forget([AT])

    assert delivery.next_wake is None
    assert delivery.positions([AT]) == {}
    add(delivery, 2)
    assert delivery.take() is None


# Any order of events


class Simulation:
    """Workers that finish and fail at random, and a log that arrives bit by bit."""

    def __init__(self, order: Order, random: Random) -> None:
        self.random = random
        self.order = order
        policy = FailurePolicy(attempts=2, first_delay=1.0, then=LastResort.DEAD_LETTER)
        self.delivery: Delivery[Message] = Delivery(order, policy, window=1000)
        keys = (None, b"anna", b"ben")
        self.logs = {at: [Message(at, number * 2, random.choice(keys)) for number in range(12)] for at in (AT, OTHER)}
        self.arriving = {at: iter(log) for at, log in self.logs.items()}
        self.finished: list[Message] = []
        self.running: list[tuple[Run[Message], Iterator[Message], Message]] = []
        self.letters: list[Run[Message]] = []
        self.now = 0.0
        for at in self.logs:
            self.delivery.assign(at, 0)

    def lane(self, message: Message) -> Hashable:
        return self.order.lane(*message)

    def arrive(self) -> None:
        at = self.random.choice((AT, OTHER))
        if (message := next(self.arriving[at], None)) is not None:
            self.delivery.add(at, [(message.offset, message)], [message.key])

    def begin(self) -> None:
        if len(self.running) < 3 and (run := self.delivery.take(3)) is not None:
            messages = iter(run)
            first = next(messages)
            assert self.lane(first) not in {self.lane(message) for _run, _messages, message in self.running}
            self.running.append((run, messages, first))

    def work(self) -> None:
        """Let one worker finish its message, or fail."""
        if not self.running:
            return
        run, messages, message = self.running.pop(self.random.randrange(len(self.running)))
        if self.random.random() < 0.3:
            if self.delivery.fail(run, self.now) is LastResort.DEAD_LETTER:
                self.letters.append(run)
            return
        self.finished.append(message)
        if (following := next(messages, None)) is None:
            self.delivery.end(run)
        else:
            self.running.append((run, messages, following))

    def write_letter(self) -> None:
        if self.letters:
            run = self.letters.pop()
            offset = run.lane.first
            self.finished += [message for message in self.logs[run.lane.at] if message.offset == offset]
            self.delivery.dead_letter_written(run.lane)

    def wait(self) -> None:
        self.now += 1.0
        self.delivery.wake(self.now)

    def check(self) -> None:
        for at, before in self.delivery.positions(self.logs).items():
            assert {message for message in self.logs[at] if message.offset < before} <= set(self.finished)


@settings(deadline=None)
@given(st.sampled_from(Order), st.integers(0, 2**32))
def test_in_any_order_of_events_nothing_is_skipped_or_doubled_and_lanes_keep_their_order(
    order: Order, seed: int
) -> None:
    random = Random(seed)
    simulation = Simulation(order, random)
    all_messages = {message for log in simulation.logs.values() for message in log}
    events = (simulation.arrive, simulation.begin, simulation.work, simulation.write_letter, simulation.wait)
    for _ in range(3000):
        random.choice(events)()
        simulation.check()
        if len(simulation.finished) == len(all_messages):
            break

    assert sorted(simulation.finished, key=Message.place) == sorted(all_messages, key=Message.place)
    for lane in {simulation.lane(message) for message in all_messages}:
        offsets = [message.offset for message in simulation.finished if simulation.lane(message) == lane]
        assert offsets == sorted(offsets)
    assert simulation.delivery.positions(simulation.logs) == dict.fromkeys(simulation.logs, 23)


# Options


@pytest.mark.parametrize("options", [{"attempts": 0}, {"first_delay": -1}, {"first_delay": 9, "longest_delay": 8}])
def test_an_impossible_policy_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidOptionError):
        FailurePolicy(**options)  # type: ignore[arg-type]
