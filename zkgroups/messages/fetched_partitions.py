"""The partitions that the client fetches, kept in step with those that the consumer holds.

All methods are for the reader. Those whose docstring says so need the lock of `Reading`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ..consumer.generation import Generation
from ..core.kafka_values import OffsetRange
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import StartAt
from ..deadline import uptime
from ..exceptions import FetchFailedError, GenerationEndedError, ZkgroupsException
from .client_settings import confluent
from .fetch_errors import ErrorReports
from .fetcher import Fetcher
from .held_partitions import HeldPartitions
from .log_ranges import LogRanges
from .standing_partitions import StandingPartitions

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


class FetchedPartitions:
    """Begins, moves and stops partitions. `lock` is that of `Reading`."""

    def __init__(
        self, held: HeldPartitions, fetcher: Fetcher, ranges: LogRanges, reports: ErrorReports, lock: threading.RLock
    ) -> None:
        self._held = held
        self._fetcher = fetcher
        self._ranges = ranges
        self._reports = reports
        self._lock = lock
        self._standing = StandingPartitions()

    @property
    def idle(self) -> bool:
        """True if no partition is fetched, or is about to be."""
        return not (self._fetcher.in_use or self._ranges.awaited)

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
        left = self._held.gone | (self._fetcher.assigned - self._held.of_generation)
        self._fetcher.unassign(left)
        self._fetcher.forget_pauses(left)
        self._standing.forget(left)
        self._held.settle(left)
        self._ranges.forget(self._ranges.awaited)
        known: dict[TopicPartition, int] = {}
        for at in self._held.of_generation - self._fetcher.assigned - self._standing.waiting:
            start = generation.partitions[at]
            if isinstance(start, int) and at not in self._held.resume_at:
                known[at] = start
            else:
                self._ranges.ask(at)
        self.begin(known)

    def stop_gone(self) -> None:
        """Stop fetching what is gone. `take_over` does the rest. The caller holds the lock."""
        self._fetcher.unassign(self._held.gone)

    def begin(self, positions: Mapping[TopicPartition, int]) -> None:
        """Fetch these partitions from these offsets on. The caller holds the lock."""
        self._held.begin(positions)
        self._fetcher.assign(positions)

    def begin_again(self) -> None:
        """Fetch all messages again that are not finished. The caller holds the lock."""
        self.begin(self._held.deliverer.positions(self._fetcher.assigned - self._held.gone))

    def move(self) -> None:
        """Carry out seeks. The caller holds the lock."""
        fetched = self._fetcher.assigned
        for at, offset in self._held.take_seeks(fetched).items():
            if at in fetched:
                self.begin({at: offset})
            elif at in self._held.of_generation:
                self._ranges.ask(at)

    def try_again(self) -> None:
        """Ask for the logs of partitions whose pause after an error is over. The caller holds the lock."""
        for at in self._standing.take_due(uptime()):
            self._ranges.ask(at)

    def note_recovered(self) -> None:
        """Forget the errors of partitions that have been fetched for a while. The caller does not hold the lock."""
        for at in self._standing.take_recovered(uptime()):
            self._reports.recovered(at)

    # Where to begin. The caller does not hold the lock.

    def begin_answered(self, generation: Generation) -> None:
        """Begin partitions without a committed offset, and partitions after an error, where their logs allow it."""
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
                self._fetcher.assign({at: resume})  # its messages still count
            self._standing.begun(at, uptime())

    def _start_offset(self, at: TopicPartition, generation: Generation, log_range: OffsetRange) -> int:
        with self._lock:
            generation._mark_finished()
            self._held.forget_position(at)  # it must not be marked again after a reset
        position = generation.start_offset(at, log_start=log_range.start, log_end=log_range.end)
        if generation.partitions[at] is StartAt.LATEST:
            generation.mark(at, position)  # the next owner must not apply it again, and skip messages
        return position

    # Errors

    def stop(self, at: TopicPartition, error: KafkaError) -> None:
        """Fetch a partition no more for now. The caller holds the lock."""
        self._held.stop_at_error(at)
        self._fetcher.unassign([at])
        if error.code() == confluent().KafkaError._AUTO_OFFSET_RESET:
            self._ranges.ask(at)  # outside of the log: `out_of_range` decides
        else:
            self._stand_still(at, FetchFailedError(at, error.str()))

    def _stand_still(self, at: TopicPartition, error: ZkgroupsException) -> None:
        self._standing.failed(at, error, uptime())
        self._reports.partition_failed(at, error)
