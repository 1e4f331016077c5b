"""Which message a handler gets next, and up to where a partition may be committed. No threads, no clock, no client."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from itertools import count, repeat
from operator import itemgetter
from typing import Final, Generic, TypeVar

from ..input_errors import InvalidOptionError
from .znodes.topic_partition import TopicPartition

# The order in which messages are handled.


class Order(StrEnum):
    """Which messages wait for each other. All messages that do form a lane, and are handled one after the other."""

    PARTITION = "partition"
    """The messages of a partition."""
    KEY = "key"
    """The messages of a partition that have the same key. Messages without a key do not wait for each other."""
    NONE = "none"
    """No messages: all may be handled at the same time."""

    def lane(self, at: TopicPartition, offset: int, key: bytes | None) -> Hashable:
        """Return the lane of a message.

        >>> orders = TopicPartition("orders", 0)
        >>> Order.KEY.lane(orders, 5, b"anna") == Order.KEY.lane(orders, 9, b"anna")
        True
        >>> Order.KEY.lane(orders, 5, None) == Order.KEY.lane(orders, 9, None)
        False
        """
        if self is Order.PARTITION:
            return at
        if self is Order.KEY and key is not None:
            return at, key
        return at, offset


# What to do with a message whose handler has failed.


_LONGEST_DELAY = 3_600.0


class LastResort(StrEnum):
    """What happens to a message after its last attempt."""

    STOP = "stop"
    """The error ends the consumer. Nothing past the message is committed."""
    PARK = "park"
    """The lane of the message stands still, and other lanes go on. Nothing past the message is committed."""
    DEAD_LETTER = "dead_letter"
    """The message is written to another topic. When the broker has confirmed that, the lane goes on."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """How often a message is handled again, after which pauses, and what happens then.

    - `attempts`: how often a message is handled at most.
    - `first_delay`: the pause after the first failure, in seconds. Each pause is twice as long as the one before.
    - `longest_delay`: no pause is longer.
    - `then`: what happens after the last attempt.
    """

    attempts: int = 3
    first_delay: float = 0.5
    longest_delay: float = 30.0
    then: LastResort = LastResort.STOP

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidOptionError("attempts", self.attempts, "it must be at least 1")
        if not 0 <= self.first_delay <= self.longest_delay <= _LONGEST_DELAY:
            reason = f"it must be between 0 and longest_delay, which may be at most {_LONGEST_DELAY:g} s"
            raise InvalidOptionError("first_delay", self.first_delay, reason)

    def delay(self, failures: int) -> float | None:
        """Return the pause after this number of failures of one message, or None after the last attempt.

        >>> [FailurePolicy(attempts=4).delay(failures) for failures in (1, 2, 3, 4)]
        [0.5, 1.0, 2.0, None]
        """
        if failures >= self.attempts:
            return None
        doublings = min(failures - 1, 64)
        return float(min(self.first_delay * 2**doublings, self.longest_delay))


# A lane: messages that are handled one after the other. And a run: the part of a lane that a worker has taken.


M = TypeVar("M")


class LaneState(Enum):
    """What a lane waits for."""

    READY = auto()
    """A worker."""
    RUNNING = auto()
    """The end of its run."""
    DELAYED = auto()
    """The time of the next attempt."""
    DEAD_LETTER = auto()
    """The confirmation that its first message was written to another topic."""
    PARKED = auto()
    """Nothing: its first message has failed for the last time."""


@dataclass(slots=True, eq=False)
class Lane(Generic[M]):
    """The messages of one lane that are not finished."""

    at: TopicPartition
    key: Hashable
    waiting: deque[tuple[int, M]] = field(default_factory=deque)
    """Offsets and messages that no worker has taken, in the order of the log."""
    run: Run[M] | None = None
    state: LaneState = LaneState.READY
    failures: int = 0
    """How often the first message has failed."""

    @property
    def first(self) -> int | None:
        """The offset of the first message that is not finished; None without messages."""
        if self.run is not None and (offset := self.run.next_offset) is not None:
            return offset
        return self.waiting[0][0] if self.waiting else None

    def take(self, most: int) -> Run[M]:
        """Take the next messages for a worker. A message that has failed before is taken alone."""
        if self.failures:
            most = 1
        if len(self.waiting) <= most:
            taken = list(self.waiting)
            self.waiting.clear()
        else:
            taken = [self.waiting.popleft() for _ in range(most)]
        self.state = LaneState.RUNNING
        self.run = Run(self, taken)
        return self.run

    def put_back(self, run: Run[M]) -> None:
        """Put the unfinished messages of the run back."""
        if run.done < len(run.messages):
            self.waiting.extendleft(reversed(run.messages[run.done :]))
        self.run = None


@dataclass(slots=True, eq=False)
class Run(Generic[M]):
    """Messages of one lane, for one worker.

    The worker iterates over it. A message is finished when the worker asks for the next one. The iteration ends early
    when the run is cancelled.
    """

    lane: Lane[M]
    messages: list[tuple[int, M]]
    """Offsets and messages."""
    done: int = 0
    """The number of finished messages. Only the worker changes it."""
    begun: bool = False
    """True when the worker begins, before it looks at `cancelled`."""
    cancelled: bool = False
    """True after the partition was revoked: begin no other message of this run."""

    def __iter__(self) -> Iterator[M]:
        self.begun = True
        for _offset, message in self.messages:
            if self.cancelled:
                return
            yield message
            self.done += 1

    @property
    def reached(self) -> int:
        """The offset of the last message of a run that has begun. It may be that of the next one for a moment."""
        return self.messages[min(self.done, len(self.messages) - 1)][0]

    @property
    def finished(self) -> list[int]:
        """The offsets of the finished messages."""
        return [offset for offset, _message in self.messages[: self.done]]

    @property
    def next_offset(self) -> int | None:
        """The offset of the first unfinished message; None if all are finished."""
        done = self.done
        return self.messages[done][0] if done < len(self.messages) else None


# The messages of one consumer, from their arrival to the commit.
#
# Messages wait in lanes (`Order`). A worker takes a run of one lane, so the messages of a lane are handled one after
# the other. The position of a partition is the offset of its first unfinished message: everything before it is
# finished. Only positions are committed. So after a crash no message is skipped. No more than `window` messages of a
# partition arrive after its position, so no more are handled again if the position was committed.
#
# The caller passes the time, starts the workers, and holds a lock during each call. Only the iteration over a run
# needs no lock.


_UNDER_WAY: Final = (LaneState.RUNNING, LaneState.DEAD_LETTER)
_STOPPED: Final = (LaneState.DELAYED, LaneState.PARKED)


@dataclass(slots=True)
class _Partition(Generic[M]):
    end: int
    """The offset after the last message that has arrived."""
    unfinished: int = 0
    """The number of messages that are not finished, as of the end of each run."""
    arrived: deque[int] = field(default_factory=deque)
    """The offsets since the position, if messages may finish in another order than they arrive."""
    finished: set[int] = field(default_factory=set)
    """Those of `arrived` that are finished."""
    until: int | None = None
    """None before the partition is revoked. Then only messages before this offset are begun."""
    lanes: dict[Hashable, Lane[M]] = field(default_factory=dict)

    def cancel_runs(self) -> None:
        for lane in self.lanes.values():
            if lane.run is not None:
                lane.run.cancelled = True

    def wind_down(self) -> None:
        self.cancel_runs()  # first: then no run begins a message that is not seen here
        lanes = self.lanes.values()
        running = [lane.run.reached for lane in lanes if lane.run is not None and lane.run.begun]
        letters = [lane.first or 0 for lane in lanes if lane.state is LaneState.DEAD_LETTER]
        stopped = [lane.first or 0 for lane in lanes if lane.state in _STOPPED]
        self.until = min([max([*self.finished, *running, *letters], default=0), *stopped])


class Delivery(Generic[M]):
    """The unfinished messages of all partitions.

    - `window`: a partition is full when this many messages have arrived since its position: see `is_full`.

    >>> delivery, orders = Delivery(Order.PARTITION, FailurePolicy(), window=1000), TopicPartition("orders", 0)
    >>> delivery.assign(orders, 7)
    >>> delivery.add(orders, [(7, "a"), (8, "b"), (11, "c")])
    >>> run = delivery.take()
    >>> for message in run:
    ...     print(message, delivery.positions([orders])[orders])
    a 7
    b 8
    c 11
    >>> delivery.end(run)
    >>> delivery.positions([orders])[orders]
    12
    """

    def __init__(self, order: Order, policy: FailurePolicy, *, window: int) -> None:
        self._order = order
        self._policy = policy
        self._window = window
        self._partitions: dict[TopicPartition, _Partition[M]] = {}
        self._ready: deque[Lane[M]] = deque()
        self._needed: list[tuple[TopicPartition, int, int, Lane[M]]] = []  # a heap, by partition and offset
        self._delayed: list[tuple[float, int, Lane[M]]] = []  # a heap, by time
        self._numbers = count()

    def assign(self, at: TopicPartition, position: int) -> None:
        """Begin a partition, or begin it again after a seek. Runs that are under way no longer count."""
        self.forget([at])
        self._partitions[at] = _Partition(position)

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin no more messages of these partitions. Those that are being handled may still finish, see `is_busy`."""
        for at in partitions:
            if (partition := self._partitions.get(at)) is not None:
                partition.until = 0
                partition.cancel_runs()
        self._needed = [entry for entry in self._needed if self._is_needed(entry[-1])]
        heapq.heapify(self._needed)

    def wind_down(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin only messages of these partitions that come before one that is finished or being handled.

        Messages may finish in another order than they arrive. One that is finished counts only if all before it are:
        otherwise it is handled again after the rebalance. So those before it come first, in the order of the log. A
        message that fails is not tried again, and no message after it is begun. `revoke` ends this.
        """
        for at in partitions:
            if (partition := self._partitions.get(at)) is not None and partition.until is None:
                partition.wind_down()
        ready, self._ready = self._ready, deque()
        for lane in ready:
            self._await_worker(lane)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions, with their messages."""
        gone = set(partitions)
        self.revoke(gone)
        for at in gone:
            self._partitions.pop(at, None)
        self._ready = deque(lane for lane in self._ready if lane.at not in gone)
        self._delayed = [entry for entry in self._delayed if entry[2].at not in gone]
        heapq.heapify(self._delayed)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that have begun and are not forgotten."""
        return list(self._partitions)

    def knows(self, at: TopicPartition) -> bool:
        """True if a partition has begun and is not forgotten."""
        return at in self._partitions

    def received(self, at: TopicPartition) -> int | None:
        """Return the offset after the last message that was added, or the position. None for an unknown partition."""
        return self._partitions[at].end if at in self._partitions else None

    def is_busy(self, partitions: Collection[TopicPartition]) -> bool:
        """True while messages of these partitions are being handled or written as dead letters, or must still begin."""
        lanes = (lane for at in partitions if at in self._partitions for lane in self._partitions[at].lanes.values())
        return any(lane.state in _UNDER_WAY or self._is_needed(lane) for lane in lanes)

    def _is_needed(self, lane: Lane[M]) -> bool:
        """True if a lane of a revoked partition has messages to begin. Lanes that stand still have none."""
        until = self._partitions[lane.at].until
        return until is not None and lane.first is not None and lane.first < until

    def is_full(self, at: TopicPartition) -> bool:
        """True if no more messages of a partition should be fetched."""
        return self._since_position(self._partitions[at]) >= self._window

    def has_room(self, at: TopicPartition) -> bool:
        """True if more messages of a full partition should be fetched again."""
        return self._since_position(self._partitions[at]) <= self._window // 2

    def _since_position(self, partition: _Partition[M]) -> int:
        """Return how many messages have arrived since the position, as of the end of each run."""
        return partition.unfinished if self._order is Order.PARTITION else len(partition.arrived)

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets to commit."""
        return {at: self._position(self._partitions[at]) for at in partitions if at in self._partitions}

    def _position(self, partition: _Partition[M]) -> int:
        lanes = list(partition.lanes.values())
        if self._order is Order.PARTITION:  # there is one lane at most
            return next((first for lane in lanes if (first := lane.first) is not None), partition.end)
        finished = partition.finished.union(*(lane.run.finished for lane in lanes if lane.run is not None))
        return next((offset for offset in partition.arrived if offset not in finished), partition.end)

    def unfinished(self) -> int:
        """Return how many messages are not finished, as of the end of each run."""
        return sum(partition.unfinished for partition in self._partitions.values())

    def parked(self) -> dict[TopicPartition, list[int]]:
        """Return the offsets of the messages that have failed for the last time, and block their lanes."""
        found = {
            at: sorted(lane.first or 0 for lane in partition.lanes.values() if lane.state is LaneState.PARKED)
            for at, partition in self._partitions.items()
        }
        return {at: offsets for at, offsets in found.items() if offsets}

    def add(
        self, at: TopicPartition, messages: Sequence[tuple[int, M]], keys: Sequence[bytes | None] | None = None
    ) -> None:
        """Add messages with their offsets, in the order of the log. Earlier offsets are left out.

        `keys` are needed only for `Order.KEY`.
        """
        partition = self._partitions.get(at)
        if partition is None or partition.until is not None:
            return
        known = bisect_left(messages, partition.end, key=itemgetter(0))
        if known:
            messages, keys = messages[known:], keys[known:] if keys is not None else None
        if not messages:
            return
        partition.end = messages[-1][0] + 1
        partition.unfinished += len(messages)
        if self._order is Order.PARTITION:
            self._lane(partition, at, at).waiting.extend(messages)
            return
        for message, key in zip(messages, keys if keys is not None else repeat(None), strict=False):
            self._lane(partition, at, self._order.lane(at, message[0], key)).waiting.append(message)
            partition.arrived.append(message[0])

    def _lane(self, partition: _Partition[M], at: TopicPartition, key: Hashable) -> Lane[M]:
        lane = partition.lanes.get(key)
        if lane is None:
            lane = partition.lanes[key] = Lane(at, key)
            self._ready.append(lane)
        return lane

    def take(self, most: int = 200) -> Run[M] | None:
        """Return at most `most` messages for a free worker, or None if no lane is ready."""
        run = self.take_needed()
        while run is None and self._ready:
            lane = self._ready.popleft()
            if self._partitions[lane.at].until is None:
                run = lane.take(most)
        return run

    def take_needed(self) -> Run[M] | None:
        """Return the next message of a partition that winds down, or None if none has messages to begin."""
        while self._needed:
            lane = heapq.heappop(self._needed)[-1]
            if self._is_needed(lane):
                return lane.take(1)
        return None

    @property
    def ready(self) -> int:
        """How many lanes wait for a worker, including those of revoked partitions."""
        return len(self._ready) + len(self._needed)

    def end(self, run: Run[M]) -> None:
        """Note that a worker has ended its run: all messages are finished, or it was cancelled."""
        lane = run.lane
        if not self._is_current(run):
            return
        self._finish(run.messages[: run.done], self._partitions[lane.at])
        lane.failures = 0
        lane.put_back(run)
        self._continue(lane)

    def fail(self, run: Run[M], now: float) -> LastResort | None:
        """Note that the handler has failed at the first unfinished message of a run.

        Return None if it will be handled again, or if the partition was revoked. Otherwise return what to do. For a
        dead letter, write the message, and call `dead_letter_written` when the broker has confirmed that.
        """
        lane = run.lane
        if not self._is_current(run):
            return None
        self._finish(run.messages[: run.done], self._partitions[lane.at])
        lane.failures = lane.failures + 1 if not run.done else 1
        lane.put_back(run)
        delay = self._policy.delay(lane.failures)
        if delay is not None:
            self._stop(lane, LaneState.DELAYED)
            heapq.heappush(self._delayed, (now + delay, next(self._numbers), lane))
            return None
        if self._policy.then is LastResort.DEAD_LETTER:
            lane.state = LaneState.DEAD_LETTER
        else:
            self._stop(lane, LaneState.PARKED)
        return self._policy.then

    def dead_letter_written(self, lane: Lane[M]) -> None:
        """Note that the first message of a lane is stored elsewhere. The lane goes on after it."""
        if not self._is_known(lane) or lane.state is not LaneState.DEAD_LETTER:
            return
        lane.failures = 0
        self._finish([lane.waiting.popleft()], self._partitions[lane.at])
        self._continue(lane)

    def park(self, lane: Lane[M]) -> None:
        """Let a lane stand still, because its dead letter cannot be written."""
        if self._is_known(lane):
            self._stop(lane, LaneState.PARKED)

    def _stop(self, lane: Lane[M], state: LaneState) -> None:
        """Let a lane stand still. If its partition is revoked, begin no message after it: that would not count."""
        lane.state = state
        partition = self._partitions[lane.at]
        if partition.until is not None:
            partition.until = min(partition.until, lane.first or 0)

    def wake(self, now: float) -> None:
        """Let lanes go on whose pause is over."""
        while self._delayed and self._delayed[0][0] <= now:
            _due, _number, lane = heapq.heappop(self._delayed)
            self._continue(lane)

    @property
    def next_wake(self) -> float | None:
        """When to call `wake`; None if nothing waits for it."""
        return self._delayed[0][0] if self._delayed else None

    def _finish(self, messages: Sequence[tuple[int, M]], partition: _Partition[M]) -> None:
        """Move the position after messages were finished."""
        partition.unfinished -= len(messages)
        if self._order is Order.PARTITION:
            return
        partition.finished.update(offset for offset, _message in messages)
        while partition.arrived and partition.arrived[0] in partition.finished:
            partition.finished.discard(partition.arrived.popleft())

    def _continue(self, lane: Lane[M]) -> None:
        if lane.waiting:
            lane.state = LaneState.READY
            self._await_worker(lane)
        else:
            del self._partitions[lane.at].lanes[lane.key]

    def _await_worker(self, lane: Lane[M]) -> None:
        if self._partitions[lane.at].until is None:
            self._ready.append(lane)
        elif self._is_needed(lane):
            heapq.heappush(self._needed, (lane.at, lane.first or 0, next(self._numbers), lane))

    def _is_current(self, run: Run[M]) -> bool:
        return run.lane.run is run and self._is_known(run.lane)

    def _is_known(self, lane: Lane[M]) -> bool:
        """False if the partition was forgotten meanwhile."""
        partition = self._partitions.get(lane.at)
        return partition is not None and partition.lanes.get(lane.key) is lane
