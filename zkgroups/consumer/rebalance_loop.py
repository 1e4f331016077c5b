"""The thread of one member, which carries out the actions of the rebalance (`core/rebalance/state_machine.py`).

Other threads (kazoo's, workers, the user's) only leave an event or a flag for it. Of these, only `close` waits for this
thread. No lock is held while a callback runs, and no request is sent on the thread of a watch (rule 8).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from ..core.rebalance.shared_plan import AwaitedPlan
from ..core.rebalance.state_machine import (
    Action,
    AnyRequest,
    AwaitRelease,
    Claimed,
    ClaimPartitions,
    CloseRequested,
    DeregisterInstance,
    DropPartitions,
    Event,
    GenerationStopped,
    GroupChanged,
    JoinRequested,
    LingerElapsed,
    PartitionsFreed,
    Planned,
    ReadGroup,
    Rebalance,
    RebalanceRequest,
    RebalanceState,
    Registered,
    RegisterInstance,
    Released,
    ReleasePartitions,
    RequestFailed,
    SessionLost,
    StartGeneration,
    StartLinger,
    StopGeneration,
    WithdrawRequested,
    WorkerFinished,
)
from ..deadline import Deadline, uptime
from ..exceptions import (
    GenerationEndedError,
    GroupMigratedError,
    GroupMovedError,
    NoPermissionError,
    NotClaimedError,
    OffsetWouldGoBackError,
    ZkgroupsException,
)
from .events import EventKind, MemberStats, Partitions
from .followed_group import FollowedGroup
from .generation import Generation, Reset
from .generation_lifecycle import GenerationLifecycle
from .membership import AnyMembership
from .options import Callbacks, Options
from .waiting import (
    FIRST_BACKOFF,
    MENDED_BY_LOOKING,
    PendingChanges,
    StepFailure,
    StepFailures,
    StuckAlarm,
    Timers,
    is_retriable,
)

log = logging.getLogger("zkgroups.member")


TICK: Final = 1.0
"""The longest time between two looks at the clock, in seconds."""

LINGER: Final = 0.5
"""How long to wait, in seconds, for other members to release before work begins on the partitions at hand."""

BRIEF_GENERATION: Final = 1.0
"""In seconds. If a worker ends its generation sooner than this, the next generation begins after a pause."""

_BEGIN: Final = "read its committed offsets"

_COMMIT_DENIED: Final = "commit an offset"

_FIND: Final = "find out where its group is"


Handed: TypeAlias = Generation | Exception | StepFailure


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker of this generation has ended."""

    generation: Generation
    failed: bool


