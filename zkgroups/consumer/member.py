"""A member of a group: it joins, receives partitions, and hands them over in a rebalance."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self, Unpack

from ..core.rebalance.state_machine import CloseRequested, RebalanceState
from ..core.znodes.states import InstanceState
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import ONLY_ZOOKEEPER, Registration
from ..deadline import Deadline
from ..exceptions import InvalidOptionError, MemberClosedError
from ..zookeeper.group import Consumergroup
from ..zookeeper.ownership.routes import GroupRoutes
from ..zookeeper.session.session import context_of
from .events import MemberStats
from .followed_group import FollowedGroup
from .generation import Generation
from .membership import AnyMembership, MemberOffsets, Membership, with_short_timeout
from .options import MemberOptions, Options, Topics, subscription, takes
from .rebalance_loop import Handed, RebalanceLoop
from .waiting import StepFailure

log = logging.getLogger("zkgroups.member")

GRACE: Final = 2.0
"""How long `close` may take, in seconds, beyond the timeouts of the steps it waits for."""

_LONGEST_QUEUE: Final = 16
"""How many errors are kept for the caller. Later errors are dropped."""


class _Signal:
    """A signal in the queue of generations."""


_CANCEL, _CLOSED = _Signal(), _Signal()


class BaseMember:
    """The common part of `Member` and `LoneMember`: a thread, and a queue of generations."""

    def __init__(
        self,
        membership: AnyMembership,
        options: Options,
        stats: MemberStats,
        place: FollowedGroup | None = None,
    ) -> None:
        self._options = options
        self._stats = stats
        self.id = membership.id
        self._ready: SimpleQueue[Handed | _Signal] = SimpleQueue()
        self._offering = threading.Lock()
        self._loop = RebalanceLoop(
            membership, options, stats, hand_out=self._offer, await_callback=self._await_callback, place=place
        )
        self._thread: threading.Thread | None = None
        self._asked_to_stop = False
        self._closed = False
        self._left = threading.Event()
        self._pid = os.getpid()

    @property
    def _membership(self) -> AnyMembership:
        return self._loop.membership

    def _offer(self, found: Handed) -> None:
        """Put a generation or an error into the queue, and drop stale ones from it."""
        with self._offering:
            kept: list[Handed | _Signal] = []
            with suppress(Empty):
                while len(kept) < _LONGEST_QUEUE:
                    kept.append(self._ready.get_nowait())
            for waiting in kept:
                if not (isinstance(waiting, Generation | StepFailure) and waiting.over):
                    self._ready.put(waiting)
            if self._ready.qsize() < _LONGEST_QUEUE or isinstance(found, Generation):
                self._ready.put(found)
        self._queue_changed()

    def _queue_changed(self) -> None:
        """Called when the queue has something. `zkgroups.aio` overrides it."""

    def _await_callback(self, awaitable: Any) -> None:
        """Wait for the result of a callback that is a coroutine function. `zkgroups.aio` overrides it."""
        import asyncio  # slow to import, and rarely needed

        async def wait() -> None:
            await awaitable

        asyncio.run(wait())

    def _tell_changed(self, free: frozenset[TopicPartition] | None) -> None:
        self._loop.tell_changed(free)

    def start(self) -> Self:
        """Start the thread of this member, which joins the group. A second call does nothing."""
        self._check_open()
        if self._thread is None:
            name = f"zkgroups-member-{self._membership.group_name}"
            self._thread = threading.Thread(target=self._drive, name=name, daemon=True)
            self._thread.start()
        return self

    def _drive(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # including SystemExit, from the user's strategy
            log.exception("member %s ended unexpectedly", self._membership)
            self._loop.give_up()
            self._ready.put(error if isinstance(error, Exception) else RuntimeError(f"the member has ended: {error!r}"))
        finally:
            self._closed = True
            self._ready.put(_CLOSED)
            self._left.set()
            self._queue_changed()
        self._loop.clear_up()

    def stop(self, *, leave: bool = True) -> None:
        """Ask the member to leave, without waiting: `generations` ends soon. Safe in a signal handler."""
        self._asked_to_stop = True
        self._loop.tell(CloseRequested(leave))

    def close(self, *, leave: bool = True) -> None:
        """Stop the workers, commit what they have marked, release everything and leave the group.

        With `leave=False` the registration and the claims stay, for a process that resumes the session: see
        `Registry.close`. This waits at most for the `release_timeout` of the workers and the timeouts of the requests.
        """
        if self._pid != os.getpid():
            return  # a fork of the member's process does not own the session
        thread, generations = self._thread, (self._loop.generation, self._loop.stopping)
        if thread is None:
            self._closed = True
            self._ready.put(_CLOSED)
            self._membership.close()
            return
        for generation in filter(None, generations):
            generation._leave()  # a worker that calls `close` must not wait for itself
        self._loop.tell(CloseRequested(leave))
        if thread is not threading.current_thread() and not self._left.wait(self._longest_leave):
            log.error("member %s did not leave in time; still trying in the background", self._membership)

    @property
    def _longest_leave(self) -> float:
        return 2 * self._options.release_timeout + 3 * self._membership.timeout + GRACE

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generations(self) -> Iterator[Generation]:
        """Iterate over the generations as they begin, until the member is closed. Start it if it is not started.

        After `close`, there are no more generations: the loop ends at once.

        Errors of workers and of the member are raised here. The member goes on, unless it is closed: call this again to
        receive its next generation. The body of the loop must end when its generation ends, for example with
        `generation.wait()`. The member waits for the body as it does for a worker.
        """
        if self._asked_to_stop:
            return  # `stop` was called before the first iteration
        if self._pid != os.getpid():
            self._check_open()
        while True:
            try:
                generation = self.next_generation()
            except MemberClosedError:
                return
            if generation is None:
                return
            if generation._enter():  # otherwise it has ended since
                try:
                    yield generation
                finally:
                    generation._leave()

    def next_generation(self, timeout: float | None = None) -> Generation | None:
        """Wait for the next generation. Return None after the timeout, or after `cancel`.

        Errors are raised as in `generations`. Raise `MemberClosedError` if the member is closed.
        """
        if not self._closed:  # a closed member first returns what is still queued
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
                self._ready.put(_CLOSED)  # for other threads that wait
                raise MemberClosedError(self._membership.group_name, self.id)
            if isinstance(found, Exception):
                raise found
            if isinstance(found, StepFailure) and not found.over:
                found.over = True
                raise found.error
            if isinstance(found, Generation) and found.active and not found.paused:
                return found
            if isinstance(found, Generation) and not found.over:
                self._loop.hold_back(found)  # work begins only with a connection (rule 7)

    def cancel(self) -> None:
        """Make one waiting call of `next_generation` return None."""
        self._ready.put(_CANCEL)

    def _check_open(self) -> None:
        if self._closed or self._pid != os.getpid():
            raise MemberClosedError(self._membership.group_name, self.id)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the member holds now. A partition is not among them once its release is requested.

        Workers use `Generation.partitions` instead.
        """
        return self._loop.machine.held if self._membership.alive else frozenset()

    @property
    def state(self) -> InstanceState:
        """The state of this member, as other clients see it: Joining, AwaitingSync, Stable or Leaving."""
        machine = self._loop.machine
        if self._thread is None and not self._closed:
            return InstanceState.JOINING
        if machine.state in (RebalanceState.LEAVING, RebalanceState.CLOSED, RebalanceState.OUT):
            return InstanceState.LEAVING
        if machine.stable and self._membership.awaited is None:
            return InstanceState.STABLE
        return InstanceState.AWAITING_SYNC if machine.held else InstanceState.JOINING

    @property
    def stats(self) -> MemberStats:
        """A copy of the `MemberStats` since the member was created."""
        return replace(self._stats)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._membership}, {self.state}, {len(self.assignment)} partitions>"


