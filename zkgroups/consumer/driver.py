"""The thread of one member: it carries out what the rebalance (`core/rebalance.py`) says, one step after the other.

Everything that happens elsewhere, on kazoo's threads, on workers, in the user's own, only leaves a note here: an event,
or the flag that something has changed. So nobody waits for this thread but who closes the member, no lock is held while
a callback runs, and no call is made on a watch's thread (rule 8).
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from ..core.model import CommittedOffset, MalformedNode, StartAt, TopicPartition
from ..core.rebalance import (
    Action,
    AwaitFree,
    Begin,
    Changed,
    Claim,
    Claimed,
    Close,
    Deregister,
    Drop,
    Ended,
    Event,
    Failed,
    Freed,
    Linger,
    Lingered,
    Look,
    Lost,
    Open,
    Planned,
    Rebalance,
    Register,
    Registered,
    Release,
    Released,
    State,
    Step,
    Stop,
    Stopped,
    Withdraw,
)
from ..exceptions import (
    GenerationEndedError,
    NotClaimedError,
    NotRegisteredError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    OutcomeUnknownError,
    ZkgroupsException,
)
from ..zookeeper.deadline import Deadline, uptime
from .events import EventKind, MemberEvent, MemberStats
from .generation import Generation, Offsets
from .lone_seat import LoneSeat
from .options import Options
from .seat import Outlook, Seat

log = logging.getLogger(__name__)

Partitions = frozenset[TopicPartition]
AnySeat: TypeAlias = Seat | LoneSeat

TICK: Final = 1.0
"""In seconds: how often to look at the clocks, whatever happens."""

LINGER: Final = 0.5
"""In seconds: how long to wait for others to let go before working on what there is."""

FIRST_BACKOFF: Final = 0.05
"""In seconds; it doubles with each failure in a row, up to `join_backoff`."""

IN_A_ROW: Final = 3
"""As many looks may follow each other at once. The next one waits, so that many members that come and go at once are
seen together."""

BREATHER: Final = 4
"""As many times as long as a look took there is for each, from the first of them on; at most LONGEST_BREATHER."""

LONGEST_BREATHER: Final = 0.5

BRIEF: Final = 1.0
"""In seconds: after a generation that a worker has ended as soon, the next one waits; the longer, the more often
workers have failed in a row."""

GATHER: Final = 0.005
"""In seconds: partitions that are let go together are heard of one by one, and are claimed together."""

_MENDED_BY_LOOKING: Final = (NotClaimedError, NotRegisteredError, OutcomeUnknownError)
"""What is no reason to trouble the caller: the next look finds out what is so."""


def _is_retriable(error: Exception) -> bool:
    return isinstance(error, _MENDED_BY_LOOKING) or getattr(error, "retriable", False) is True


@dataclass(slots=True)
class Trouble:
    """A step that does not work, for the caller to hear of: once, and not after it has worked again."""

    step: type[Step]
    error: Exception
    over: bool = False


Handed: TypeAlias = Generation | Exception | Trouble


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker of that generation has come to its end."""

    generation: Generation
    failed: bool