class RebalanceLoop:
    """Run one member from `JoinRequested` until it is closed.

    With a `place`, the member follows its group: while the group is moved, it stays out.
    `hand_out` receives generations, and errors to raise. `await_callback` waits for the result of a
    callback that is a coroutine function.
    """

    def __init__(
        self,
        membership: AnyMembership,
        options: Options,
        stats: MemberStats,
        *,
        hand_out: Callable[[Handed], object],
        await_callback: Callable[[Any], object],
        place: FollowedGroup | None = None,
    ) -> None:
        self.membership = membership
        self._place = place
        self._options = options
        self._stats = stats
        self._hand_out = hand_out
        self._name = str(membership)
        self.machine = Rebalance()
        self._timers = Timers()
        self._callbacks = Callbacks(self._name, options, lambda: self.machine.number, await_callback)
        self._stuck_alarm = StuckAlarm(options, self._timers, self._callbacks, self._holders, self._skip_planner)
        self._lifecycle = GenerationLifecycle(
            membership,
            options,
            stats,
            self._callbacks,
            ended=self.tell_ended,
            commit_failed=self._commit_failed,
            reset=self._note,
        )
        self._failed_briefly = 0  # generations in a row
        self._left_behind = False  # True if the member left, but could not deregister
        self._inbox: SimpleQueue[Event | WorkerEnded | Reset | None] = SimpleQueue()
        self._changes = PendingChanges()
        self._to_receive: deque[Event] = deque()
        self._registered = False
        self._failures = StepFailures(options, stats, self._callbacks, hand_out)
        self._failed: RequestFailed | None = None  # an event to be received after a pause
        self._withdrawn: Generation | None = None
        self._held_back: Generation | None = None
        self._told_moving: bool | None = None  # what was last reported about a move of the group

    @property
    def generation(self) -> Generation | None:
        """The current generation."""
        return self._lifecycle.generation

    @property
    def stopping(self) -> Generation | None:
        """The generation whose workers are being stopped."""
        return self._lifecycle.stopping

    # From other threads

    def tell(self, event: Event) -> None:
        """Pass an event to the member's thread."""
        self._inbox.put(event)

    def tell_changed(self, free: Partitions | None) -> None:
        """Note that these partitions were released; with None, that something else changed. Called by kazoo."""
        if free is None:
            self._changes.changed()
        else:
            self._changes.released(free)
        self._inbox.put(None)

    def wake(self) -> None:
        """Let the member's thread look where its group is. Called by kazoo."""
        self._inbox.put(None)

    def hold_back(self, generation: Generation) -> None:
        """Hand out this generation again once there is a connection."""
        self._held_back = generation
        self._inbox.put(None)

    def _note(self, reset: Reset) -> None:
        """Note that a worker starts at another offset than the committed one."""
        self._inbox.put(reset)

    def tell_ended(self, generation: Generation, error: BaseException | None) -> None:
        """Note that a worker has ended."""
        if isinstance(error, NotClaimedError | GenerationEndedError) or getattr(error, "retriable", False):
            log.warning("a worker of member %s failed, starting another generation: %s", self._name, error)
            self._changes.changed()  # the partition may have been taken away
        elif isinstance(error, Exception):
            self._hand_out(error)
        if generation is self.generation:
            self._inbox.put(WorkerEnded(generation, error is not None))

    # The thread

    def run(self) -> None:
        """Run the rebalance until the member is closed."""
        self._timers.every(self._options.reconcile_every, self._reconcile)
        if self._options.auto_commit_every is not None:
            self._timers.every(self._options.auto_commit_every, self._auto_commit)
        if self._place is None:
            self._receive(JoinRequested())
        while self.machine.state is not RebalanceState.CLOSED:
            self._follow_group()
            self._listen()
            self._look_at_clocks()
            self._pass_on_changes()
        if not self._left_behind:
            self._close()
        self._callbacks.event(EventKind.LEFT)

    def clear_up(self) -> None:
        """Deregister after a reconnect, if that was not possible when the member left.

        Otherwise the id would stay in use, and other members would wait for its partitions, until the session expires.
        """
        if self._left_behind:
            with suppress(ZkgroupsException):  # the connection was closed, and the session with it
                while self._left_behind:
                    self.membership.wait_connected()
                    self._left_behind = not self._deregistered()
            self._close()

    def _close(self) -> None:
        self.membership.close()
        if self._place is not None:
            with suppress(ZkgroupsException):  # the permit ends with the session
                self._place.close()

    def _deregistered(self) -> bool:
        try:
            self.membership.deregister()
        except ZkgroupsException as error:
            log.warning("member %s could not leave, retrying: %s", self._name, error)
            if not is_retriable(error):
                raise
            time.sleep(FIRST_BACKOFF)
            return False
        return True

    def give_up(self) -> None:
        """Release everything after an unexpected error, so that other members can claim it."""
        if self.generation is not None:
            self.generation._close(Deadline(self._options.release_timeout))
        with suppress(ZkgroupsException):
            self.membership.deregister()
        self._close()

    def _listen(self) -> None:
        """Wait for the next event, at most until the next timer is due."""
        with suppress(Empty):
            event = self._inbox.get(timeout=self._pause())
            while True:
                if isinstance(event, WorkerEnded):
                    self._worker_ended(event)
                elif isinstance(event, Reset):
                    self._callbacks.event(EventKind.RESET, frozenset({event.at}), str(event))
                elif event is not None:
                    if isinstance(event, CloseRequested | WithdrawRequested) and self._failed is not None:
                        self.tell(self._failed)  # end the pause before a retry: pass the failure on now
                    self._receive(event)
                event = self._inbox.get_nowait()

    def _worker_ended(self, ended: WorkerEnded) -> None:
        """Begin another generation: at once, or after a pause if workers end as soon as they begin."""
        brief = self._lifecycle.age < BRIEF_GENERATION
        self._failed_briefly = self._failed_briefly + 1 if brief and ended.failed else 0
        pause = self._failures.pause(max(self._failed_briefly, 1)) if brief else 0.0
        self._timers.later(pause, lambda: self._end(ended.generation))

    def _end(self, generation: Generation) -> None:
        if generation is self.generation:
            self._receive(WorkerFinished())

    def _pause(self) -> float:
        due = self._changes.due(self._timers.due(TICK))
        return min(max(due - uptime(), 0.0), TICK)

    def _pass_on_changes(self) -> None:
        if released := self._changes.take_released(self.machine.waiting):
            self._receive(PartitionsFreed(released))
        if self._changes.take_change():
            self._receive(GroupChanged())

    def _notice_loss(self) -> None:
        """Report all claims as lost if the session is not certain to be alive, or was replaced by another one."""
        if self._registered and not self.membership.alive:
            self._registered = False
            self._to_receive.append(SessionLost())

    def _receive(self, event: Event) -> None:
        """Pass an event to the state machine, carry out its actions, and handle the events that they cause."""
        self._notice_loss()
        self._to_receive.append(event)
        self._receive_all()

    def _receive_all(self) -> None:
        while self._to_receive:
            for action in self.machine.receive(self._to_receive.popleft()):
                self._carry_out(action)
        if self.machine.settled:
            self._changes.settle()
        self._stuck_alarm.watch(self.machine.waiting, self.membership.awaited)

    def _look_at_clocks(self) -> None:
        self._notice_loss()
        if self._to_receive:
            self._receive_all()
        self._timers.run()
        self._check_idle()
        if self._held_back is not None and self.membership.connected and self.membership.alive:
            generation, self._held_back = self._held_back, None
            if generation is self.generation:  # it may have ended meanwhile, and another one may have begun
                self._hand_out(generation)

    def _reconcile(self) -> None:
        """Read the group periodically: a watch event may be missing, or an unreadable node may be repaired."""
        self._changes.changed()
        with suppress(ZkgroupsException):
            if self._lifecycle.is_readable_now():
                self._receive(WorkerFinished())

    def _skip_planner(self, awaited: AwaitedPlan) -> None:
        """Skip the planner, so that another member plans, possibly this one."""
        limit, more = self._options.planning_timeout, len(self.membership.skip(awaited)) - 1
        name = f"{awaited.planner!r}" + (f" and {more} more" if more > 0 else "")
        log.warning("member %s skips planner %s, which wrote no plan within %g s", self._name, name, limit)
        self._changes.changed()

    def _auto_commit(self) -> None:
        self._lifecycle.commit_marked(self.machine.held)

    def _check_idle(self) -> None:
        limit, generation = self._options.max_idle, self.generation
        if limit is None:
            return
        if self._withdrawn is not None:
            if self.machine.state is RebalanceState.OUT:
                self._stay_out(self._withdrawn)
        elif generation is not None and generation._is_idle(limit):
            self._withdrawn = generation
            self._callbacks.event(EventKind.IDLE, frozenset(generation.partitions), f"no progress for {limit:g} s")
            self._receive(WithdrawRequested())

    def _stay_out(self, withdrawn: Generation) -> None:
        """Stay out of the group until the idle workers have ended, or the loop of a consumer asks for messages."""
        self._leave_again()
        if not withdrawn._hangs(self._options.max_idle or 0.0):
            self._withdrawn = None
            self._receive(JoinRequested())

    def _leave_again(self) -> None:
        """Retry a deregistration that failed."""
        if self._left_behind and self.membership.connected:
            with suppress(ZkgroupsException):
                self._left_behind = not self._deregistered()

    # A group that is moved

    def _follow_group(self) -> None:
        """Leave while the group is moved, and join where it is."""
        if self._place is None or self._withdrawn is not None or self.machine.leaving:
            return
        try:
            found = self._place.find()
        except ZkgroupsException as error:
            self._cannot_find(error)
            return
        self._callbacks.worked(_FIND)
        if self.machine.state is not RebalanceState.OUT:
            if found is not self.membership:
                self._receive(WithdrawRequested())
            return
        self._leave_again()
        if found is None:
            moved = self._place.away
            if moved is not None and self._tell_moved(moved):  # once, and once more when the move has ended
                self._failures.report(RegisterInstance, moved)
        elif not self._left_behind:
            if found is not self.membership:
                self.membership.close()
                self.membership = self._lifecycle.membership = found
                self._callbacks.event(EventKind.MOVED, detail=str(found))
            self._receive(JoinRequested())

    def _tell_moved(self, error: GroupMovedError) -> bool:
        """Report that the group is moved. Return False if that is known, and on the way back."""
        if self._told_moving is not None and (error.moving or not self._told_moving):
            return False
        self._told_moving = error.moving
        self._callbacks.event(EventKind.MOVED, detail=str(error))
        return True

    def _cannot_find(self, error: ZkgroupsException) -> None:
        """Try again. A member that is in no group tells the caller, too, if that alone does not help."""
        self._callbacks.failed(_FIND, error)
        is_out = self.machine.state is RebalanceState.OUT  # otherwise, its next step fails, too
        if is_out and (self.membership.cut_off or not is_retriable(error)):
            self._failures.report(RegisterInstance, error)

    def _is_moving(self) -> bool:
        """True if the group is not, or not for long, where this member is."""
        try:
            return self._place is not None and self._place.find(anew=True) is not self.membership
        except ZkgroupsException:
            return True  # the next look at the group tells

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartLinger():
                self._timers.later(LINGER, lambda: self._receive(LingerElapsed()))
            case AwaitRelease(partitions):
                self._await_free(partitions)
            case StartGeneration():
                self._begin(action)
            case DropPartitions(partitions):
                self._lifecycle.drop(partitions, self.machine.held)
            case _:
                self._take_step(action)

    def _take_step(self, action: AnyRequest) -> None:
        """Carry out an action that the state machine expects an answer to. A failure is answered after a pause."""
        try:
            answer = self._answer(action)
        except GroupMigratedError as error:
            if not self._is_moving():
                if isinstance(error, GroupMovedError):
                    self._tell_moved(error)
                self._fail(action, error)
            else:  # leave first, and then join where it is
                self._to_receive.extend((WithdrawRequested(), RequestFailed(action.turn)))
        except ZkgroupsException as error:
            self._fail(action, error)
        except Exception as error:  # from the user's strategy, or the user's `partitions`
            self._fail(action, error, trace=True)
        else:
            self._failures.worked(action)
            self._to_receive.append(answer)

    def _answer(self, action: AnyRequest) -> Event:
        match action:
            case RegisterInstance(turn):
                return self._register(turn)
            case ReadGroup(turn):
                return self._look(turn)
            case ClaimPartitions(turn, partitions):
                return self._claim(turn, partitions)
            case StopGeneration(turn, moving):
                return self._stop(turn, moving)
            case ReleasePartitions(turn, partitions):
                self.membership.release(partitions)
                self._stats.lost += len(partitions)
                return Released(turn)
            case DeregisterInstance(turn, partitions):
                self._registered = False
                self._stats.lost += len(partitions)
                self.membership.deregister()
                return Released(turn)

    def _fail(self, step: RebalanceRequest, error: Exception, *, trace: bool = False) -> None:
        """Retry later: soon if the error is retriable, otherwise after `join_backoff`, and report it to the caller."""
        retriable = is_retriable(error) and not self.membership.cut_off
        pause = self._failures.failed(step, error, retriable=retriable, trace=trace)
        failed = RequestFailed(step.turn)
        if self.machine.leaving:
            self._left_behind = isinstance(step, DeregisterInstance) and retriable
            self._to_receive.append(failed)
            return
        self._failed = failed
        self._timers.later(pause, lambda: self._receive(failed))

    def _register(self, turn: int) -> Event:
        self._left_behind = False
        self.membership.register()
        self._registered, self._told_moving = True, None
        self._callbacks.event(EventKind.JOINED)
        return Registered(turn)

    def _look(self, turn: int) -> Event:
        began = self._changes.begin_look()
        found = self.membership.look()
        self._changes.end_look(began)
        self._callbacks.notes(found.notes)
        return Planned(turn, found.number, frozenset(found.wanted), found.mine, frozenset(found.taken))

    def _claim(self, turn: int, partitions: Partitions) -> Event:
        self._stats.rebalances += 1
        granted = self.membership.claim(partitions)
        self._stats.gained += len(granted)
        if refused := partitions - granted:
            self._callbacks.event(EventKind.CONFLICT, refused, self._holders(refused))
        return Claimed(turn, granted)

    def _await_free(self, partitions: Partitions) -> None:
        self._stats.waits += len(partitions)
        self._stuck_alarm.begin_anew(partitions)
        self._callbacks.event(EventKind.WAITING, partitions, self._holders(partitions))
        try:
            self.membership.await_free(partitions)
        except ZkgroupsException as error:  # the next look tries again
            log.info("member %s could not watch partitions, retrying: %s", self._name, error)
            self._changes.changed()

    def _begin(self, begin: StartGeneration) -> None:
        """Hand out a new generation. If the committed offsets cannot be read, retry after a pause."""
        try:
            generation = self._lifecycle.begin(begin)
        except ZkgroupsException as error:
            self._callbacks.failed(_BEGIN, error, begin.partitions)
            self._changes.changed()

            def begin_if_still() -> None:
                if self.generation is None and self.machine.running == begin.partitions:
                    self._begin(begin)

            self._timers.later(FIRST_BACKOFF, begin_if_still)
            return
        self._callbacks.worked(_BEGIN)
        self._callbacks.worked(_COMMIT_DENIED)
        if (took := self._changes.settle()) is not None:
            self._stats.last_rebalance = took
        self._withdrawn = None
        self._hand_out(generation)

    def _stop(self, turn: int, moving: Partitions) -> Event:
        self._lifecycle.stop(moving, self.machine.held)
        self._notice_loss()  # a lost claim must not be released
        return GenerationStopped(turn)

    def _commit_failed(self, error: ZkgroupsException) -> None:
        denied = isinstance(error, NoPermissionError)  # other offsets can still be committed
        is_new = self._callbacks.failed(_COMMIT_DENIED if denied else "commit", error)
        if isinstance(error, MENDED_BY_LOOKING):
            self._changes.changed()
        elif isinstance(error, OffsetWouldGoBackError) and not self.machine.leaving:
            return  # another client has committed further: later marks, or the next generation, pass its offset
        elif not error.retriable and is_new:
            self._hand_out(error)

    def _holders(self, partitions: Partitions) -> str:
        holders = {at: self.membership.holders[at] for at in sorted(partitions) if at in self.membership.holders}
        return "; ".join(f"{at}: {holder.holder}" for at, holder in holders.items())