class Member(BaseMember):
    """A member of a group. It shares the partitions of its topics with all members, including those of other clients.

        def work(generation):
            reader = open_reader(generation.partitions)  # yours: it reads from Kafka
            while generation.active:
                if (message := reader.poll(0.2)) is not None:
                    process(message)
                    generation.mark(TopicPartition(message.topic, message.partition), message.offset + 1)

        with Registry.connect("zk1:2181/kafka") as registry:
            with Member(registry.group("billing"), ["orders"], auto_commit_every=5.0) as member:
                signal.signal(signal.SIGTERM, lambda *_: member.stop())  # ends the loop
                for generation in member.generations():
                    generation.start(work)
                    generation.wait()

    A member starts with the `with` block, or with `start`. The end of the block stops the workers, commits what they
    have marked, and leaves the group. All durations are in seconds.

    `Generation.partitions` maps each `TopicPartition` to its committed offset, or to `start_at` without one.
    `work(generation)` runs on a thread. It reads messages, and calls `generation.mark(at, next_offset)` for each: the
    offset of the next message to read. It returns soon after `generation.active` becomes False.

    If a rebalance gives the member partitions, or takes some away, its generation ends, the marked offsets are
    committed, and the loop receives the next generation. If a worker raises an error, the loop raises it too. Call
    `generations` again to go on.

    - `topics`: the name of a topic, the names of several, or a mapping from names to numbers of streams.
    - `streams`: the number of streams of each topic. A stream counts as one reader: a member with two streams gets two
      shares of the partitions. `Generation.streams` says which stream reads each partition.
    - `pattern`: a regular expression that chooses topics, instead of `topics`. It leaves out Kafka's own topics unless
      `include_internal` is true. `zkgroups.core.topic_filter` lists the syntax; other expressions are
      refused.
    - `id`: the id to register, by default `host:uuid4`; also an attribute. With a `session_file` (see
      `Registry.connect`), use the same id after each restart. A process that restarts within the session timeout then
      keeps its partitions.
    - `assignors`: the strategies this member supports, by name or as functions, the preferred one first. The group uses
      a strategy that all members support. The member with the lowest id decides.
    - `foreign_assignor`: the `partition.assignment.strategy` of Scala members in the group. It is not visible in
      ZooKeeper, so all zkgroups members must be given the same value.
    - `partitions`: a function that returns the partitions of a topic, instead of reading them from ZooKeeper.
    - `start_at`: where to start a partition without a committed offset: "earliest" or "latest".
    - `out_of_range`: where to start if the committed offset is outside of the log, because the topic was recreated or
      messages were deleted unread: "earliest", "latest" or "error". zkgroups does not ask the brokers. So call
      `generation.start_offset(at, log_start=..., log_end=...)`, and read from the offset it returns. Your Kafka client,
      or `zkgroups.kafka.Brokers.ranges`, has the range of the log. When `start_offset` applies this policy, it logs a
      warning, and the next commit may go back to the chosen offset.
    - `release_timeout`: how long workers may take to end. Scala members try for about six seconds to claim their
      partitions, and then give up.
    - `rebalance_timeout`: how long other members may take to release partitions before this member logs a warning. It
      must be longer than `release_timeout`. With `sticky`, and with functions, one member plans for all. If it has not
      written a plan within a third of `rebalance_timeout` (or `release_timeout`, if longer), another member does.
    - `join_backoff`: the longest pause before a failed step is retried.
    - `reconcile_every`: how often to read the group even if no watch has reported a change.
    - `auto_commit_every`: how often to commit the marked offsets; by default only when a generation ends, and when you
      call `generation.commit`.
    - `max_idle`: release everything if no offset is marked or committed for this long, and join again when the workers
      have ended. Where there is nothing to read, mark the last offset again to show that the worker is alive.
    - `leaves_on_move`: let `zkgroups migrate switch` move the group to the brokers while this member is registered. The
      member cannot follow. It commits, releases and leaves, reports `EventKind.MOVED`, and `generations` raises
      `GroupMovedError`. Call `generations` again to wait until the group is back. Without this option, the group is not
      moved before the member is stopped.
    - `on_assigned`, `on_revoked`, `on_lost`: called with the frozenset of the partitions that the member has received,
      must release (it still holds them), or no longer holds.
    - `on_event`: called with each `MemberEvent`. All callbacks may be coroutine functions. They run on the
      member's thread; a commit is reported on the thread that commits. A slow callback delays only this member.

    While no server answers, the member logs a warning, waits, and joins when a server answers. `Registry.connect` does
    not wait for ever: it raises `NotConnectedError` after its `timeout`. The member waits for each answer for at most
    0.3 of the session timeout. A group that is marked by a migration to Kafka-native offsets cannot be joined:
    `generations` raises `GroupMigratedError`, or `GroupMovedError` if it was moved by `zkgroups migrate switch`.
    """

    @takes(MemberOptions)
    def __init__(self, group: Consumergroup, topics: Topics = (), **options: Unpack[MemberOptions]) -> None:
        if not isinstance(group, Consumergroup):
            raise InvalidOptionError("group", group, "it must be a Consumergroup: registry.group(name)")
        context_of(group).session.require_writable()
        chosen = Options(**options)
        self.group = group
        self._leaves = bool(chosen.leaves_on_move) and not self._moves
        now = datetime.now(UTC).replace(microsecond=0)
        registration = replace(
            subscription(topics, chosen, assignors=chosen.strategies(), timestamp=now),
            moves=self._moves,
            leaves=self._leaves,
            offsets=self._sides,
        )
        stats = MemberStats()
        membership = Membership(
            group, registration, chosen, tell=self._tell_changed, stats=stats, offsets=self._offsets_of
        )
        place = None
        if self._leaves or self._moves:
            routes = GroupRoutes(with_short_timeout(context_of(group)), f"member {membership.id}", log)
            on_brokers = self._on_brokers(membership, routes, registration, chosen)
            place = FollowedGroup(
                group.name, routes, in_zookeeper=membership, on_brokers=on_brokers, wake=lambda: self._loop.wake()
            )
        super().__init__(membership, chosen, stats, place)

    _moves = False
    """True for a member that follows its group to the brokers. `zkgroups.Consumer` overrides it."""

    _sides = ONLY_ZOOKEEPER
    """Where its offsets are committed. `zkgroups.Consumer` overrides it."""

    def _offsets_of(self, group: Consumergroup) -> MemberOffsets:
        """Return the access to the committed offsets. `zkgroups.Consumer` overrides it."""
        return MemberOffsets(group)

    def _on_brokers(
        self, _membership: Membership, _routes: GroupRoutes, _registration: Registration, _options: Options
    ) -> Callable[[], AnyMembership] | None:
        """Return a function that makes the membership on the brokers. `zkgroups.Consumer` overrides it."""
        return None
