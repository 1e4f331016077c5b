"""Fetch the partitions of the current generation, and commit what is finished.

Three threads meet here: the *reader*, which calls `fetch`; the member's thread, which reports generations, revoked and
lost partitions; and threads that handle messages. `changed` guards the state that they share. No callback of the user
runs, and no request is sent, while it is held.

A generation ends whenever anything changes. Partitions that were neither revoked nor lost in between are kept: they
are fetched on, and their finished messages are committed through the next generation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..consumer.generation import Generation
from ..consumer.options import OnPartitions
from ..core.kafka_values import OffsetRange
from ..core.znodes.topic_partition import TopicPartition, known_partition
from ..core.znodes.values import StartAt
from ..deadline import Deadline, uptime
from ..exceptions import (
    FetchFailedError,
    GenerationEndedError,
    MemberClosedError,
    NotClaimedError,
    OffsetWouldGoBackError,
    UnreachableError,
    ZkgroupsException,
)
from .client_settings import confluent, fetching_settings
from .fetcher import Fetcher, Pause
from .followed_member import FollowedMember
from .log_ranges import LogRanges
from .runs import HandlerStats
from .standing_partitions import StandingPartitions

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

log = logging.getLogger("zkgroups.consumer")

Partitions = frozenset[TopicPartition]

SLICE: Final = 0.05
"""In seconds: how soon the reader notices a new generation, or a call of `wake`, while no messages come."""

_REACH: Final = "reach the brokers"


class Deliverer(Protocol):
    """Knows which messages are finished. `changed` is held during each call."""

    def assign(self, at: TopicPartition, position: int) -> None:
        """Begin a partition, or begin it again elsewhere. Its earlier messages no longer count. By the reader."""

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin no more messages of these partitions. Those under way may still finish."""

    def is_busy(self, partitions: Partitions) -> bool:
        """True while messages of these partitions are under way. Notify `changed` when it becomes False."""

    def give_up(self, partitions: Partitions) -> None:
        """Wait no longer for messages under way. Cancel what can be cancelled."""

    def positions(self, partitions: Partitions) -> Mapping[TopicPartition, int]:
        """Return the offsets to commit: everything before them is finished."""

    def received(self, at: TopicPartition) -> int | None:
        """Return the offset after the last message that was taken, or the position. None for an unknown partition."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions. Their messages no longer count."""


