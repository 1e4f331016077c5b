"""The order in which messages are handled, the positions that may be committed, and how a partition is handed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkgroups import TopicPartition
from zkgroups.core.delivery import Delivery, FailurePolicy, LastResort, Order, Run
from zkgroups.exceptions import InvalidOptionError

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
RETRY = FailurePolicy(attempts=3, first_delay=1.0)
LETTER, PARK = (FailurePolicy(attempts=1, then=then) for then in (LastResort.DEAD_LETTER, LastResort.PARK))


class Message(NamedTuple):
    at: TopicPartition
    offset: int
    key: bytes | None = None


def delivery_of(
    order: Order = Order.PARTITION, policy: FailurePolicy = RETRY, *, window: int = 100
) -> Delivery[Message]:
    delivery: Delivery[Message] = Delivery(order, policy, window=window)
    for at in (AT, OTHER):
        delivery.assign(at, 0)
    return delivery


def add(delivery: Delivery[Message], *offsets: int, at: TopicPartition = AT, key: bytes | None = None) -> None:
    delivery.add(at, [(offset, Message(at, offset, key)) for offset in offsets], [key] * len(offsets))


def add_keys(delivery: Delivery[Message], keys: str) -> None:
    """Add a message for each letter, with the letter as its key."""
    for offset, key in enumerate(keys):
        add(delivery, offset, key=key.encode())


def taken(delivery: Delivery[Message], most: int = 200) -> Run[Message]:
    run = delivery.take(most)
    assert run is not None
    return run


def offsets_of(run: Run[Message] | None) -> list[int]:
    return [] if run is None else [offset for offset, _message in run.messages]


def handle(run: Run[Message], delivery: Delivery[Message]) -> None:
    """Handle all messages of a run."""
    for _message in run:
        pass
    delivery.end(run)


def fail(run: Run[Message], delivery: Delivery[Message], *, at: int = 0, now: float = 0.0) -> LastResort | None:
    """Handle the messages of a run until the one with this offset, and fail there."""
    assert any(message.offset == at for message in run)
    return delivery.fail(run, now)


def position(delivery: Delivery[Message]) -> int:
    return delivery.positions([AT])[AT]


# Order


@pytest.mark.parametrize(
    ("order", "runs"),
    [(Order.PARTITION, [[0, 1, 2, 3]]), (Order.KEY, [[0, 2], [1], [3]]), (Order.NONE, [[0], [1], [2], [3]])],
)
def test_messages_of_one_lane_wait_for_each_other_and_no_others(order: Order, runs: list[list[int]]) -> None:
    delivery = delivery_of(order)
    add_keys(delivery, "aba")
    add(delivery, 3)
    add(delivery, 2, 3)  # messages that came before are left out

    found = [taken(delivery) for _ in runs]
    assert [offsets_of(run) for run in found] == runs
    add(delivery, 4, key=b"a")
    assert (delivery.take() is None) == (order is not Order.NONE)
    handle(found[0], delivery)
    assert offsets_of(delivery.take()) == ([4] if order is not Order.NONE else [])


def test_partitions_take_turns() -> None:
    delivery = delivery_of()
    for at in (AT, OTHER):
        add(delivery, 0, 1, 2, 3, at=at)
    first = taken(delivery, 2)
    assert offsets_of(first) == [0, 1]
    handle(first, delivery)
    assert [taken(delivery).lane.at for _ in range(2)] == [OTHER, AT]


# Back-pressure


def test_a_partition_is_full_until_half_of_its_messages_are_finished() -> None:
    for order in (Order.NONE, Order.PARTITION):
        delivery = delivery_of(order, window=4)
        add(delivery, 0, 1, 2)
        assert not delivery.is_full(AT)
        add(delivery, 3)
        assert (delivery.is_full(AT), delivery.is_full(OTHER)) == (True, False)
        rooms = []
        for _ in range(3):
            handle(taken(delivery, 1), delivery)
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
    assert (delivery.is_full(AT), delivery.has_room(AT), delivery.unfinished()) == (True, False, 1)
    handle(slow, delivery)
    assert (delivery.has_room(AT), position(delivery)) == (True, 10)


# Failures


def test_a_message_is_handled_again_after_longer_and_longer_pauses_and_each_message_has_all_attempts() -> None:
    delivery = delivery_of()
    add(delivery, 0, 1, 2)
    assert fail(taken(delivery), delivery, now=10.0) is None
    assert delivery.next_wake == 11.0
    delivery.wake(10.9)
    assert delivery.take() is None
    delivery.wake(11.0)
    again = taken(delivery)
    assert offsets_of(again) == [0]  # the messages behind it wait
    assert fail(again, delivery, now=11.0) is None
    assert delivery.next_wake == 13.0
    delivery.wake(13.0)
    handle(taken(delivery), delivery)
    assert fail(taken(delivery), delivery, at=2, now=20.0) is None  # behind the finished message 1
    assert (delivery.next_wake, position(delivery)) == (21.0, 2)
    delivery.wake(21.0)
    assert fail(taken(delivery), delivery, at=2, now=21.0) is None
    delivery.wake(23.0)
    assert fail(taken(delivery), delivery, at=2, now=23.0) is LastResort.STOP


@pytest.mark.parametrize("then", LastResort)
def test_a_message_that_failed_for_the_last_time_blocks_its_lane_alone(then: LastResort) -> None:
    delivery = delivery_of(Order.KEY, FailurePolicy(attempts=1, then=then))
    add_keys(delivery, "aba")
    run = taken(delivery)
    assert fail(run, delivery) is then
    handle(taken(delivery), delivery)
    assert (delivery.take(), position(delivery)) == (None, 0)
    if then is not LastResort.DEAD_LETTER:
        assert (delivery.parked(), delivery.is_busy([AT])) == ({AT: [0]}, False)
        return
    assert (delivery.parked(), delivery.is_busy([AT])) == ({}, True)
    delivery.dead_letter_written(run.lane)
    assert (position(delivery), offsets_of(delivery.take())) == (2, [2])


def test_a_dead_letter_that_cannot_be_written_blocks_its_lane() -> None:
    delivery = delivery_of(policy=LETTER)
    add(delivery, 0, 1)
    fail(run := taken(delivery), delivery)
    delivery.park(run.lane)
    assert (position(delivery), delivery.parked(), delivery.take()) == (0, {AT: [0]}, None)
    delivery.dead_letter_written(run.lane)
    assert position(delivery) == 0, "a confirmation that comes later counts for nothing"


@pytest.mark.parametrize("options", [{"attempts": 0}, {"first_delay": -1}, {"first_delay": 9, "longest_delay": 8}])
def test_an_impossible_policy_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidOptionError):
        FailurePolicy(**options)  # type: ignore[arg-type]


# Partitions that are given up


def test_a_revoked_partition_finishes_the_message_under_way_and_no_other() -> None:
    delivery = delivery_of()
    add(delivery, 0, 1, 2)
    add(delivery, 0, at=OTHER)
    run, handled = taken(delivery), []
    for message in run:
        handled.append(message.offset)
        if message.offset == 1:
            delivery.revoke([AT])
            assert delivery.is_busy([AT])
    delivery.end(run)
    assert handled == [0, 1]
    assert (position(delivery), delivery.is_busy([AT])) == (2, False)
    assert taken(delivery).lane.at == OTHER
    assert delivery.take() is None


def late_end(delivery: Delivery[Message], run: Run[Message]) -> None:
    delivery.end(run)
    assert delivery.fail(run, now=0.0) is None


def late_letter(delivery: Delivery[Message], run: Run[Message]) -> None:
    delivery.dead_letter_written(run.lane)
    delivery.park(run.lane)


@pytest.mark.parametrize("late", [late_end, late_letter])
def test_what_comes_late_counts_for_nothing_after_a_partition_has_begun_again(
    late: Callable[[Delivery[Message], Run[Message]], None],
) -> None:
    delivery = delivery_of(policy=LETTER)
    add(delivery, 0, 1)
    messages = iter(run := taken(delivery))
    next(messages)
    if late is late_letter:
        delivery.fail(run, now=0.0)
    delivery.assign(AT, 0)
    add(delivery, 0)
    late(delivery, run)
    assert late is late_letter or list(messages) == []
    assert (position(delivery), delivery.parked(), offsets_of(delivery.take())) == (0, {}, [0])


def test_a_forgotten_partition_leaves_nothing_behind() -> None:
    delivery = delivery_of()
    add(delivery, 0, 1)
    add(delivery, 0, at=OTHER)
    fail(taken(delivery), delivery)
    fail(taken(delivery), delivery, now=5.0)
    delivery.forget([AT])
    assert (delivery.partitions, delivery.knows(AT), delivery.received(AT)) == ([OTHER], False, None)
    assert (delivery.next_wake, delivery.positions([AT]), delivery.received(OTHER)) == (6.0, {}, 1)
    add(delivery, 2)
    assert delivery.take() is None


# Any order of events


class Workers:
    """Three workers that begin, finish and fail at random, and two logs that arrive bit by bit."""

    winds_down = False
    """True when no more messages of one partition are wanted."""

    def __init__(self, order: Order, random: Random, then: LastResort = LastResort.DEAD_LETTER) -> None:
        self.random, self.order = random, order
        policy = FailurePolicy(attempts=2, first_delay=1.0, then=then)
        self.delivery: Delivery[Message] = Delivery(order, policy, window=1000)
        keys = (None, b"anna", b"ben")
        self.logs = {at: [Message(at, 2 * number, random.choice(keys)) for number in range(8)] for at in (AT, OTHER)}
        self.arriving = {at: iter(log) for at, log in self.logs.items()}
        self.arrived: list[Message] = []
        self.finished: list[Message] = []
        self.not_begun: list[Run[Message]] = []
        self.running: list[tuple[Run[Message], Iterator[Message], Message]] = []
        self.letters: list[tuple[Run[Message], Message]] = []
        self.stopped: dict[Message, float] = {}
        """Messages that have failed, and until when they stand still."""
        self.begun: list[Message] = []
        self.now = 0.0
        for at in self.logs:
            self.delivery.assign(at, 0)

    def step(self) -> None:
        self.random.choice((self.arrive, self.take, self.begin, self.work, self.write_letter, self.wait))()
        self.check()

    def arrive(self) -> None:
        at = OTHER if self.winds_down else self.random.choice((AT, OTHER))
        if (message := next(self.arriving[at], None)) is not None:
            self.arrived.append(message)
            self.delivery.add(at, [(message.offset, message)], [message.key])

    def take(self) -> None:
        if len(self.running) + len(self.not_begun) < 3 and (run := self.delivery.take(3)) is not None:
            self.not_begun.append(run)
            if self.winds_down:
                self.begin()

    def begin(self) -> None:
        if self.not_begun:
            run = self.not_begun.pop()
            self._go_on(run, iter(run))

    def work(self) -> None:
        """Let one worker finish its message, or fail."""
        if not self.running:
            return
        run, messages, message = self.running.pop(self.random.randrange(len(self.running)))
        if self.random.random() < 0.3:
            then = self.delivery.fail(run, self.now)
            self.stopped[message] = self.now + 1.0 if then is None else inf
            if then is LastResort.DEAD_LETTER:
                self.letters.append((run, message))
            return
        self._finish(message)
        self._go_on(run, messages)

    def _go_on(self, run: Run[Message], messages: Iterator[Message]) -> None:
        if (message := next(messages, None)) is None:
            self.delivery.end(run)
            return
        assert self.lane(message) not in {self.lane(other) for _run, _messages, other in self.running}
        self.begun.append(message)
        self.running.append((run, messages, message))

    def _finish(self, message: Message) -> None:
        self.finished.append(message)
        self.stopped.pop(message, None)

    def lane(self, message: Message) -> object:
        return self.order.lane(*message)

    def write_letter(self) -> None:
        if self.letters:
            run, message = self.letters.pop()
            self._finish(message)
            self.delivery.dead_letter_written(run.lane)

    def wait(self) -> None:
        self.now += 1.0
        self.delivery.wake(self.now)
        for message, until in list(self.stopped.items()):
            if until <= self.now and not (self.winds_down and message.at == AT):
                del self.stopped[message]

    def check(self) -> None:
        """The position is that of the first message that is not finished."""
        for at, found in self.delivery.positions(self.logs).items():
            arrived = [message.offset for message in self.arrived if message.at == at]
            finished = {message.offset for message in self.finished if message.at == at}
            after = arrived[-1] + 1 if arrived else 0
            assert found == next((offset for offset in arrived if offset not in finished), after)


@settings(max_examples=60)
@given(st.sampled_from(Order), st.integers(0, 2**32))
def test_in_any_order_of_events_nothing_is_skipped_or_doubled_and_lanes_keep_their_order(
    order: Order, seed: int
) -> None:
    workers = Workers(order, Random(seed))
    everything = {message for log in workers.logs.values() for message in log}
    while len(workers.finished) < len(everything):
        workers.step()

    assert sorted(workers.finished, key=str) == sorted(everything, key=str)
    for lane in map(workers.lane, everything):
        offsets = [message.offset for message in workers.finished if workers.lane(message) == lane]
        assert offsets == sorted(offsets)
    assert workers.delivery.positions(workers.logs) == dict.fromkeys(workers.logs, 15)


@given(st.sampled_from(Order), st.sampled_from(LastResort), st.integers(0, 2**32))
def test_a_partition_winds_down_to_what_was_begun_or_to_the_first_message_that_fails(
    order: Order, then: LastResort, seed: int
) -> None:
    """Finished messages count only if all before them are finished, too."""
    workers = Workers(order, Random(seed), then)
    for _ in range(workers.random.randrange(150)):
        workers.step()
    workers.delivery.wind_down([AT])
    workers.winds_down = True
    counts = {*workers.finished, *(it for _, _, it in workers.running), *(it for _, it in workers.letters)}
    last = max((it.offset for it in counts if it.at == AT), default=-1)
    while workers.delivery.is_busy([AT]):
        before, stopped = len(workers.begun), stopped_at(workers)
        workers.step()
        assert all(it.offset < min(last, stopped) for it in workers.begun[before:] if it.at == AT)

    assert not any(it.at == AT for _, _, it in workers.running)
    assert not any(it.at == AT for _, it in workers.letters)
    unfinished = [it.offset for it in workers.arrived if it.at == AT and it not in workers.finished]
    assert min(unfinished, default=inf) >= min(last + 1, stopped_at(workers)), "all that was begun counts"


def stopped_at(workers: Workers) -> float:
    """The first offset that stands still, and whose dead letter is not being written."""
    written = [it for _, it in workers.letters]
    return min((it.offset for it in workers.stopped if it.at == AT and it not in written), default=inf)


def test_what_winds_down_is_begun_in_the_order_of_the_log_and_before_other_partitions() -> None:
    """Otherwise finished messages might count for nothing when the time is up."""
    delivery = delivery_of(Order.KEY)
    add_keys(delivery, "abbcaad")
    for _ in range(3):
        handle(taken(delivery, 1), delivery)  # 0, 1 and 3
    handle(taken(delivery), delivery)  # 6
    add(delivery, 0, at=OTHER)
    delivery.wind_down([AT])
    runs = [taken(delivery), taken(delivery), taken(delivery)]
    assert [(run.lane.at, offsets_of(run)) for run in runs] == [(AT, [2]), (AT, [4]), (OTHER, [0])]
    assert delivery.take() is None
    for run in runs:
        handle(run, delivery)
    assert offsets_of(delivery.take()) == [5]


def test_a_revocation_ends_the_winding_down() -> None:
    delivery = delivery_of(Order.KEY)
    add_keys(delivery, "abaabc")
    first, second = taken(delivery, 1), taken(delivery, 1)
    handle(taken(delivery), delivery)  # 5
    handle(first, delivery)
    delivery.wind_down([AT])
    third = taken(delivery)
    messages = iter(third)
    next(messages)
    handle(second, delivery)  # it was not begun when the winding down began
    assert delivery.ready == 1
    delivery.revoke([AT])
    delivery.wind_down([AT])
    assert delivery.ready == 0
    assert list(messages) == []
    delivery.end(third)
    assert (delivery.is_busy([AT]), delivery.take(), position(delivery)) == (False, None, 1)
