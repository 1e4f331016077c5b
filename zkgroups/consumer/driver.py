"""The thread of one member: it carries out what the rebalance (`core/rebalance/state_machine.py`) says, one step
after the other.

Everything that happens elsewhere, on kazoo's threads, on workers, in the user's own, only leaves a note here: an event,
or the flag that something has changed. So nobody waits for this thread but who closes the member, no lock is held while
a callback runs, and no call is made on a watch's thread (rule 8).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from ..core.rebalance.shared_plan import AwaitedPlan
from ..core.rebalance.state_machine import (
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
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline, uptime
from ..exceptions import (
    GenerationEndedError,
    NoPermissionError,
    NotClaimedError,
    NotRegisteredError,
    OutcomeUnknownError,
    ZkgroupsException,
)
from .events import EventKind, MemberStats
from .generation import Generation, Reset
from .generation_lifecycle import AnySeat, Work
from .notifications import Telling
from .options import Options
from .stuck_alarm import Patience
from .timers import Timers

log = logging.getLogger("zkgroups.member")

Partitions = frozenset[TopicPartition]

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


_STEPS: Final = {
    Register: "register",
    Look: "read its group and plan",
    Claim: "claim partitions",
    Stop: "stop its workers",
    Release: "release partitions",
    Deregister: "leave",
}
"""The steps that may fail, as the log names them."""

_BEGIN: Final = "read its committed offsets"

_COMMIT_DENIED: Final = "commit an offset"


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
        self._name = str(seat)
        self.machine = Rebalance()
        self._timers = Timers()
        self._telling = Telling(self._name, options, lambda: self.machine.number)
        self._patience = Patience(options, self._timers, self._telling, self._holders, self._pass_over)
        self._work = Work(
            seat,
            options,
            stats,
            self._telling,
            ended=self.tell_ended,
            commit_failed=self._commit_failed,
            reset=self._note,
        )
        self._failed_briefly = 0  # generations in a row
        self._left_behind = False  # what could not be given up when it left
        self._inbox: SimpleQueue[Event | WorkerEnded | Reset | None] = SimpleQueue()
        self._heard_free: deque[Partitions] = deque()  # on kazoo's threads
        self._freed: Partitions = frozenset()
        self._freed_at = 0.0  # when the first of them was heard of
        self._to_receive: deque[Event] = deque()
        self._changed = False
        self._changed_at: float | None = None  # when the change was heard of that is not worked in yet
        self._next_look = 0.0
        self._looked: deque[float] = deque(maxlen=IN_A_ROW)
        self._registered = False
        self._failures = 0
        self._failed: Failed | None = None  # what is to be received after a pause
        self._withdrawn: Generation | None = None
        self._held_back: Generation | None = None
        self._trouble: Trouble | None = None

    @property
    def generation(self) -> Generation | None:
        """The one that there is."""
        return self._work.generation

    @property
    def stopping(self) -> Generation | None:
        """The one whose workers are waited for."""
        return self._work.stopping

    # From other threads

    def tell(self, event: Event) -> None:
        """Something has happened."""
        self._inbox.put(event)

    def tell_changed(self, free: Partitions | None) -> None:
        """Something in the group has changed: partitions were let go, or anything else. Called on kazoo's threads."""
        if free is None:
            self._changed = True
        else:
            self._heard_free.append(free)
        self._inbox.put(None)

    def hold_back(self, generation: Generation) -> None:
        """Hand it out again when there is a connection."""
        self._held_back = generation
        self._inbox.put(None)

    def _note(self, reset: Reset) -> None:
        """A worker starts at another offset than the committed one."""
        self._inbox.put(reset)

    def tell_ended(self, generation: Generation, error: BaseException | None) -> None:
        """A worker has come to its end."""
        if isinstance(error, NotClaimedError | GenerationEndedError) or getattr(error, "retriable", False):
            log.warning("a worker of member %s failed, starting another generation: %s", self._name, error)
            self._changed = True  # somebody may have taken a partition away
        elif isinstance(error, Exception):
            self._hand_out(error)
        if generation is self.generation:
            self._inbox.put(WorkerEnded(generation, error is not None))

    # The thread

    def run(self) -> None:
        """Take part until the member is closed."""
        self._timers.every(self._options.reconcile_every, self._reconcile)
        if self._options.auto_commit_every is not None:
            self._timers.every(self._options.auto_commit_every, self._auto_commit)
        self._receive(Open())
        while self.machine.state is not State.CLOSED:
            self._listen()
            self._look_at_clocks()
            self._pass_on_changes()
        if not self._left_behind:
            self._seat.close()
        self._telling.event(EventKind.LEFT)

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
            log.warning("member %s could not leave, retrying: %s", self._name, error)
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

    def _listen(self) -> None:
        """Wait for the next event, or until there is something to do anyway."""
        with suppress(Empty):
            event = self._inbox.get(timeout=self._pause())
            while True:
                if isinstance(event, WorkerEnded):
                    self._worker_ended(event)
                elif isinstance(event, Reset):
                    self._telling.event(EventKind.RESET, frozenset({event.at}), str(event))
                elif event is not None:
                    self._hurry(event)
                    self._receive(event)
                event = self._inbox.get_nowait()

    def _worker_ended(self, ended: WorkerEnded) -> None:
        """Another generation is to begin: at once, unless workers end as soon as they have begun."""
        brief = self._work.age < BRIEF
        self._failed_briefly = self._failed_briefly + 1 if brief and ended.failed else 0
        pause = self._backoff(max(self._failed_briefly, 1)) if brief else 0.0
        self._timers.later(pause, lambda: self._end(ended.generation))

    def _end(self, generation: Generation) -> None:
        if generation is self.generation:
            self._receive(Ended())

    def _backoff(self, failures: int) -> float:
        return min(FIRST_BACKOFF * 2.0 ** min(failures - 1, 16), self._options.join_backoff)

    def _pause(self) -> float:
        due = self._timers.due(TICK)
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
        heard = frozenset[TopicPartition]().union(*(self._heard_free.popleft() for _ in range(len(self._heard_free))))
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
        self._patience.watch(self.machine.waiting, self._seat.awaited)

    # Time

    def _look_at_clocks(self) -> None:
        self._notice_loss()
        if self._to_receive:
            self._receive_all()
        self._timers.run()
        self._check_idle()
        if self._held_back is not None and self._seat.connected and self._seat.alive:
            generation, self._held_back = self._held_back, None
            self._hand_out(generation)

    def _reconcile(self) -> None:
        """A watch may have been missed, or something mended that could not be read."""
        self._changed = True
        with suppress(ZkgroupsException):
            if self._work.is_readable_now():
                self._receive(Ended())

    def _pass_over(self, awaited: AwaitedPlan) -> None:
        """Skip the planner, so that another member plans, possibly this one."""
        limit, more = self._options.planning_timeout, len(self._seat.pass_over(awaited)) - 1
        name = f"{awaited.planner!r}" + (f" and {more} more" if more > 0 else "")
        log.warning("member %s skips planner %s, which wrote no plan within %g s", self._name, name, limit)
        self._changed = True

    def _auto_commit(self) -> None:
        self._work.commit_marked(self.machine.held)

    def _check_idle(self) -> None:
        limit, generation = self._options.max_idle, self.generation
        if self._withdrawn is not None:
            if self.machine.state is State.OUT:
                self._stay_out(self._withdrawn)
        elif limit is not None and generation is not None and uptime() - generation.last_sign > limit:
            self._withdrawn = generation
            self._telling.event(EventKind.IDLE, frozenset(generation.partitions), f"nothing was marked for {limit:g} s")
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
                self._timers.later(LINGER, lambda: self._receive(Lingered()))
            case AwaitFree(partitions):
                self._await_free(partitions)
            case Begin():
                self._begin(action)
            case Drop(partitions):
                self._work.drop(partitions, self.machine.held)
            case _:
                self._take_step(action)

    def _take_step(self, action: Register | Look | Claim | Stop | Release | Deregister) -> None:
        """Carry out what is answered; what does not work is answered after a pause."""
        try:
            answer = self._answer(action)
        except ZkgroupsException as error:
            self._fail(action, error)
        except Exception as error:  # a function of the user's: a strategy, or one that knows the partitions
            self._fail(action, error, trace=True)
        else:
            self._failures = 0
            self._telling.worked(_STEPS[type(action)])
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

    def _fail(self, step: Step, error: Exception, *, trace: bool = False) -> None:
        """Try again later: soon, where that may help by itself, and else after `join_backoff`, and tell the caller."""
        self._stats.failures += 1
        self._failures += 1
        retriable = _is_retriable(error) and not self._seat.cut_off
        self._telling.failed(_STEPS[type(step)], error, trace=trace)
        if not retriable:
            self._tell_trouble(step, error)
        seconds = self._backoff(self._failures) if retriable else self._options.join_backoff
        failed = Failed(step.turn)
        if self.machine.leaving:
            self._left_behind = isinstance(step, Deregister) and retriable
            self._to_receive.append(failed)
            return
        self._failed = failed
        self._timers.later(seconds, lambda: self._receive(failed))

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
        self._telling.event(EventKind.JOINED)
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
        self._telling.notes(found.notes)
        return Planned(turn, found.number, frozenset(found.wanted), found.mine, frozenset(found.taken))

    def _claim(self, turn: int, partitions: Partitions) -> Event:
        self._stats.rebalances += 1
        granted = self._seat.claim(partitions)
        self._stats.gained += len(granted)
        if refused := partitions - granted:
            self._telling.event(EventKind.CONFLICT, refused, self._holders(refused))
        return Claimed(turn, granted)

    def _await_free(self, partitions: Partitions) -> None:
        self._stats.waits += len(partitions)
        self._patience.begin_anew(partitions)
        self._telling.event(EventKind.WAITING, partitions, self._holders(partitions))
        try:
            self._seat.await_free(partitions)
        except ZkgroupsException as error:  # the next look begins anew
            log.info("member %s could not watch partitions, retrying: %s", self._name, error)
            self._changed = True

    # Generations

    def _begin(self, begin: Begin) -> None:
        """Hand out a new generation; where it cannot be found out where to begin, a moment later."""
        try:
            generation = self._work.begin(begin)
        except ZkgroupsException as error:
            self._telling.failed(_BEGIN, error, begin.partitions)
            self._changed = True
            self._timers.later(FIRST_BACKOFF, lambda: self._begin_if_still(begin))
            return
        self._telling.worked(_BEGIN)
        self._telling.worked(_COMMIT_DENIED)
        if self._changed_at is not None:
            self._stats.last_rebalance, self._changed_at = uptime() - self._changed_at, None
        self._withdrawn = None
        self._hand_out(generation)

    def _begin_if_still(self, begin: Begin) -> None:
        if self.generation is None and self.machine.running == begin.partitions:
            self._begin(begin)

    def _stop(self, turn: int, moving: Partitions) -> Event:
        self._work.stop(moving, self.machine.held)
        self._notice_loss()  # before anything is released that is lost
        return Stopped(turn)

    def _commit_failed(self, error: ZkgroupsException) -> None:
        denied = isinstance(error, NoPermissionError)  # other offsets may be committed all the same
        is_new = self._telling.failed(_COMMIT_DENIED if denied else "commit", error)
        if isinstance(error, _MENDED_BY_LOOKING):
            self._changed = True
        elif not error.retriable and is_new:
            self._hand_out(error)

    def _holders(self, partitions: Partitions) -> str:
        holders = {at: self._seat.holders[at] for at in sorted(partitions) if at in self._seat.holders}
        return "; ".join(f"{at}: {holder.holder}" for at, holder in holders.items())
