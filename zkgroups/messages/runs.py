"""The messages that wait for a handler, shared by all threads of one consumer."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from ..core.delivery import Delivery, FailurePolicy, Lane, LaneState, LastResort, Order
from ..core.delivery import Run as RunOf
from ..core.znodes.topic_partition import TopicPartition, check_topic
from ..deadline import Deadline
from ..exceptions import HandlerFailedError, InvalidOptionError
from .deliverer import wind_down

if TYPE_CHECKING:
    from confluent_kafka import Message


# The options of `Consumer.run`, checked when it is called.


Handler: TypeAlias = "Callable[[Message], Awaitable[object] | None]"

MOST_WORKERS: Final = 1_000
"""The most workers. Each is a thread or a task."""

MOST_FETCHED: Final = 500
"""The most messages that are fetched in one step."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A topic for messages that no attempt could handle: `consumer.run(handler, then=DeadLetter("orders-failed"))`.

    The key, the value and the headers of the message stay as they are. More headers say where it came from, why it
    failed, and how often it was tried: see `zkgroups.messages.dead_letters`.
    """

    topic: str

    def __post_init__(self) -> None:
        check_topic(self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """How a handler is called. `Consumer.run` explains them."""

    workers: int = 1
    order: Order | str = Order.PARTITION
    window: int = 1_000
    attempts: int = 3
    first_delay: float = 0.5
    longest_delay: float = 30.0
    then: Literal["stop", "park"] | DeadLetter = "stop"

    def __post_init__(self) -> None:
        _check_count("workers", self.workers, MOST_WORKERS)
        _check_count("window", self.window, 1_000_000)
        if self.order not in list(Order):
            raise InvalidOptionError("order", self.order, "it must be one of " + ", ".join(Order))
        if not isinstance(self.then, DeadLetter) and self.then not in ("stop", "park"):
            raise InvalidOptionError("then", self.then, 'it must be "stop", "park" or a DeadLetter')
        _ = self.policy

    @property
    def policy(self) -> FailurePolicy:
        """What to do when a handler fails."""
        then = LastResort.DEAD_LETTER if isinstance(self.then, DeadLetter) else LastResort(self.then)
        return FailurePolicy(self.attempts, self.first_delay, self.longest_delay, then)

    @property
    def fetched(self) -> int:
        """The most messages to fetch in one step."""
        return max(1, min(MOST_FETCHED, self.window // 2))

    @property
    def full(self) -> int:
        """How many messages of a partition may be in the window, so that another fetch does not exceed it."""
        return self.window - self.fetched + 1


def is_coroutine_function(handler: object) -> bool:
    """Return True if calling the handler makes a coroutine. Raise `InvalidOptionError` if it cannot be called."""
    if not callable(handler):
        raise InvalidOptionError("handler", handler, "it must be a function")
    called: Any = getattr(handler, "__call__", None)  # noqa: B004  # the method of an object that can be called
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)


def _check_count(option: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidOptionError(option, value, f"it must be a whole number between 1 and {most}")


log = logging.getLogger("zkgroups.consumer")

Run: TypeAlias = "RunOf[Message]"

TURN: Final = 0.05
"""How long a worker may stay with one partition or key while others wait, in seconds."""

_LONGEST_RUN: Final = 200

_LOOK: Final = 0.05
"""In seconds: how soon idle workers notice that the claims are certain again."""
_LEAST_PACE: Final = TURN / _LONGEST_RUN / 10
"""In seconds per message. With the clock of a test, which stands still, the average would become zero."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message whose handler has failed for the last time."""

    message: Message
    at: TopicPartition
    offset: int
    attempts: int
    error: BaseException


class LetterWriter(Protocol):
    """Writes dead letters."""

    def write(self, letter: Letter, written: Callable[[Exception | None], None]) -> None:
        """Write a letter. Call `written` when it is stored for certain, or with the error if it cannot be."""

    def close(self) -> None:
        """Give up letters that are not written."""


