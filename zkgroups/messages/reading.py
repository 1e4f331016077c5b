"""Fetch the partitions of the current generation, and commit what is finished.

Three threads meet here: the *reader*, which calls `fetch`; the member's thread, which reports generations, revoked and
lost partitions; and threads that handle messages. `changed` guards the state that they share. No callback of the user
runs, and no request is sent, while it is held.

A generation ends whenever anything changes. Partitions that were neither revoked nor lost in between are kept: they
are fetched on, and their finished messages are committed through the next generation.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..consumer.events import MemberStats, Partitions
from ..consumer.generation import Generation
from ..consumer.options import OnPartitions, check_callback
from ..core.znodes.states import InstanceState
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, UnreadableNode
from ..deadline import Deadline, uptime
from ..exceptions import (
    GenerationEndedError,
    MemberClosedError,
    NotClaimedError,
    OffsetWouldGoBackError,
    ZkgroupsException,
)
from ..zookeeper.reading.group_reader import read_brokers
from ..zookeeper.session.session import context_of
from .deliverer import Deliverer, wind_down
from .fetched_partitions import FetchedPartitions, HeldPartitions
from .fetcher import FALLBACK, Pause, confluent, fetching_settings, old_release_settings
from .followed_member import ErrorReports, Fetched, FollowedMember, known, place, sorted_out
from .runs import HandlerStats

if TYPE_CHECKING:
    from confluent_kafka import Message


# What a consumer is doing, for health checks and metrics.


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition that a consumer holds.

    - `position`: the offset of the next message that the consumer hands out; None before it has begun.
    - `lag`: the messages after `position`, as of the last fetch; None if that is not known.
    - `at_end`: True if the log has no message after `position`, as of the last fetch. The control records of
      transactions are not messages.
    - `paused`: True after `Consumer.pause`.
    - `error`: why it cannot be read now. The consumer tries again, and reads its other partitions.
    """

    position: int | None
    lag: int | None
    at_end: bool
    paused: bool
    error: ZkgroupsException | None


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer at one moment. `Consumer.stats` returns it.

    - `state`: the state of its member, as other clients see it.
    - `messages`: messages handed out since the consumer was created.
    - `partitions`: the partitions that it holds.
    - `unreadable`: partitions that it has claimed, but leaves alone until somebody repairs their committed offsets.
    - `member`: the totals of its member.
    - `handlers`: the totals of `Consumer.run`; None before it was called.
    """

    state: InstanceState
    messages: int
    partitions: Mapping[TopicPartition, PartitionStats]
    member: MemberStats
    handlers: HandlerStats | None = None
    unreadable: Mapping[TopicPartition, UnreadableNode] = field(default_factory=dict)


log = logging.getLogger("zkgroups.consumer")

_MOMENT: Final = 0.001
"""In seconds: how often to ask at most whether the claims are certain. A fast loop asks for messages more often."""

SLICE: Final = 0.05
"""In seconds: how soon the reader notices what other threads have changed, while no messages come."""


class Reading:
    """One member, and the client that fetches its partitions.

    `automatic`: commit what the deliverer has finished, at every auto-commit and before partitions are released.
    Otherwise only explicit commits are written. `commits`: write offsets at all.
    """

    def __init__(
        self,
        *arguments: Any,
        settings: Mapping[str, Any],
        deliverer: Deliverer,
        automatic: bool,
        commits: bool,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        **options: Any,
    ) -> None:
        check_callback("on_revoked", on_revoked)
        check_callback("on_lost", on_lost)
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.client_settings = dict(settings)
        self.handler_stats: Callable[[], HandlerStats] | None = None
        self.is_revoking = False
        """True while the member's thread waits for messages under way. Notify `changed` when they have finished."""
        self._commits = commits
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._held = HeldPartitions(deliverer, automatic=automatic)
        self.member = FollowedMember(
            *arguments,
            begun=self._begun,
            settings=self.client_settings,
            commits=commits,
            news=self._news,
            on_revoked=self._revoked,
            on_lost=self._lost,
            **options,
        )
        self.release_timeout = self.member._options.release_timeout
        self._reports = ErrorReports(self.member)
        self._fetched: FetchedPartitions | None = None
        self._current: Generation | None = None  # the latest generation that has begun
        self._followed: Generation | None = None  # the client has its partitions
        self._error_of = confluent().Message.error
        self._torn = False  # True after an exception, such as Ctrl-C, in the middle of a step
        self._pid = os.getpid()
        self._alive_at = -math.inf  # when the claims were last found to be certain
        self._asked_at = (0, uptime())  # the count of the deliverer, and when the loop last asked or made progress
        self._is_up_to_date = False  # True while `follow` has nothing to do; other threads take it back

    def start(self) -> None:
        """Create the client, and join the group. A second call does nothing."""
        if self._fetched is None:
            self.member._check_open()
            self._adapt_to_release()
            settings = fetching_settings(self.client_settings, self.member.group.name)
            self._fetched = FetchedPartitions(settings, self._held, self._reports, self.lock, self._has_offsets)
        self.member.start()

    def _has_offsets(self) -> bool:
        return any(isinstance(found, CommittedOffset) for found in self.member.group.offsets)

    def _adapt_to_release(self) -> None:
        """Let all clients speak with brokers before 0.10. The member has the same settings."""
        with suppress(ZkgroupsException):
            brokers = read_brokers(context_of(self.member.group))
            if old := old_release_settings(self.client_settings, brokers):
                log.info("the brokers of group %r have release %s", self.member.group.name, old[FALLBACK])
                self.client_settings |= old

    def close(self, *, leave: bool = True) -> None:
        """Leave the group, then close the client. In a fork do nothing: it does not have the client's threads."""
        self.member.close(leave=leave)
        if self._fetched is not None and not self.forked:
            self._fetched.close()
            self._fetched = None

    def deliver_to(self, deliverer: Deliverer, *, automatic: bool) -> None:
        """Let another deliverer have the messages. Partitions begin again where the first one has finished."""
        with self.changed:
            if self._current is not None:
                self._current._mark_finished()  # so that it is committed, even if nothing is fetched any more
            self._held.deliver_to(deliverer, automatic=automatic)
            self._is_up_to_date = False

    def delivers_to(self, deliverer: Deliverer) -> bool:
        """True if this deliverer has the messages."""
        return self._held.deliverer is deliverer

    @property
    def alive(self) -> bool:
        """True while all claims are certain to be held, as of the last moment."""
        now = uptime()
        if now - self._alive_at > _MOMENT:
            if not self.member.alive:
                return False
            self._alive_at = now
        return True

    @property
    def forked(self) -> bool:
        """True in a fork. It has no member, and another thread may have held a lock."""
        return self._pid != os.getpid()

    def check_process(self) -> None:
        """Raise `MemberClosedError` in a fork."""
        if self.forked:
            raise MemberClosedError(self.member.group.name, self.member.id)

    @property
    def _open(self) -> FetchedPartitions:
        if self._fetched is None:
            raise MemberClosedError(self.member.group.name, self.member.id)
        return self._fetched

    # The member's thread

    def _begun(self, generation: Generation) -> None:
        """Commit through this generation from now on. Forget what was released before it: that is committed now."""
        with self.changed:
            self._held.replace(frozenset(generation.partitions))
            self._current = generation
            self._is_up_to_date = False
            generation._mark_from(self.finished, self.asked_at)
            if not self._commits:
                generation._write, generation._tell_committed = lambda *_: None, lambda _: None  # marks count as usual
            self.changed.notify_all()

    def finished(self) -> Mapping[TopicPartition, int]:
        """Return the offsets to commit without being asked. Also called by other threads that commit."""
        with self.changed:
            return self._held.finished()

    def asked_at(self) -> float:
        """Return when the loop last asked for messages or received one, or a handler returned."""
        with self.changed:
            if (count := self._held.deliverer.count) != self._asked_at[0]:
                self._asked_at = count, uptime()
            return self._asked_at[1]

    def asked(self) -> None:
        """Note that the loop asks for messages, so that `max_idle` begins again."""
        self._asked_at = self._asked_at[0], uptime()

    def _revoked(self, partitions: Partitions) -> Awaitable[None] | None:
        """Wait until the messages of these partitions that are under way have finished. They are still held."""
        with self.changed:
            self._held.revoke(partitions)
            self.is_revoking = True
            finished = wind_down(
                self._held.deliverer, partitions, self.changed, self.release_timeout, alive=lambda: self.alive
            )
            self.is_revoking = False
        if not finished and self.alive:
            text = "messages of %s did not finish within %g s; their next reader reads them again"
            log.warning(text, ", ".join(map(str, sorted(partitions))), self.release_timeout)
        return self._on_revoked(partitions) if self._on_revoked is not None else None

    def _lost(self, partitions: Partitions) -> Awaitable[None] | None:
        with self.changed:
            self._held.lose(partitions)
            self.changed.notify_all()
        return self._on_lost(partitions) if self._on_lost is not None else None

    def _news(self) -> None:
        with self.changed:
            self._is_up_to_date = False
            self.changed.notify_all()

    # The reader

    def fetch(self, most: int, timeout: float, take: Callable[[list[Message]], object]) -> bool:
        """Wait for messages, and call `take` with them while `changed` is held.

        Return False if none have come after the timeout. Raise `MemberClosedError` after the member has left, and the
        errors of the member, which goes on: call this again.
        """
        deadline = Deadline(timeout)
        while True:
            if self.step(most, min(SLICE, deadline.remaining), take):
                return True
            if deadline.passed:
                return False

    def step(self, most: int, timeout: float, take: Callable[[list[Message]], object]) -> bool:
        """Do what `fetch` does, but wait no longer than `SLICE`."""
        if self._fetched is None:
            self.start()
        self.follow(timeout)
        return self._fetch_once(most, timeout, take)

    def follow(self, patience: float = 0.0) -> None:
        """Take over the current generation. Wait for one if there is nothing to fetch."""
        if self._is_up_to_date and not self._torn and self._followed is not None and not self._followed.over:
            return  # called for each batch, so it must cost little if nothing has changed
        done = False
        self._is_up_to_date = True  # first: it may be taken back meanwhile
        try:
            done = self._catch_up(patience)
        finally:
            if not done:
                self._is_up_to_date = False

    def _catch_up(self, patience: float) -> bool:
        """Return True if nothing is left to do before the next change."""
        fetched = self._open
        news = self.member.next_generation(patience if fetched.idle else 0.0)  # raises the errors of the member
        if self._torn:
            self._mend()
        self._torn = True
        with self.changed:
            generation = self._current
            if generation is None or generation.over:
                fetched.fetcher.unassign(self._held.gone)  # perhaps no other generation follows
                self._torn = False
                return False
            if generation is not self._followed:
                fetched.take_over(generation)
                self._followed = generation
            if self._held.seeks:
                generation._mark_finished()
                fetched.move()
            fetched.ask_again()
        fetched.begin_answered(generation)
        self._torn = False
        self._reports.report()
        return news is None and fetched.settled

    def _mend(self) -> None:
        """The last step was not completed, because Ctrl-C or a signal handler raised an exception. Take over again.

        Messages that were fetched but not taken are fetched again.
        """
        with self.changed:
            self._followed = None
            fetched = self._open
            fetched.begin(self._held.deliverer.positions(fetched.fetcher.assigned - self._held.gone))

    def _fetch_once(self, most: int, timeout: float, take: Callable[[list[Message]], object]) -> bool:
        if not self.alive:
            with self.changed:
                self.changed.wait(timeout)
            return False  # messages that are fetched now could not be committed
        fetcher = self._open.fetcher
        if self._torn:
            self._mend()
        self._torn = True  # until the end of the step
        messages = fetcher.fetch(most, timeout)
        fetched = sorted_out(messages) if any(map(self._error_of, messages)) else None
        with self.lock:
            if fetched is not None:
                messages = fetched.messages
            if gone := self._held.gone | self._held.seeks.keys():  # a seek waits for the end of a rebalance
                messages = [message for message in messages if place(message) not in gone]
            if messages:
                self._held.go_on(map(known, messages))
                take(messages)
            if fetched is not None:
                self._note_errors(fetched)
        self._torn = False
        if self._reports.pending:
            self._reports.fetched(answered=bool(messages or (fetched is not None and fetched.ends)))
            self._reports.report()
        return bool(messages)

    def _note_errors(self, fetched: Fetched) -> None:
        """Note ends of logs, and stop partitions with errors. The caller holds the lock."""
        self._held.end(fetched.ends)
        for at in fetched.failed.keys() - self._held.gone:
            self._open.stop(at, fetched.failed[at])
            self._is_up_to_date = False
        for error in fetched.of_client:
            self._reports.client_failed(error)

    def positions_of_client(self) -> tuple[list[TopicPartition], list[Any]] | None:
        """Return the positions after all messages that were fetched. Only in `take`. None: look at the messages."""
        return self._open.fetcher.positions()

    # Any thread

    def commit(
        self, offsets: Callable[[], Mapping[TopicPartition, int]], *, strict: bool = False, waits: bool = True
    ) -> Mapping[TopicPartition, int]:
        """Commit these offsets, and return them.

        During a rebalance, wait for the next generation: kept partitions can be committed. A callback must not wait
        (`waits=False`): the next generation waits for it.

        `offsets` is called with `changed` held. If `strict`, raise an error for a partition that is not held any more,
        and for an offset below the committed one. Otherwise leave them out.
        """
        deadline = Deadline(self.member._options.rebalance_timeout)
        while True:
            with self.changed:
                generation, chosen = self._current, offsets()
                if not strict:
                    chosen = self._held.moved(self._held.past_controls(chosen))
            try:
                if generation is not None:
                    return _commit_through(generation, chosen, strict=strict)
            except GenerationEndedError:
                with self.changed:
                    keeps_any = not self._held.kept.isdisjoint(chosen)
                if self.member.closed or keeps_any:
                    if waits and self._await_other(generation, deadline):
                        continue
                    raise
            if strict:
                raise NotClaimedError(next(iter(chosen)), "is not held by this consumer: stop working on it")
            return {}

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
            self._held.seek(at, offset)
            self._is_up_to_date = False

    def pause(self, partitions: Iterable[TopicPartition], why: Pause) -> None:
        """Do not fetch these partitions until all reasons are taken back. A released partition forgets its reasons."""
        self._open.fetcher.pause(partitions, why)

    def resume(self, partitions: Iterable[TopicPartition], why: Pause) -> None:
        """Take a reason for a pause back."""
        self._open.fetcher.resume(partitions, why)

    def paused(self, why: Pause) -> Partitions:
        """Return the partitions that are paused for this reason."""
        return self._fetched.fetcher.paused(why) if self._fetched is not None else frozenset()

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the offset of the first unfinished message of each partition."""
        with self.changed:
            return self._held.positions()

    def has_received_all(self, at: TopicPartition, position: int) -> bool:
        """True if the log has no message from `position` on, as of the last fetch."""
        return self._held.has_received_all(at, position)

    def past_controls(self, at: TopicPartition, position: int | None) -> int | None:
        """Return the position, or the log end if only control records follow. The caller holds `changed`."""
        return position if position is None else self._held.past_controls({at: position})[at]

    @property
    def committable(self) -> Partitions:
        """The partitions of the last generation, even while they are being released."""
        return self._held.of_generation

    @property
    def held(self) -> Partitions:
        """The partitions of the last generation that have not been revoked or lost since."""
        if self.forked:
            return frozenset()
        with self.changed:
            return self._held.kept if self.alive else frozenset()

    @property
    def unreadable(self) -> Mapping[TopicPartition, UnreadableNode]:
        """The claimed partitions whose committed offsets cannot be read."""
        generation = self._current
        return {} if generation is None or generation.over else generation.unreadable

    def check_held(self, at: TopicPartition) -> None:
        """Raise `NotClaimedError` if a partition is not held now."""
        self.check_process()
        if at not in self.held:
            raise NotClaimedError(at, "is not held by this consumer now: use consumer.assignment")

    def sought(self, at: TopicPartition) -> int | None:
        """Return the offset of a seek that the reader has not carried out."""
        return self._held.seeks.get(at)

    def log_end(self, at: TopicPartition) -> int | None:
        """Return the log end as of the last fetch; None if it is not known."""
        return self._fetched.fetcher.log_end(at) if self._fetched is not None else None

    @property
    def errors(self) -> Mapping[TopicPartition, ZkgroupsException]:
        """The error of each partition that cannot be read now."""
        with self.changed:
            return self._fetched.errors if self._fetched is not None else {}


def _commit_through(
    generation: Generation, offsets: Mapping[TopicPartition, int], *, strict: bool
) -> Mapping[TopicPartition, int]:
    done = {}
    for at, offset in offsets.items():
        if strict or at in generation.partitions:
            done[at] = offset
            try:
                generation.mark(at, offset)
            except OffsetWouldGoBackError:  # after a seek: it is committed again when it has passed the committed one
                if strict:
                    raise
    generation.commit()
    return done
