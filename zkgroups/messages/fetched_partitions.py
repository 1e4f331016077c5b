"""The partitions that the client fetches, kept in step with those that the consumer holds.

All methods are for the reader. Those whose docstring says so need the lock of `Reading`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..consumer.events import Partitions
from ..consumer.generation import Generation
from ..core.kafka_values import OffsetRange
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import StartAt
from ..deadline import uptime
from ..exceptions import FetchFailedError, GenerationEndedError, ZkgroupsException
from .deliverer import Deliverer
from .fetcher import Fetcher, confluent, reason, unserved
from .followed_member import ErrorReports

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


# Partitions that cannot be read now, and when to try again. It has no clock: the caller passes `now`.


_FIRST_PAUSE: Final = 1.0
"""In seconds. Long enough for a log end to count as confirmed, see `core/offsets/reset.py`."""
_LONGEST_PAUSE: Final = 30.0

_RECOVERED_AFTER: Final = 5.0
"""In seconds: a partition has recovered if it was fetched for so long without an error."""


@dataclass(frozen=True, slots=True)
class _Failure:
    error: ZkgroupsException
    failures: int
    due: float


class StandingPartitions:
    """Each has its last error, until it was fetched for a while without another one.

    The pauses between attempts double, up to half a minute.

    >>> from zkgroups.exceptions import FetchFailedError
    >>> orders, standing = TopicPartition("orders", 0), StandingPartitions()
    >>> for now in (0.0, 1.0, 3.0):
    ...     standing.failed(orders, FetchFailedError(orders, "no leader"), now)
    ...     print(standing.take_due(now), standing.next_due)
    set() 1.0
    set() 3.0
    set() 7.0
    >>> standing.take_due(7.0), standing.next_due
    ({TopicPartition(topic='orders', partition=0)}, None)
    """

    def __init__(self) -> None:
        self._failures: dict[TopicPartition, _Failure] = {}
        self._tried: set[TopicPartition] = set()
        self._begun: dict[TopicPartition, float] = {}  # when they were fetched again

    def failed(self, at: TopicPartition, error: ZkgroupsException, now: float) -> None:
        """Note that a partition could not be read."""
        known = self._failures.get(at)
        failures = known.failures if known is not None else 0
        pause = min(_FIRST_PAUSE * 2.0 ** min(failures, 16), _LONGEST_PAUSE)
        self._failures[at] = _Failure(error, failures + 1, now + pause)
        self._tried.discard(at)
        self._begun.pop(at, None)

    def take_due(self, now: float) -> set[TopicPartition]:
        """Return the partitions to try again now. Each is returned once."""
        due = {at for at, failure in self._failures.items() if failure.due <= now and at not in self._tried}
        self._tried |= due
        return due

    @property
    def next_due(self) -> float | None:
        """When to call `take_due`; None if nothing waits for it."""
        return min((found.due for at, found in self._failures.items() if at not in self._tried), default=None)

    def begun(self, at: TopicPartition, now: float) -> None:
        """Note that a partition is fetched again. It has recovered if no error follows soon."""
        if at in self._failures:
            self._begun[at] = now

    def take_recovered(self, now: float) -> set[TopicPartition]:
        """Forget the errors of partitions that are fetched again. Return these partitions."""
        recovered = {at for at, since in self._begun.items() if now - since >= _RECOVERED_AFTER}
        self.forget(recovered)
        return recovered

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the errors of these partitions."""
        for at in partitions:
            self._failures.pop(at, None)
            self._begun.pop(at, None)
            self._tried.discard(at)

    @property
    def waiting(self) -> frozenset[TopicPartition]:
        """The partitions that wait for their next attempt."""
        return frozenset(self._failures.keys() - self._tried)

    @property
    def errors(self) -> dict[TopicPartition, ZkgroupsException]:
        """The last error of each partition that has not been read since."""
        return {at: failure.error for at, failure in self._failures.copy().items()}  # the reader may change them


# The partitions that a consumer holds, and where each of them goes on. Without threads and clients: pure logic.


