"""A member of a group, as an old high-level consumer imports it: it joins, is given partitions, and hands them over."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

from ..core.rebalance.members import Assignor
from ..core.rebalance.state_machine import Close, State
from ..core.znodes.names import check_instance
from ..core.znodes.states import InstanceState
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import StartAt
from ..deadline import Deadline
from ..exceptions import InvalidOptionError, MemberClosedError
from ..zookeeper.group import Consumergroup
from .driver import Driver, Handed, Trouble
from .events import MemberStats
from .generation import Generation
from .generation_lifecycle import AnySeat
from .membership import Seat
from .options import OnEvent, OnPartitions, Options, Topics, subscription

log = logging.getLogger("zkgroups.member")

GRACE: Final = 2.0
"""In seconds: what closing may take beyond the time limits of what is to be done for it."""


_KEPT: Final = 16
"""Errors that wait for somebody to hear of them; of more, the first ones tell enough."""


class _Sign:
    """What may stand where a generation is waited for."""


_CANCEL, _CLOSED = _Sign(), _Sign()


def _is_stale(found: Handed | _Sign) -> bool:
    """Whether nobody is to hear of it any more."""
    return isinstance(found, Generation | Trouble) and found.over


class BaseMember:
    """What members have in common, whether they share with others or not: a thread of their own, and generations."""

    def __init__(
        self, seat: AnySeat, options: Options, stats: MemberStats, *, notify: Callable[[], object] | None = None
    ) -> None:
        self._seat = seat
        self._options = options
        self._stats = stats
        self.id = seat.id
        self._ready: SimpleQueue[Handed | _Sign] = SimpleQueue()
        self._notify = notify  # for `zkgroups.aio`: something stands ready
        self._driver = Driver(seat, options, stats, self._offer)
        self._thread: threading.Thread | None = None
        self._asked_to_stop = False
        self._closed = False
        self._left = threading.Event()
        self._pid = os.getpid()

    def _offer(self, found: Handed) -> None:
        """For whoever asks for the next generation; what nobody has asked for in time is taken away."""
        kept: list[Handed | _Sign] = []
        with suppress(Empty):
            while len(kept) < _KEPT:
                kept.append(self._ready.get_nowait())
        for waiting in kept:
            if not _is_stale(waiting):
                self._ready.put(waiting)
        if self._ready.qsize() < _KEPT or isinstance(found, Generation):
            self._ready.put(found)
        if self._notify is not None:
            self._notify()

    def _tell_changed(self, free: frozenset[TopicPartition] | None) -> None:
        self._driver.tell_changed(free)

    # Life

    def start(self) -> Self:
        """Join the group, on a thread of this member; nothing happens if it has been started already."""
        self._check_open()
        if self._thread is None:
            name = f"zkgroups-member-{self._seat.group_name}"
            self._thread = threading.Thread(target=self._drive, name=name, daemon=True)
            self._thread.start()
        return self

    def _drive(self) -> None:
        try:
            self._driver.run()
        except BaseException as error:  # also SystemExit, in a strategy of the user's
            log.exception("member %s ended unexpectedly", self._seat)
            self._driver.give_up()
            self._ready.put(error if isinstance(error, Exception) else RuntimeError(f"the member has ended: {error!r}"))
        finally:
            self._closed = True
            self._ready.put(_CLOSED)
            self._left.set()
            if self._notify is not None:
                self._notify()
        self._driver.clear_up()

    def stop(self, *, leave: bool = True) -> None:
        """Ask it to leave, without waiting: `generations` ends soon. This is safe in a signal's handler."""
        self._asked_to_stop = True
        self._driver.tell(Close(leave))

    def close(self, *, leave: bool = True) -> None:
        """Stop the workers, commit what they have marked, release everything and leave the group.

        With `leave=False` the registration and the claims stay, for a process that takes the session over: see
        `Registry.close`. It takes no longer than its workers are given to come to an end, and a server to answer.
        """
        if self._pid != os.getpid():
            return  # a fork of the process that takes part: it shares nothing but memory with it
        thread, generations = self._thread, (self._driver.generation, self._driver.stopping)
        if thread is None:
            self._closed = True
            self._ready.put(_CLOSED)
            self._seat.close()
            return
        for generation in filter(None, generations):
            generation.leave()  # whoever works on it and calls this would wait for itself
        self._driver.tell(Close(leave))
        if thread is not threading.current_thread() and not self._left.wait(self._longest_leave):
            log.error("member %s did not leave in time; still trying in the background", self._seat)

    @property
    def _longest_leave(self) -> float:
        return 2 * self._options.release_timeout + 3 * self._seat.timeout + GRACE

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Generations

    def generations(self) -> Iterator[Generation]:
        """Each generation as it begins, until the member is closed; errors are raised here.

        The next one is waited for once the body of the loop has come to its end: so the body is to end with its
        generation, and the member waits for it as for a worker.
        """
        if self._asked_to_stop:
            return  # between `start` and here: that is no mistake of who iterates
        self.start()
        while True:
            try:
                generation = self.next_generation()
            except MemberClosedError:
                return
            if generation is None:
                return
            generation.enter()
            try:
                yield generation
            finally:
                generation.leave()

    def next_generation(self, timeout: float | None = None) -> Generation | None:
        """The next generation; None when the time is over, or when it was cancelled."""
        if not self._closed:  # what was handed out before it closed comes first
            self.start()
        deadline = None if timeout is None else Deadline.after("timeout", timeout)
        while True:
            try:
                found = self._ready.get(timeout=None if deadline is None else deadline.remaining)
            except Empty:
                return None
            if found is _CANCEL:
                return None
            if found is _CLOSED:
                self._ready.put(_CLOSED)  # for whoever else asks
                raise MemberClosedError(self._seat.group_name, self.id)
            if isinstance(found, Exception):
                raise found
            if isinstance(found, Trouble) and not found.over:
                found.over = True
                raise found.error
            if isinstance(found, Generation) and found.active and not found.paused:
                return found
            if isinstance(found, Generation) and not found.over:
                self._driver.hold_back(found)  # no work is handed out while there is no connection (rule 7)

    def cancel(self) -> None:
        """Let whoever waits for the next generation go, with None."""
        self._ready.put(_CANCEL)

    def _check_open(self) -> None:
        if self._closed or self._pid != os.getpid():
            raise MemberClosedError(self._seat.group_name, self.id)

    # From inside

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What it holds at this moment."""
        return self._driver.machine.held if self._seat.alive else frozenset()

    @property
    def state(self) -> InstanceState:
        """Its own state, in the words in which others see it."""
        machine = self._driver.machine
        if self._thread is None and not self._closed:
            return InstanceState.JOINING
        if machine.state in (State.LEAVING, State.CLOSED, State.OUT):
            return InstanceState.LEAVING
        if machine.settled and self._seat.awaited is None:
            return InstanceState.STABLE
        return InstanceState.AWAITING_SYNC if machine.held else InstanceState.JOINING

    @property
    def stats(self) -> MemberStats:
        """Totals since it was made, as they are now."""
        return replace(self._stats)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._seat}, {self.state}, {len(self.assignment)} partitions>"


class Member(BaseMember):
    """One member of a group: it shares the partitions of its topics with all others, whoever wrote them.

    >>> with Member(group, ["orders"]) as member:  # doctest: +SKIP
    ...     for generation in member.generations():
    ...         generation.start(work)
    ...         generation.wait()

    - `topics`: names, with a number of streams each if given; or `pattern`, an expression that chooses them, in which
      case Kafka's own topics are left out unless `include_internal` says otherwise. Expressions that only Java can
      evaluate are refused: `zkgroups.core.znodes.java_regex` lists the syntax.
    - `id`: under which it registers; `host:uuid4` unless given. With a `session_file` (`Registry.connect`) it must be
      the same each time: then a process that comes back within the session time-out finds what it had, and the others
      see nothing of it.
    - `assignors`: how it can share, by name or as functions, what it likes best first: the group uses what all know, as
      the member with the lowest id likes it. `foreign_assignor` is what Scala's members in the group have as
      `partition.assignment.strategy`: nobody can see it, so all of ours must say the same.
    - `partitions`: which partitions a topic has, if ZooKeeper is not to be asked.
    - `start_at`: where to begin where nothing is committed.
    - `out_of_range`: where to start if the committed offset is outside of the log, because the topic was recreated or
      messages were deleted unread: at the "earliest" or "latest" offset of the log, or "error". zkgroups does not ask
      the brokers. So pass the range of the log to `Generation.start_offset`, and read from the offset it returns. It
      logs a warning when it applies this policy, and lets the offset go back as far as the policy chose.
    - `release_timeout`: how long workers may take to come to an end (Scala's members try for six seconds to get what is
      theirs, and then go without); `rebalance_timeout`: how long others may take to release partitions before the
      member logs a warning. The second must be longer. With `sticky`, and with functions, one member plans for all. If
      it has not written a plan within a third of `rebalance_timeout`, or within `release_timeout` if that is longer,
      another member does.
    - `join_backoff`: the longest pause before a failed step is retried.
    - `reconcile_every`: how often to look at the group although nothing was heard.
    - `auto_commit_every`: how often what is marked is committed; it always is before a hand-over.
    - `max_idle`: after as long without a mark or a commit everything is given up, until the workers have come to an
      end; then it joins again. Where there is nothing to read, marking the last offset again tells that a worker lives.
    - `on_assigned`, `on_revoked`, `on_lost`: called with the partitions that have come, that are still ours and must
      go, and that are not ours any more. `on_event`: called with everything that happens (`MemberEvent`). All of them
      may be coroutine functions, run on the member's own thread (a commit is told of on the thread that commits), and
      hold up this member only.

    A member starts with the `with` block, or with `start`. While no server answers, it logs a warning and waits, and
    joins when one answers. `Registry.connect` does give up: it raises `NotConnectedError` after its `timeout`. With a
    long `timeout`, a program can start before ZooKeeper does; the member itself waits for each answer for at most 0.3
    of the session timeout. All durations are in seconds. A group that is marked by a migration to Kafka's own offsets
    cannot be joined: `generations` raises `GroupMigratedError`.
    """

    def __init__(
        self,
        group: Consumergroup,
        topics: Topics = (),
        *,
        pattern: str | None = None,
        streams: int = 1,
        include_internal: bool = False,
        id: str | None = None,
        assignors: Sequence[str | Assignor] = ("range", "roundrobin", "sticky"),
        foreign_assignor: str = "range",
        partitions: Callable[[str], Iterable[int]] | None = None,
        start_at: StartAt | str = StartAt.EARLIEST,
        out_of_range: StartAt | str = "error",
        release_timeout: float = 4.0,
        rebalance_timeout: float = 30.0,
        join_backoff: float = 5.0,
        reconcile_every: float = 5.0,
        auto_commit_every: float | None = None,
        max_idle: float | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        on_event: OnEvent | None = None,
        _run: Callable[[Any], object] | None = None,
        _notify: Callable[[], object] | None = None,
    ) -> None:
        if not isinstance(group, Consumergroup):
            raise InvalidOptionError("group", group, "it must be a Consumergroup: registry.group(name)")
        chosen = Options(
            assignors=assignors,
            foreign_assignor=foreign_assignor,
            partitions=partitions,
            start_at=start_at,
            out_of_range=out_of_range,
            release_timeout=release_timeout,
            rebalance_timeout=rebalance_timeout,
            join_backoff=join_backoff,
            reconcile_every=reconcile_every,
            auto_commit_every=auto_commit_every,
            max_idle=max_idle,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_lost=on_lost,
            on_event=on_event,
            run=_run,
        )
        known = chosen.by_name()
        self.group = group
        stats = MemberStats()
        seat = Seat(
            group,
            None if id is None else check_instance(id),
            subscription(
                topics,
                pattern,
                streams,
                include_internal=include_internal,
                assignors=known,
                timestamp=datetime.now(UTC).replace(microsecond=0),
            ),
            assignors=known,
            foreign=foreign_assignor,
            partitions=partitions,
            tell=self._tell_changed,
            stats=stats,
        )
        super().__init__(seat, chosen, stats, notify=_notify)