class Driver:
    """Drives one member, from `Open` to the end. `hand_out` takes generations, and errors for the caller."""

    def __init__(
        self, seat: AnySeat, options: Options, stats: MemberStats, hand_out: Callable[[Handed], object]
    ) -> None:
        self._seat = seat
        self._options = options
        self._stats = stats
        self._hand_out = hand_out
        self.machine = Rebalance()
        self.generation: Generation | None = None
        self.stopping: Generation | None = None
        """The one whose workers are waited for."""
        self._begun_at = 0.0
        self._failed_briefly = 0  # generations in a row
        self._left_behind = False  # what could not be given up when it left
        self._inbox: SimpleQueue[Event | WorkerEnded | None] = SimpleQueue()
        self._heard_free: deque[TopicPartition] = deque()  # on kazoo's threads
        self._freed: Partitions = frozenset()
        self._freed_at = 0.0  # when the first of them was heard of
        self._to_receive: deque[Event] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = False
        self._changed_at: float | None = None  # when the change was heard of that is not worked in yet
        self._next_look = 0.0
        self._looked: deque[float] = deque(maxlen=IN_A_ROW)
        self._registered = False
        self._failures = 0
        self._failed: Failed | None = None  # what is to be received after a pause
        self._assigned: Partitions = frozenset()  # what the user was told to have
        self._told: dict[EventKind, str] = {}
        self._waiting_since: dict[TopicPartition, float] = {}
        self._stuck: Partitions = frozenset()  # what it was told of to have waited for too long
        self._planless_since: float | None = None
        self._planless_told = False
        self._withdrawn: Generation | None = None
        self._held_back: Generation | None = None
        self._trouble: Trouble | None = None

    # From other threads

    def tell(self, event: Event) -> None:
        """Something has happened."""
        self._inbox.put(event)

    def tell_changed(self, at: TopicPartition | None) -> None:
        """Something in the group has changed: a partition was let go, or anything else. Called on kazoo's threads."""
        if at is None:
            self._changed = True
        else:
            self._heard_free.append(at)
        self._inbox.put(None)

    def hold_back(self, generation: Generation) -> None:
        """Hand it out again when there is a connection."""
        self._held_back = generation
        self._inbox.put(None)

    def tell_ended(self, generation: Generation, error: BaseException | None) -> None:
        """A worker has come to its end."""
        if isinstance(error, NotClaimedError | GenerationEndedError) or getattr(error, "retriable", False):
            log.warning("a worker of %s failed, and another generation begins: %s", self._name, error)
            self._changed = True  # somebody may have taken a partition away
        elif isinstance(error, Exception):
            self._hand_out(error)
        if generation is self.generation:
            self._inbox.put(WorkerEnded(generation, error is not None))

    # The thread

    def run(self) -> None:
        """Take part until the member is closed."""
        self._every(self._options.reconcile_every, self._reconcile)
        if self._options.auto_commit_every is not None:
            self._every(self._options.auto_commit_every, self._auto_commit)
        self._receive(Open())
        while self.machine.state is not State.CLOSED:
            self._listen()
            self._look_at_clocks()
            self._pass_on_changes()
        if not self._left_behind:
            self._seat.close()
        self._event(EventKind.LEFT)

    def clear_up(self) -> None:
        """Give up what could not be given up when it left, when there is a connection: others would wait for it as
        long as the session lasts. Until then nobody else is to have the id in this session."""
        if self._left_behind:
            with suppress(ZkgroupsException):  # the connection is closed, and the session with it
                while self._left_behind:
                    self._seat.wait_connected()
                    self._left_behind = not self._deregistered()
            self._seat.close()

    def _deregistered(self) -> bool:
        try:
            self._seat.deregister()
        except ZkgroupsException as error:
            log.warning("%s could not leave: %s", self._name, error)
            if not _is_retriable(error):
                raise
            time.sleep(FIRST_BACKOFF)
            return False
        return True

    def give_up(self) -> None:
        """Something here is broken: others are to have what this member holds."""
        if self.generation is not None:
            self.generation.close(Deadline(self._options.release_timeout))
        with suppress(ZkgroupsException):
            self._seat.deregister()
        self._seat.close()

    @property
    def _name(self) -> str:
        return str(self._seat)

    def _listen(self) -> None:
        """Wait for the next event, or until there is something to do anyway."""
        with suppress(Empty):
            event = self._inbox.get(timeout=self._pause())
            while True:
                if isinstance(event, WorkerEnded):
                    self._worker_ended(event)
                elif event is not None:
                    self._hurry(event)
                    self._receive(event)
                event = self._inbox.get_nowait()

    def _worker_ended(self, ended: WorkerEnded) -> None:
        """Another generation is to begin: at once, unless workers end as soon as they have begun."""
        brief = uptime() - self._begun_at < BRIEF
        self._failed_briefly = self._failed_briefly + 1 if brief and ended.failed else 0
        pause = self._backoff(max(self._failed_briefly, 1)) if brief else 0.0
        self._later(pause, lambda: self._end(ended.generation))

    def _end(self, generation: Generation) -> None:
        if generation is self.generation:
            self._receive(Ended())

    def _backoff(self, failures: int) -> float:
        return min(FIRST_BACKOFF * 2.0 ** min(failures - 1, 16), self._options.join_backoff)

    def _pause(self) -> float:
        due = self._timers[0][0] if self._timers else uptime() + TICK
        if self._changed:
            due = min(due, self._next_look)
        if self._freed:
            due = min(due, self._freed_at + GATHER)
        return min(max(due - uptime(), 0.0), TICK)

    def _hurry(self, event: Event) -> None:
        """Who is to leave does not wait for another try."""
        if isinstance(event, Close | Withdraw) and self._failed is not None:
            self.tell(self._failed)

    def _pass_on_changes(self) -> None:
        self._gather()
        if self._freed and (self._freed >= self.machine.waiting or uptime() >= self._freed_at + GATHER):
            freed, self._freed = self._freed, frozenset()
            self._receive(Freed(freed))
        if self._changed and uptime() >= self._next_look:
            self._changed = False
            self._receive(Changed())

    def _gather(self) -> None:
        """Take note of what was let go."""
        heard = frozenset(self._heard_free.popleft() for _ in range(len(self._heard_free)))
        if heard and not self._freed:
            self._freed_at = uptime()
        self._freed |= heard

    def _notice_loss(self) -> None:
        """By our own clock, or because there is another session: what was held is held no more."""
        if self._registered and not self._seat.alive:
            self._registered = False
            self._to_receive.append(Lost())

    def _receive(self, event: Event) -> None:
        """Pass an event on, and carry out what is to be done, with all that comes of it."""
        self._notice_loss()
        self._to_receive.append(event)
        self._receive_all()

    def _receive_all(self) -> None:
        while self._to_receive:
            for action in self.machine.receive(self._to_receive.popleft()):
                self._carry_out(action)
        if self.machine.settled:
            self._changed_at = None
        self._watch_the_wait()

    # Time

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (uptime() + seconds, next(self._order), act))

    def _every(self, seconds: float, act: Callable[[], None]) -> None:
        def again() -> None:
            act()
            self._later(seconds, again)

        self._later(seconds, again)

    def _look_at_clocks(self) -> None:
        self._notice_loss()
        if self._to_receive:
            self._receive_all()
        while self._timers and self._timers[0][0] <= uptime():
            heapq.heappop(self._timers)[2]()
        self._check_idle()
        if self._held_back is not None and self._seat.connected and self._seat.alive:
            generation, self._held_back = self._held_back, None
            self._hand_out(generation)

    def _reconcile(self) -> None:
        """A watch may have been missed, or something mended that could not be read."""
        self._changed = True
        generation = self.generation
        if generation is not None and generation.unreadable:
            self._begin_anew_if_readable(generation)

    def _begin_anew_if_readable(self, generation: Generation) -> None:
        with suppress(ZkgroupsException):
            found = self._seat.committed(frozenset(generation.unreadable))
            if any(not isinstance(value, MalformedNode) for value in found.values()):
                self._receive(Ended())

    def _auto_commit(self) -> None:
        if self.generation is not None:
            self._commit_marked(self.generation, self.machine.held)

    def _check_idle(self) -> None:
        limit, generation = self._options.max_idle, self.generation
        if self._withdrawn is not None:
            if self.machine.state is State.OUT:
                self._stay_out(self._withdrawn)
        elif limit is not None and generation is not None and uptime() - generation.last_sign > limit:
            self._withdrawn = generation
            self._event(EventKind.IDLE, frozenset(generation.partitions), f"nothing was marked for {limit:g} s")
            self._receive(Withdraw())

    def _stay_out(self, withdrawn: Generation) -> None:
        """Until the workers have come to an end; what could not be given up meanwhile, others wait for."""
        if self._left_behind and self._seat.connected:
            with suppress(ZkgroupsException):
                self._left_behind = not self._deregistered()
        if not withdrawn.at_work:
            self._withdrawn = None
            self._receive(Open())

    # What is to be done

    def _carry_out(self, action: Action) -> None:
        match action:
            case Linger():
                self._later(LINGER, lambda: self._receive(Lingered()))
            case AwaitFree(partitions):
                self._await_free(partitions)
            case Begin():
                self._begin(action)
            case Drop(partitions):
                self._drop(partitions)
            case _:
                self._take_step(action)

    def _take_step(self, action: Register | Look | Claim | Stop | Release | Deregister) -> None:
        """Carry out what is answered; what does not work is answered after a pause."""
        try:
            answer = self._answer(action)
        except ZkgroupsException as error:
            self._fail(action, error)
        except Exception as error:  # a function of the user's: a strategy, or one that knows the partitions
            log.exception("a step of %s failed", self._name)
            self._fail(action, error)
        else:
            self._failures = 0
            if self._trouble is not None and self._trouble.step is type(action):
                self._trouble.over = True
            self._to_receive.append(answer)

    def _answer(self, action: Register | Look | Claim | Stop | Release | Deregister) -> Event:
        match action:
            case Register(turn):
                return self._register(turn)
            case Look(turn):
                return self._look(turn)
            case Claim(turn, partitions):
                return self._claim(turn, partitions)
            case Stop(turn, moving):
                return self._stop(turn, moving)
            case Release(turn, partitions):
                self._seat.release(partitions)
                self._stats.lost += len(partitions)
                return Released(turn)
            case Deregister(turn):
                self._registered = False
                self._stats.lost += len(self.machine.held)
                self._seat.deregister()
                return Released(turn)

    def _fail(self, step: Step, error: Exception) -> None:
        """Try again later: soon, where that may help by itself, and else after `join_backoff`, and tell the caller."""
        self._stats.failures += 1
        self._failures += 1
        retriable = _is_retriable(error) and not self._seat.cut_off
        self._event(EventKind.FAILED, detail=str(error))
        if not retriable:
            self._tell_trouble(step, error)
        seconds = self._backoff(self._failures) if retriable else self._options.join_backoff
        failed = Failed(step.turn)
        if self.machine.leaving:
            self._left_behind = isinstance(step, Deregister) and retriable
            self._to_receive.append(failed)
            return
        self._failed = failed
        self._later(seconds, lambda: self._receive(failed))

    def _tell_trouble(self, step: Step, error: Exception) -> None:
        if self._trouble is not None and not self._trouble.over:
            self._trouble.step, self._trouble.error = type(step), error
            return
        self._trouble = Trouble(type(step), error)
        self._hand_out(self._trouble)

    def _register(self, turn: int) -> Event:
        self._left_behind = False
        self._seat.register()
        self._registered = True
        self._event(EventKind.JOINED)
        return Registered(turn)

    def _look(self, turn: int) -> Event:
        began = uptime()
        if self._changed_at is None:
            self._changed_at = began
        self._changed = False
        found = self._seat.look()
        took = uptime() - began
        self._looked.append(uptime())
        if len(self._looked) == IN_A_ROW:
            self._next_look = self._looked[0] + IN_A_ROW * min(BREATHER * took, LONGEST_BREATHER)
        self._tell_oddities(found)
        return Planned(turn, found.number, frozenset(found.wanted), found.mine, frozenset(found.taken))

    def _tell_oddities(self, found: Outlook) -> None:
        for kind in (EventKind.MISSING, EventKind.MALFORMED, EventKind.FOREIGN):
            note = found.notes.get(kind, "")
            if note and self._told.get(kind) != note:
                log.warning("%s: %s: %s", self._name, kind, note)
                self._event(kind, detail=note)
            self._told[kind] = note

    def _claim(self, turn: int, partitions: Partitions) -> Event:
        self._stats.rebalances += 1
        granted = self._seat.claim(partitions)
        self._stats.gained += len(granted)
        if refused := partitions - granted:
            self._event(EventKind.CONFLICT, refused, self._holders(refused))
        return Claimed(turn, granted)

    def _await_free(self, partitions: Partitions) -> None:
        self._stats.waits += len(partitions)
        self._stuck -= partitions
        self._waiting_since = {at: since for at, since in self._waiting_since.items() if at not in partitions}
        self._event(EventKind.WAITING, partitions, self._holders(partitions))
        try:
            self._seat.await_free(partitions)
        except ZkgroupsException as error:  # the next look begins anew
            log.info("%s will look again who holds what: %s", self._name, error)
            self._changed = True

    # Generations

    def _begin(self, begin: Begin) -> None:
        """Hand out a new generation; where it cannot be found out where to begin, a moment later."""
        try:
            write = self._seat.writer(begin.partitions)
            found = self._seat.committed(begin.partitions)
        except ZkgroupsException as error:
            self._event(EventKind.FAILED, begin.partitions, str(error))
            self._changed = True
            self._later(FIRST_BACKOFF, lambda: self._begin_if_still(begin))
            return
        self._stats.generations += 1
        if self._changed_at is not None:
            self._stats.last_rebalance, self._changed_at = uptime() - self._changed_at, None
        generation = self._generation(begin, found, write)
        self.generation = generation
        self._begun_at = uptime()
        self._withdrawn = None
        self._tell_assigned(begin.partitions)
        self._hand_out(generation)

    def _begin_if_still(self, begin: Begin) -> None:
        if self.generation is None and self.machine.running == begin.partitions:
            self._begin(begin)

    def _generation(
        self,
        begin: Begin,
        found: dict[TopicPartition, CommittedOffset | MalformedNode | None],
        write: Callable[[Offsets], None],
    ) -> Generation:
        start_at = StartAt(self._options.start_at)
        unreadable = {at: value for at, value in found.items() if isinstance(value, MalformedNode)}
        for node in unreadable.values():
            log.error("%s cannot tell where to begin, and leaves it: %s: %s", self._name, node.path, node.reason)
        starts: dict[TopicPartition, int | StartAt] = {
            at: value.offset if isinstance(value, CommittedOffset) else start_at
            for at, value in sorted(found.items())
            if at not in unreadable
        }
        generation = Generation(
            group=self._seat.group_name,
            member=self._seat.id,
            number=begin.number,
            partitions=starts,
            streams={at: self._seat.stream(at) for at in starts},
            unreadable=unreadable,
            write=write,
            committed=self._tell_committed,
            alive=lambda: self._seat.alive,
            connected=lambda: self._seat.connected,
            ended=lambda error: self.tell_ended(generation, error),
        )
        return generation

    def _tell_committed(self, offsets: Offsets) -> None:
        """On the thread that has committed them."""
        self._stats.commits += len(offsets)
        self._event(EventKind.COMMITTED, frozenset(offsets))

    def _stop(self, turn: int, moving: Partitions) -> Event:
        """Stop the workers; what is still the member's own is committed, and only then is anything given up."""
        generation, self.generation = self.generation, None
        self.stopping = generation
        revoked = moving & self._assigned
        if generation is not None:
            self._stats.interruptions += 1
            deadline = Deadline(self._options.release_timeout)
            generation.end()
            if not generation.wait_for_workers(deadline):
                log.warning("workers of %s have not come to an end within %g s", self._name, deadline.seconds)
        if revoked and self._seat.alive:  # else they are lost, and told to be
            self._call(self._options.on_revoked, revoked)
            self._event(EventKind.REVOKED, revoked)
            self._assigned -= revoked
        if generation is not None:
            self._commit_marked(generation, self.machine.held)
            generation.close(Deadline(self._options.release_timeout))
        self._notice_loss()  # before anything is released that is lost
        return Stopped(turn)

    def _drop(self, partitions: Partitions) -> None:
        """The generation has ended, and these are lost. What of it is still the member's own can be committed."""
        generation, self.generation = self.generation, None
        self.stopping = generation
        lost = partitions & self._assigned
        self._assigned -= lost
        self._stats.lost += len(partitions)
        if generation is not None:
            self._stats.interruptions += 1
            generation.end()
        if lost:
            self._call(self._options.on_lost, lost)
            self._event(EventKind.LOST, lost)
        if generation is not None:
            deadline = Deadline(self._options.release_timeout)
            generation.wait_for_workers(deadline)
            if kept := self.machine.held - partitions:
                self._commit_marked(generation, kept)
            generation.close(deadline)

    def _commit_marked(self, generation: Generation, among: Partitions) -> None:
        """Commit what is marked; what is taken away, or where somebody went further, does not keep the rest from it."""
        try:
            try:
                self._seat.commit_marked(generation, among)
            except OffsetConflictError:  # it can be written over what is there now, unless that would be back
                self._seat.commit_marked(generation, among)
        except (NotClaimedError, OffsetConflictError, OffsetWouldGoBackError) as error:
            self._commit_failed(error)
            if error.at in among:
                self._commit_marked(generation, among - {error.at})
        except ZkgroupsException as error:
            self._commit_failed(error)

    def _commit_failed(self, error: ZkgroupsException) -> None:
        log.warning("what %s has marked could not be committed: %s", self._name, error)
        self._event(EventKind.FAILED, detail=str(error))
        if isinstance(error, _MENDED_BY_LOOKING):
            self._changed = True
        elif not error.retriable:
            self._hand_out(error)

    def _tell_assigned(self, partitions: Partitions) -> None:
        new = partitions - self._assigned
        self._assigned = partitions
        if new:
            self._call(self._options.on_assigned, new)
            self._event(EventKind.ASSIGNED, new)

    # Telling

    def _holders(self, partitions: Partitions) -> str:
        holders = {at: self._seat.holders[at] for at in sorted(partitions) if at in self._seat.holders}
        return "; ".join(f"{at}: {holder.holder}" for at, holder in holders.items())

    def _watch_the_wait(self) -> None:
        """Say so, once, where a partition that this member is to have is held by somebody else for too long."""
        waiting, now, limit = self.machine.waiting, uptime(), self._options.rebalance_timeout
        self._stuck &= waiting
        known, self._waiting_since = self._waiting_since, {at: self._waiting_since.get(at, now) for at in waiting}
        if waiting - known.keys():
            self._later(limit, self._watch_the_wait)
        stuck = frozenset(at for at, since in self._waiting_since.items() if now - since >= limit) - self._stuck
        if stuck:
            self._stuck |= stuck
            log.warning("%s has waited %g s for %s", self._name, limit, self._holders(stuck))
            self._event(EventKind.STUCK, stuck, self._holders(stuck))
        self._watch_the_plan()

    def _watch_the_plan(self) -> None:
        """The same where the plan itself is waited for."""
        planner, limit = self._seat.planner, self._options.rebalance_timeout
        if planner is None:
            self._planless_since, self._planless_told = None, False
        elif self._planless_since is None:
            self._planless_since = uptime()
            self._later(limit, self._watch_the_plan)
        elif not self._planless_told and uptime() - self._planless_since >= limit:
            self._planless_told = True
            log.warning("%s has waited %g s for a plan, which %r is to write", self._name, limit, planner)
            self._event(EventKind.STUCK, detail=f"{planner!r} has not written a plan")

    def _event(self, kind: EventKind, at: Partitions = frozenset(), detail: str = "") -> None:
        log.log(
            logging.DEBUG if kind is EventKind.COMMITTED else logging.INFO,
            "%s %s: %s %s",
            self._name,
            kind,
            ", ".join(map(str, sorted(at)[:20])),
            detail,
        )
        if self._options.on_event is not None:
            self._call(self._options.on_event, MemberEvent(kind, at, self.machine.number, detail))

    def _call(self, callback: Callable[[Any], Awaitable[None] | None] | None, argument: object) -> None:
        """Call back; an error is logged, and stops nothing."""
        if callback is None:
            return
        try:
            result = callback(argument)
            if inspect.isawaitable(result):
                self._run(result)
        except KeyboardInterrupt:
            raise
        except BaseException:  # also SystemExit, or that a coroutine was cancelled: the member goes on
            log.exception("a callback of %s failed, called with %s", self._name, argument)

    def _run(self, awaitable: Awaitable[None]) -> None:
        if self._options.run is not None:
            self._options.run(awaitable)
            return
        import asyncio  # takes as long as all the rest, and few need it

        async def wait() -> None:
            await awaitable

        asyncio.run(wait())