class HeldPartitions:
    """The partitions of the last generation, and how far the messages of each are finished.

    A partition is *gone* when it is revoked or lost. It stays gone until `settle`, also if the next generation has it
    again: the client must stop fetching it first.

    `automatic`: `finished` returns what the deliverer has finished. Otherwise it returns nothing.
    """

    def __init__(self, deliverer: Deliverer, *, automatic: bool) -> None:
        self.deliverer = deliverer
        self.of_generation: Partitions = frozenset()
        self.gone: set[TopicPartition] = set()
        self.seeks: dict[TopicPartition, int] = {}
        """Where to go on, as the user has asked."""
        self.resume_at: dict[TopicPartition, int] = {}
        """Where to go on after an error."""
        self._ends: dict[TopicPartition, tuple[int, int]] = {}
        """The partitions whose log has no more messages: the offset after the last one, and the log end."""
        self._automatic = automatic
        self._starts: dict[TopicPartition, int] = {}

    @property
    def kept(self) -> Partitions:
        """The partitions that have not been revoked or lost."""
        return self.of_generation - self.gone

    def replace(self, held: Partitions) -> None:
        """Note the partitions of another generation."""
        self.gone |= self.of_generation - held
        self.deliverer.forget(self.gone)
        self.of_generation = held

    def revoke(self, partitions: Partitions) -> None:
        """Note that these partitions are about to be released."""
        self.gone |= partitions

    def lose(self, partitions: Partitions) -> None:
        """Note that these partitions are no longer held."""
        self.gone |= partitions
        self.deliverer.forget(partitions)

    def settle(self, left: Iterable[TopicPartition]) -> None:
        """Note that the client has stopped fetching these partitions, and all that are gone."""
        for at in left:
            self.seeks.pop(at, None)
            self.resume_at.pop(at, None)
        self.gone.clear()

    def begin(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note that these partitions are fetched from these offsets on."""
        self.go_on(positions)
        now = self.deliverer.positions(frozenset(positions))
        for at, position in positions.items():
            self.deliverer.assign(at, position)
            if now.get(at) != position:  # otherwise what is finished before it still counts
                self._starts[at] = position

    def go_on(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that messages of these partitions have come: their logs did not end."""
        if self._ends:
            for at in partitions:
                self._ends.pop(at, None)

    def end(self, ends: Mapping[TopicPartition, int]) -> None:
        """Note the log ends of partitions without more messages. All messages before them were put."""
        for at in ends.keys() & self.kept - self.seeks.keys():
            if (received := self.deliverer.received(at)) is not None:
                self._ends[at] = received, ends[at]

    def past_controls(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Move positions after the last message to the log end: only control records of transactions are in between."""
        ends = {at: end for at, (last, end) in self._ends.items() if positions.get(at) == last < end}
        return {**positions, **ends}

    def has_received_all(self, at: TopicPartition, position: int) -> bool:
        """True if the log has no message from this position on, as of the last fetch."""
        return position in self._ends.get(at, ())

    def stop_at_error(self, at: TopicPartition) -> None:
        """Note that a partition is not fetched for now. It goes on after the last message that was taken."""
        if (received := self.deliverer.received(at)) is not None:
            self.resume_at[at] = received

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Hand out no more messages of a partition until the client has moved to another offset."""
        self.deliverer.revoke([at])
        self.seeks[at] = offset

    def take_seeks(self, fetched: Partitions) -> dict[TopicPartition, int]:
        """Return the seeks to carry out now. Those of partitions that stand still take effect when these go on."""
        seeks, self.seeks = self.seeks, {}
        standing = {at: offset for at, offset in seeks.items() if at in self.of_generation - fetched}
        self.begin(standing)
        self.resume_at |= standing
        return seeks

    def finished(self) -> dict[TopicPartition, int]:
        """Return the offsets to commit without being asked."""
        return self.moved(self.positions()) if self._automatic else {}

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the offset of the first unfinished message of each partition."""
        return self.past_controls(self.deliverer.positions(self.of_generation))

    def moved(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Leave out partitions without a finished message. Their committed offset, if any, stays.

        Messages from the offset of a seek on are not finished: they come again.
        """
        ends = {at: min(position, self.seeks.get(at, position)) for at, position in positions.items()}
        return {at: end for at, end in ends.items() if end > self._starts.get(at, -1)}

    def deliver_to(self, deliverer: Deliverer, *, automatic: bool) -> None:
        """Let another deliverer have the messages. Partitions begin again where the first one has finished."""
        self.seeks = {**self.positions(), **self.seeks}
        self.deliverer.forget(self.of_generation)
        self.deliverer = deliverer
        self._automatic = automatic


# Ask the brokers in the background where logs begin and end.
#
# A leader that does not answer would otherwise stop all other partitions meanwhile. The requests have connections of
# their own, because on the connection that fetches they wait behind fetches for a long time.


_THREADS: Final = 8

_TIMEOUT: Final = 5.0
"""In seconds: how long to wait for the range of one log."""


class LogRanges:
    """The requests that are under way, and their answers. Nothing connects before the first request."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = unserved(settings)
        self._client: Any = None
        self._connecting = threading.Lock()
        self._asked: dict[TopicPartition, Future[OffsetRange]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "zkgroups-log-range")

    def ask(self, at: TopicPartition) -> None:
        """Ask for one partition. An earlier answer that is still awaited is ignored."""
        self.forget([at])
        self._asked[at] = self._threads.submit(self._range, at)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Ignore the answers for these partitions."""
        for at in partitions:
            if (future := self._asked.pop(at, None)) is not None:
                future.cancel()

    def take_answers(self) -> dict[TopicPartition, Future[OffsetRange]]:
        """Return the answers that have arrived. Each is returned once. A failed request has a `FetchFailedError`."""
        done = {at: future for at, future in self._asked.items() if future.done()}
        for at in done:
            del self._asked[at]
        return done

    @property
    def awaited(self) -> frozenset[TopicPartition]:
        """The partitions whose answers have not arrived, or were not taken."""
        return frozenset(self._asked)

    def close(self) -> None:
        """Wait for the requests under way, and close the connections."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._client is not None:
            self._client.close()
            self._client = None

    # Its own threads

    def _range(self, at: TopicPartition) -> OffsetRange:
        kafka = confluent()
        with self._connecting:
            if self._client is None:
                self._client = kafka.Consumer(self._settings)
        try:
            found = self._client.get_watermark_offsets(kafka.TopicPartition(*at), timeout=_TIMEOUT)
        except kafka.KafkaException as error:
            raise FetchFailedError(at, reason(error)) from error
        if found is None:
            raise FetchFailedError(at, f"no broker has answered within {_TIMEOUT:g} s")
        return OffsetRange(*found)


log = logging.getLogger("zkgroups.consumer")


class FetchedPartitions:
    """Begins, moves and stops partitions. `lock` is that of `Reading`.

    It has two clients: one fetches, and one asks where logs begin and end.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        held: HeldPartitions,
        reports: ErrorReports,
        lock: threading.RLock,
        has_offsets: Callable[[], bool],
    ) -> None:
        self._held = held
        self.fetcher = Fetcher(settings, reports.client_failed)
        self._ranges = LogRanges(settings)
        self._reports = reports
        self._lock = lock
        self._standing = StandingPartitions()
        self._has_offsets = has_offsets
        self._may_ask, self._may_warn = True, True

    def close(self) -> None:
        """Wait for requests under way, and close the connections."""
        self._ranges.close()
        self.fetcher.close()

    @property
    def idle(self) -> bool:
        """True if no partition is fetched, or is about to be."""
        return not (self.fetcher.in_use or self._ranges.awaited)

    @property
    def settled(self) -> bool:
        """True if partitions are fetched, and none waits for an answer, or has had an error lately."""
        return not self.idle and not self._ranges.awaited and not self._standing.errors

    @property
    def errors(self) -> Mapping[TopicPartition, ZkgroupsException]:
        """The error of each partition that cannot be read now. The caller holds the lock."""
        return self._standing.errors

    def take_over(self, generation: Generation) -> None:
        """Stop fetching what is gone, and begin what is new. The caller holds the lock."""
        left = self._held.gone | (self.fetcher.assigned - self._held.of_generation)
        self.fetcher.unassign(left)
        self.fetcher.forget_pauses(left)
        self._standing.forget(left)
        self._held.settle(left)
        self._ranges.forget(self._ranges.awaited)
        known: dict[TopicPartition, int] = {}
        for at in self._held.of_generation - self.fetcher.assigned - self._standing.waiting:
            start = generation.partitions[at]
            if isinstance(start, int) and at not in self._held.resume_at:
                known[at] = start
            else:
                self._ranges.ask(at)
        self.begin(known)

    def begin(self, positions: Mapping[TopicPartition, int]) -> None:
        """Fetch these partitions from these offsets on. The caller holds the lock."""
        self._held.begin(positions)
        self.fetcher.assign(positions)

    def move(self) -> None:
        """Carry out seeks. The caller holds the lock."""
        fetched = self.fetcher.assigned
        for at, offset in self._held.take_seeks(fetched).items():
            if at in fetched:
                self.begin({at: offset})
            elif at in self._held.of_generation:
                self._ranges.ask(at)

    def ask_again(self) -> None:
        """Ask for the logs of partitions whose pause after an error is over. The caller holds the lock."""
        for at in self._standing.take_due(uptime()):
            self._ranges.ask(at)

    # Where to begin. The caller does not hold the lock.

    def begin_answered(self, generation: Generation) -> None:
        """Begin partitions without a committed offset, and partitions after an error, where their logs allow it.

        Forget the errors of partitions that have been fetched for a while.
        """
        for at in self._standing.take_recovered(uptime()):
            self._reports.recovered(at)
        for at, answer in self._ranges.take_answers().items():
            try:
                self._begin_in(answer, at, generation)
            except GenerationEndedError:
                return  # the next generation asks again
            except ZkgroupsException as error:
                self._stand_still(at, error)

    def _begin_in(self, answer: Future[OffsetRange], at: TopicPartition, generation: Generation) -> None:
        log_range = answer.result()
        resume = self._held.resume_at.get(at)
        if resume is not None and resume not in log_range:
            resume = None
        start = self._start_offset(at, generation, log_range) if resume is None else resume
        with self._lock:
            if generation.over:
                return
            if resume is None:
                self.begin({at: start})
            else:
                del self._held.resume_at[at]
                self.fetcher.assign({at: resume})  # its messages still count
            self._standing.begun(at, uptime())

    def _start_offset(self, at: TopicPartition, generation: Generation, log_range: OffsetRange) -> int:
        with self._lock:
            generation._mark_finished()
            self._held.deliverer.forget([at])  # it must not be marked again after a reset
            self._held.resume_at.pop(at, None)
        position = generation.start_offset(at, log_start=log_range.start, log_end=log_range.end)
        start = generation.partitions[at]
        if start is StartAt.LATEST:
            generation.mark(at, position)  # the next owner must not apply it again, and skip messages
        if isinstance(start, StartAt) and log_range.start < log_range.end:
            self._warn_of_start(at, generation, start, position)
        return position

    def _warn_of_start(self, at: TopicPartition, generation: Generation, start: StartAt, position: int) -> None:
        """Log once that `start_at` decides, although the group has offsets. Other clients may choose otherwise."""
        if self._may_warn and self._has_others(generation):
            self._may_warn = False
            text = (
                "%s has no committed offset, although group %r has others: reading begins at %d (start_at=%r; "
                "the default of Scala consumers and aiokafka is 'latest'); logged once"
            )
            log.warning(text, at, generation.group, position, str(start))

    def _has_others(self, generation: Generation) -> bool:
        """True if the group has committed offsets. All of them are read once at most."""
        if any(isinstance(start, int) for start in generation.partitions.values()):
            return True
        may_ask, self._may_ask = self._may_ask, False
        with suppress(ZkgroupsException):
            return may_ask and self._has_offsets()
        return False

    def stop(self, at: TopicPartition, error: KafkaError) -> None:
        """Fetch a partition no more for now. The caller holds the lock."""
        self._held.stop_at_error(at)
        self.fetcher.unassign([at])
        if error.code() == confluent().KafkaError._AUTO_OFFSET_RESET:
            self._ranges.ask(at)  # outside of the log: `out_of_range` decides
        else:
            self._stand_still(at, FetchFailedError(at, error.str()))

    def _stand_still(self, at: TopicPartition, error: ZkgroupsException) -> None:
        self._standing.failed(at, error, uptime())
        self._reports.partition_failed(at, error)