class Fatal(BaseException):
    """An error that is not that of a message. It stops everything."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


@dataclass(slots=True)
class HandlerStats:
    """Totals of one `Consumer.run`.

    - `handled`: messages whose handler has returned.
    - `failed`: attempts that failed.
    - `dead_letters`: messages that were written as dead letters.
    - `parked`: messages that failed for the last time, and let others wait.
    - `unfinished`: messages that were fetched, and are not finished.
    """

    handled: int = 0
    failed: int = 0
    dead_letters: int = 0
    parked: int = 0
    unfinished: int = 0


class Runs:
    """A `Delivery` with a lock and a clock. It carries out what the failure policy decides.

    Every method may be called with `lock` held. Those whose docstring says so must be.

    - `changed`: a condition of `lock`, notified when messages of a revoked partition are no longer being handled.
    - `told_of_room`: called with the lock held, when a full partition has room again.
    - `alive`: returns False while others may have the partitions. Then no message is begun.
    """

    def __init__(
        self,
        options: HandlerOptions,
        letters: LetterWriter | None,
        *,
        clock: Callable[[], float],
        lock: threading.RLock,
        changed: threading.Condition,
        told_of_room: Callable[[], object],
        alive: Callable[[], bool],
    ) -> None:
        self.lock = lock
        self.clock = clock
        self.wake_workers: Callable[[], object] = lambda: None
        """Called with the lock held, when workers may find messages."""
        self.cancel_workers: Callable[[Collection[TopicPartition]], object] = lambda _partitions: None
        self.failure: BaseException | None = None
        """Why everything has stopped."""
        self.closed = False
        self._delivery: Delivery[Message] = Delivery(Order(options.order), options.policy, window=options.full)
        self._attempts = options.attempts
        self._by_key = options.order == Order.KEY
        self._dead_letters = options.then.topic if isinstance(options.then, DeadLetter) else None
        self._letters = letters
        self._letters_on_the_way = 0
        self._began: dict[Run, float] = {}
        self._pace = TURN  # seconds per message
        self._stats = HandlerStats()
        self._full: set[TopicPartition] = set()
        self._given_up: set[TopicPartition] = set()
        self._tell_room = told_of_room
        self._alive = alive
        self._changed = changed
        self._awaited = False  # somebody may wait for `changed`

    # For workers

    def take(self) -> Run | None:
        """Return messages for a worker; None if none are ready. The caller holds the lock."""
        if self.closed or not self._alive():
            return None
        now = self.clock()
        if self.failure is not None:
            run = self._delivery.take_needed()
        else:
            if (due := self._delivery.next_wake) is not None and due <= now:
                self._delivery.wake(now)
            run = self._delivery.take(max(1, min(int(TURN / self._pace), _LONGEST_RUN)))
        if run is not None:
            self._began[run] = now
        return run

    @property
    def ready(self) -> int:
        """For how many workers there are messages. The caller holds the lock."""
        return 0 if self.closed or self.failure is not None else self._delivery.ready

    @property
    def pause(self) -> float | None:
        """After how many seconds to call `take` again; None if no message waits for that. The caller holds the lock."""
        due = self._delivery.next_wake
        if (due is not None or self._delivery.ready) and not self._alive():
            return _LOOK
        return None if due is None or self.failure is not None else max(0.0, due - self.clock())

    def end(self, run: Run, error: BaseException | None) -> None:
        """Note that a worker has ended a run: it is finished, it was cancelled, or the handler has failed.

        The caller holds the lock.
        """
        taken = (self.clock() - self._began.pop(run)) / max(run.done, 1)
        self._pace += 0.2 * (min(max(taken, _LEAST_PACE), TURN) - self._pace)
        self._stats.handled += run.done
        if error is None:
            self._delivery.end(run)
        elif isinstance(error, Exception | asyncio.CancelledError):
            self._fail(run, error)
        else:
            self._delivery.end(run)
            self._stop(error.error if isinstance(error, Fatal) else error)
            self._delivery.revoke(self._delivery.partitions)
        self._tell_changed(run.lane.at)

    def _fail(self, run: Run, error: BaseException) -> None:
        lane, (offset, message) = run.lane, run.messages[run.done]
        self._stats.failed += 1
        then = self._delivery.fail(run, self.clock())
        where = f"{lane.at}:{offset}"
        if then is None:
            again = f"attempt {lane.failures} of {self._attempts}" if lane.state is LaneState.DELAYED else "given up"
            log.warning("the handler failed at %s (%s): %r", where, again, error)
        elif then is LastResort.STOP:
            failed = HandlerFailedError(lane.at, offset, lane.failures)
            failed.__cause__ = error
            self._stop(failed)
        elif then is LastResort.PARK:
            text = "the handler failed at %s for the last time; messages that wait for it are left alone"
            log.error(text, where, exc_info=error)
        else:
            log.error("the handler failed at %s for the last time; writing a dead letter", where, exc_info=error)
            self._write(Letter(message, lane.at, offset, lane.failures, error), lane)

    def _stop(self, error: BaseException) -> None:
        """Begin only messages before finished ones."""
        self.failure = self.failure or error
        self._delivery.wind_down(self._delivery.partitions)

    def _tell_changed(self, at: TopicPartition) -> None:
        if self._awaited:
            self._changed.notify_all()
        if at in self._full and self.has_room(at):
            self._full.discard(at)
            self._tell_room()

    # Dead letters

    def _write(self, letter: Letter, lane: Lane[Message]) -> None:
        if self._letters is None:
            raise AssertionError("a policy with dead letters needs a writer")
        self._letters_on_the_way += 1
        written = partial(self._written, letter, lane)
        try:
            self._letters.write(letter, written)
        except Exception as error:
            written(error)

    def _written(self, letter: Letter, lane: Lane[Message], error: Exception | None) -> None:
        with self.lock:
            self._letters_on_the_way -= 1
            if error is None:
                self._stats.dead_letters += 1
                self._delivery.dead_letter_written(lane)
            else:
                text = "the dead letter of %s:%d was refused; messages that wait for it are left alone: %s"
                log.error(text, letter.at, letter.offset, error)
                self._delivery.park(lane)
            self._tell_changed(letter.at)
            self.wake_workers()

    # Partitions: for the thread that fetches, and for the member's thread

    def assign(self, at: TopicPartition, position: int) -> None:
        """Begin a partition, or begin it again. Raise `InvalidOptionError` for the topic of the dead letters."""
        if at.topic == self._dead_letters:
            raise InvalidOptionError(
                "then", at.topic, "this consumer reads that topic: it would handle its own letters"
            )
        with self.lock:
            self._full.discard(at)
            self._given_up.discard(at)
            self._delivery.assign(at, position)
            self.cancel_workers([at])

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin no more messages of these partitions."""
        with self.lock:
            self._awaited = True
            self._delivery.revoke(partitions)
            self._changed.notify_all()  # messages that were still to begin are not any more

    def wind_down(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin only messages of these partitions that come before finished ones."""
        with self.lock:
            self._awaited = True
            self._delivery.wind_down(partitions)

    def is_busy(self, partitions: Collection[TopicPartition]) -> bool:
        """True while messages of these partitions are being handled or written as dead letters, or must still begin."""
        with self.lock:
            return self._delivery.is_busy(partitions)

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Wait no longer for handlers of these partitions: cancel coroutines. Threads go on, and count for nothing."""
        with self.lock:
            self._given_up.update(partitions)
            self._delivery.revoke(partitions)
            self.cancel_workers(partitions)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions. What their handlers do from now on counts for nothing."""
        gone = frozenset(partitions)
        with self.lock:
            self._full -= gone
            self._given_up -= gone
            self._delivery.forget(gone)
            self.cancel_workers(gone)

    def positions(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the offsets to commit, of these or of all partitions."""
        with self.lock:
            return self._delivery.positions(self._delivery.partitions if partitions is None else partitions)

    def received(self, at: TopicPartition) -> int | None:
        """Return the offset after the last message that was added, or the position. None for an unknown partition."""
        with self.lock:
            return self._delivery.received(at)

    # Messages: for the thread that fetches

    def add(self, at: TopicPartition, messages: Sequence[Message]) -> bool:
        """Add messages of one partition, in the order of the log. Those of unknown partitions are dropped.

        Return True if the partition is full now: no more should be fetched until `told_of_room`.
        """
        new = [(message.offset() or 0, message) for message in messages]
        keys = [message.key() for message in messages] if self._by_key else None
        with self.lock:
            if not self._delivery.knows(at):
                return False
            self._delivery.add(at, new, keys)
            self.wake_workers()
            if is_full := self._delivery.is_full(at):
                self._full.add(at)
            return is_full

    def has_room(self, at: TopicPartition) -> bool:
        """True if more messages of a full partition should be fetched again."""
        with self.lock:
            return not self._delivery.knows(at) or self._delivery.has_room(at)

    def check(self) -> None:
        """Raise the error that has stopped everything: `HandlerFailedError`, or the `SystemExit` of a handler."""
        if (failure := self.failure) is not None:
            raise failure

    def drain(self, timeout: float) -> None:
        """Wait for all messages under way. Begin no more messages, but those before finished ones."""
        with self.lock:
            held = frozenset(self._delivery.partitions) - self._given_up
            if not wind_down(self, held, self._changed, timeout):
                busy = ", ".join(str(at) for at in sorted(held) if self._delivery.is_busy([at]))
                log.warning(
                    "handlers of %s did not return within %g s; their messages will be handled again", busy, timeout
                )

    def close(self) -> None:
        """Begin no more messages, and end the workers."""
        with self.lock:
            self.closed = True
            self._delivery.revoke(self._delivery.partitions)
            self.wake_workers()

    # For `max_idle`, statistics and tests

    @property
    def count(self) -> int:
        """How many times a handler has returned or failed."""
        with self.lock:
            return self._stats.handled + self._stats.failed + sum(run.done for run in self._began)

    @property
    def under_way(self) -> bool:
        """True while a handler is running, also if its message does not count any more."""
        return bool(self._began)

    def parked(self) -> dict[TopicPartition, list[int]]:
        """Return the offsets of parked messages."""
        with self.lock:
            return self._delivery.parked()

    def stats(self) -> HandlerStats:
        """Return the totals."""
        with self.lock:
            now = self._stats
            parked = sum(map(len, self._delivery.parked().values()))
            return HandlerStats(now.handled, now.failed, now.dead_letters, parked, self._delivery.unfinished())

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until no message is being handled, ready, or written as a dead letter. False after the timeout."""
        with self.lock:
            return self._wait_for(self._is_idle, timeout)

    def _is_idle(self) -> bool:
        return not (self.ready or self._began or self._letters_on_the_way or self.pause == 0)

    def _wait_for(self, is_done: Callable[[], bool], timeout: float) -> bool:
        self._awaited = True
        return self._changed.wait_for(is_done, Deadline(timeout).remaining)