class Reading:
    """One member, and the client that fetches its partitions.

    `automatic`: commit what the deliverer has finished, at every auto-commit and before partitions are released.
    Otherwise only explicit commits are written.
    """

    def __init__(
        self,
        *arguments: Any,
        settings: Mapping[str, Any],
        deliverer: Deliverer,
        automatic: bool,
        on_revoked: OnPartitions | None,
        on_lost: OnPartitions | None,
        **options: Any,
    ) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.automatic = automatic
        self.client_settings = dict(settings)
        self.handler_stats: Callable[[], HandlerStats] | None = None
        self._deliverer = deliverer
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self.member = FollowedMember(
            *arguments,
            begun=self._begun,
            settings=self.client_settings,
            news=self._news,
            on_revoked=self._revoked,
            on_lost=self._lost,
            **options,
        )
        self.release_timeout = self.member._options.release_timeout
        self._fetcher: Fetcher | None = None
        self._ranges: LogRanges | None = None
        self._standing = StandingPartitions()
        self._current: Generation | None = None  # the last that has begun
        self._held: Partitions = frozenset()  # its partitions
        self._followed: Generation | None = None  # the fetcher has its partitions
        self._gone: set[TopicPartition] = set()  # revoked or lost since then
        self._starts: dict[TopicPartition, int] = {}  # where the fetcher has begun
        self._seeks: dict[TopicPartition, int] = {}
        self._resume: dict[TopicPartition, int] = {}  # where to go on after an error
        self._failed: list[tuple[str, Exception, Partitions]] = []  # not reported yet
        self._unreachable = False
        self._error_of = confluent().Message.error
        self._torn = False  # True after an exception, such as Ctrl-C, in the middle of a step
        self._woken = False

    # Life

    def start(self) -> None:
        """Create the client, and join the group. A second call does nothing."""
        if self._fetcher is None:
            self.member._check_open()
            settings = fetching_settings(self.client_settings, self.member.group.name)
            self._fetcher = Fetcher(settings, self._client_failed)
            self._ranges = LogRanges(settings)
        self.member.start()

    def close(self, *, leave: bool = True) -> None:
        """Leave the group, then close the client."""
        self.member.close(leave=leave)
        if self._ranges is not None:
            self._ranges.close()
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None

    def deliver_to(self, deliverer: Deliverer) -> None:
        """Let another deliverer have the messages. Partitions begin again where the first one has finished."""
        with self.changed:
            if self._current is not None and self.automatic:
                self._current._mark_finished()  # so that it is committed, even if nothing is fetched any more
            for at, position in self._deliverer.positions(self._held).items():
                self._seeks.setdefault(at, position)
            self._deliverer.forget(self._held)
            self._deliverer = deliverer

    def delivers_to(self, deliverer: Deliverer) -> bool:
        """True if this deliverer has the messages."""
        return self._deliverer is deliverer

    @property
    def alive(self) -> bool:
        """True while all claims are certain to be held."""
        return self.member.alive

    @property
    def _client(self) -> Fetcher:
        if self._fetcher is None:
            raise MemberClosedError(self.member.group.name, self.member.id)
        return self._fetcher

    @property
    def _log_ranges(self) -> LogRanges:
        assert self._ranges is not None, "it is created with the client"
        return self._ranges

    # The member's thread

    def _begun(self, generation: Generation) -> None:
        """Commit through this generation from now on. Forget what was released before it: that is committed now."""
        with self.changed:
            held = frozenset(generation.partitions)
            self._gone |= self._held - held
            self._deliverer.forget(self._gone)
            self._held = held
            self._current = generation
            generation._mark_from(self.finished)
            self.changed.notify_all()

    def finished(self) -> Mapping[TopicPartition, int]:
        """Return the offsets to commit. Also called by other threads that commit."""
        with self.changed:
            return self._moved(self._deliverer.positions(self._held)) if self.automatic else {}

    def _moved(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Leave out partitions without a finished message. Their committed offset, if any, stays."""
        return {at: position for at, position in positions.items() if position != self._starts.get(at)}

    def _revoked(self, partitions: Partitions) -> Awaitable[None] | None:
        """Wait until the messages of these partitions that are under way have finished. They are still held."""
        with self.changed:
            self._gone |= partitions
            self._deliverer.revoke(partitions)
            finished = self.changed.wait_for(lambda: not self._deliverer.is_busy(partitions), self.release_timeout)
            if not finished:
                self._deliverer.give_up(partitions)
        if not finished:
            text = "messages of %s did not finish within %g s; their next reader reads them again"
            log.warning(text, ", ".join(map(str, sorted(partitions))), self.release_timeout)
        return self._on_revoked(partitions) if self._on_revoked is not None else None

    def _lost(self, partitions: Partitions) -> Awaitable[None] | None:
        with self.changed:
            self._gone |= partitions
            self._deliverer.forget(partitions)
            self.changed.notify_all()
        return self._on_lost(partitions) if self._on_lost is not None else None

    def _news(self) -> None:
        with self.changed:
            self.changed.notify_all()

    # The reader

    def fetch(self, most: int, timeout: float, take: Callable[[list[Message]], object]) -> bool:
        """Wait for messages, and call `take` with them while `changed` is held.

        Return False if none have come after the timeout, or after `wake`. Raise `MemberClosedError` after the member
        has left, and the errors of the member, which goes on: call this again.
        """
        self.start()
        deadline = Deadline(timeout)
        while True:
            self.follow(min(SLICE, deadline.remaining))
            if self._fetch_once(most, min(SLICE, deadline.remaining), take):
                return True
            if deadline.passed or self._woken:
                self._woken = False
                return False

    def wake(self) -> None:
        """Let the reader return from `fetch` soon."""
        self._woken = True

    def follow(self, patience: float = 0.0) -> None:
        """Take over the current generation. Wait for one if there is nothing to fetch."""
        idle = not (self._client.in_use or self._log_ranges.awaited)
        self.member.next_generation(patience if idle else 0.0)  # raises the errors of the member
        with self._whole_step():
            with self.changed:
                generation = self._current
                if generation is None or generation.over:
                    return
                if generation is not self._followed:
                    self._take_over(generation)
                if self._seeks:
                    self._carry_out_seeks()
                for at in self._standing.take_due(uptime()):
                    self._log_ranges.ask(at)
            self._begin_answered(generation)
            recovered = self._standing.take_recovered(uptime())
        for at in recovered:
            self.member.can(f"read {at}")
        self._report()

    @contextmanager
    def _whole_step(self) -> Iterator[None]:
        """If the last step was not completed, because Ctrl-C or a signal handler raised an exception, mend it first.

        Messages that were fetched but not taken are fetched again.
        """
        if self._torn:
            with self.changed:
                self._followed = None  # take over everything again
                self._begin(self._deliverer.positions(self._client.assigned - self._gone))
        self._torn = True
        yield
        self._torn = False

    def _take_over(self, generation: Generation) -> None:
        """Stop fetching what is gone, and begin what is new."""
        gone = set(self._gone)
        left = gone | (self._client.assigned - self._held)
        self._client.unassign(left)
        self._client.forget_pauses(left)
        self._standing.forget(left)
        for at in left:
            self._seeks.pop(at, None)
            self._resume.pop(at, None)
        self._log_ranges.forget(self._log_ranges.awaited)
        known: dict[TopicPartition, int] = {}
        for at in self._held - self._client.assigned - self._standing.waiting:
            start = generation.partitions[at]
            if isinstance(start, int) and at not in self._resume:
                known[at] = start
            else:
                self._log_ranges.ask(at)
        self._begin(known)
        self._gone -= gone
        self._followed = generation

    def _begin(self, positions: Mapping[TopicPartition, int]) -> None:
        for at, position in positions.items():
            self._deliverer.assign(at, position)
            self._starts[at] = position
        self._client.assign(positions)

    def _begin_answered(self, generation: Generation) -> None:
        """Begin partitions without a committed offset, and partitions after an error, where their logs allow it."""
        for at, answer in self._log_ranges.take_answers().items():
            try:
                log_range = answer.result()
                if (resume := self._resume.get(at)) is None or resume not in log_range:
                    self._begin_at(self._start_offset(at, generation, log_range), at, generation)
                    continue
            except GenerationEndedError:
                return  # the next generation asks again
            except ZkgroupsException as error:
                self._stand_still(at, error)
                continue
            with self.changed:
                if not generation.over:
                    self._client.assign({at: resume})
                    del self._resume[at]
                    self._standing.begun(at, uptime())

    def _start_offset(self, at: TopicPartition, generation: Generation, log_range: OffsetRange) -> int:
        with self.changed:
            generation._mark_finished()
            self._deliverer.forget([at])  # its position must not be marked again after a reset
            self._resume.pop(at, None)
        position = generation.start_offset(at, log_start=log_range.start, log_end=log_range.end)
        if generation.partitions[at] is StartAt.LATEST:
            generation.mark(at, position)  # the next owner must not apply it again, and skip messages
        return position

    def _begin_at(self, position: int, at: TopicPartition, generation: Generation) -> None:
        with self.changed:
            if not generation.over:
                self._begin({at: position})
                self._standing.begun(at, uptime())

    def _carry_out_seeks(self) -> None:
        seeks, self._seeks = self._seeks, {}
        assigned = self._client.assigned
        self._begin({at: offset for at, offset in seeks.items() if at in assigned})
        for at in seeks.keys() & (self._held - assigned):
            self._deliverer.assign(at, seeks[at])
            self._starts[at] = self._resume[at] = seeks[at]
            self._log_ranges.ask(at)

    def _fetch_once(self, most: int, timeout: float, take: Callable[[list[Message]], object]) -> bool:
        if not self.alive:
            with self.changed:
                self.changed.wait(timeout)
            return False  # messages that are fetched now could not be committed
        with self._whole_step():
            found = self._client.fetch(most, timeout)
            with self.changed:
                failed: dict[TopicPartition, KafkaError] = {}
                if any(map(self._error_of, found)):
                    found, failed = self._without_errors(found)
                if self._gone:
                    found = [message for message in found if place(message) not in self._gone]
                if found:
                    take(found)
                for at in failed.keys() - self._gone:
                    self._stop_partition(at, failed[at])
        if found and self._unreachable:
            self._unreachable = False
            self.member.can(_REACH)
        self._report()
        return bool(found)

    def ends(self) -> Mapping[TopicPartition, int] | None:
        """Return the offsets after all messages that were fetched. Only in `take`. None: look at the messages."""
        return self._client.positions()

    # Errors of partitions

    def _without_errors(self, found: list[Message]) -> tuple[list[Message], dict[TopicPartition, KafkaError]]:
        """Return the messages up to the first error of each partition, and these errors."""
        messages: list[Message] = []
        failed: dict[TopicPartition, KafkaError] = {}
        for message in found:
            error, at = message.error(), place(message)
            if error is None:
                if at not in failed:
                    messages.append(message)
            elif at is None:
                self._client_failed(error)
            elif error.code() != confluent().KafkaError._PARTITION_EOF:
                failed.setdefault(at, error)
        return messages, failed

    def _stop_partition(self, at: TopicPartition, error: KafkaError) -> None:
        """Fetch a partition no more for now. It goes on after the last message before the error."""
        if (received := self._deliverer.received(at)) is not None:
            self._resume[at] = received
        self._client.unassign([at])
        if error.code() == confluent().KafkaError._AUTO_OFFSET_RESET:
            self._log_ranges.ask(at)  # outside of the log: `out_of_range` decides
        else:
            self._stand_still(at, FetchFailedError(at, error.str()))

    def _stand_still(self, at: TopicPartition, error: ZkgroupsException) -> None:
        self._standing.failed(at, error, uptime())
        self._failed.append((f"read {at}", error, frozenset({at})))

    def _client_failed(self, error: KafkaError) -> None:
        """Note an error that concerns no partition. The client tries again by itself."""
        self._unreachable = True
        self._failed.append((_REACH, UnreachableError(error.str()), frozenset()))

    def _report(self) -> None:
        """Report new errors. Call it without `changed`: it runs callbacks."""
        failed, self._failed = self._failed, []
        for what, error, partitions in failed:
            self.member.cannot(what, error, partitions)

    # Any thread

    def commit(self, offsets: Callable[[], Mapping[TopicPartition, int]], *, strict: bool = False) -> None:
        """Commit these offsets. During a rebalance, wait for the next generation: kept partitions can be committed.

        `offsets` is called with `changed` held. If `strict`, raise an error for a partition that is not held any more,
        and for an offset below the committed one. Otherwise leave them out.
        """
        deadline = Deadline(self.member._options.rebalance_timeout)
        while True:
            with self.changed:
                generation, chosen = self._current, offsets()
                if not strict:
                    chosen = self._moved(chosen)
            try:
                if generation is not None:
                    _commit_through(generation, chosen, strict=strict)
                elif strict:
                    raise NotClaimedError(next(iter(chosen)), "is not held by this consumer: stop working on it")
                return
            except GenerationEndedError:
                if not self._await_other(generation, deadline):
                    raise

    def _await_other(self, generation: Generation | None, deadline: Deadline) -> bool:
        """Wait for the next generation. Return False if there is none in time."""
        if self.member.on_own_thread:
            return False  # it would wait for itself
        with self.changed:
            self.changed.wait_for(lambda: self._current is not generation or self.member.closed, deadline.remaining)
            return self._current is not generation

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Fetch a partition from another offset on. The reader does it before its next fetch."""
        with self.changed:
            self.check_held(at)
            self._deliverer.revoke([at])
            self._seeks[at] = offset

    def pause(self, partitions: Iterable[TopicPartition], why: Pause) -> None:
        """Do not fetch these partitions until all reasons are taken back. A released partition forgets its reasons."""
        self._client.pause(partitions, why)

    def resume(self, partitions: Iterable[TopicPartition], why: Pause) -> None:
        """Take a reason for a pause back."""
        self._client.resume(partitions, why)

    def paused(self, why: Pause) -> Partitions:
        """Return the partitions that are paused for this reason."""
        return self._fetcher.paused(why) if self._fetcher is not None else frozenset()

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the offset of the first unfinished message of each partition."""
        with self.changed:
            return self._deliverer.positions(self._held)

    @property
    def committable(self) -> Partitions:
        """The partitions of the last generation, even while they are being released."""
        return self._held

    @property
    def held(self) -> Partitions:
        """The partitions of the last generation that have not been revoked or lost since."""
        with self.changed:
            return self._held - self._gone if self.alive else frozenset()

    def check_held(self, at: TopicPartition) -> None:
        """Raise `NotClaimedError` if a partition is not held now."""
        if at not in self.held:
            raise NotClaimedError(at, "is not held by this consumer now: use consumer.assignment")

    def sought(self, at: TopicPartition) -> int | None:
        """Return the offset of a seek that the reader has not carried out."""
        return self._seeks.get(at)

    def log_end(self, at: TopicPartition) -> int | None:
        """Return the log end as of the last fetch; None if it is not known."""
        return self._fetcher.log_end(at) if self._fetcher is not None else None

    @property
    def errors(self) -> Mapping[TopicPartition, ZkgroupsException]:
        """The error of each partition that cannot be read now."""
        with self.changed:
            return self._standing.errors


def _commit_through(generation: Generation, offsets: Mapping[TopicPartition, int], *, strict: bool) -> None:
    for at, offset in offsets.items():
        if strict or at in generation.partitions:
            try:
                generation.mark(at, offset)
            except OffsetWouldGoBackError:  # after a seek: it is committed again when it has passed the committed one
                if strict:
                    raise
    generation.commit()


def place(message: Message) -> TopicPartition | None:
    """Return the partition of a message; None for an error that concerns no partition."""
    return known_partition(message.topic(), message.partition())
