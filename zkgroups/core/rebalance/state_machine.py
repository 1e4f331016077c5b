"""The rebalance of one member, as a state machine: events in, actions out, and no clock, thread or server.

Whoever drives it carries the actions out and comes back with what became of them. One step is under way at a time; what
changes meanwhile is looked at when it is done. An answer carries the turn of the step that it answers: one that comes
late, or twice, answers nothing. The table of transitions is `TRANSITIONS`, at the end of this file.

    Out        not registered
    Joining    registering
    Looking    reading the group, and planning from what was read
    Stopping   the generation is ending: its workers stop, and commit what they have done
    Releasing  giving up what somebody else is to have
    Claiming   taking what is free
    Idle       nothing to do but to wait: for a change, or for others to let go
    Leaving    the generation has ended for good, and everything is being given back
    Closed     the end

Two rules hold in every state. What is held was granted by the server in this session, and not given up since as far as
anybody knows. And a generation has exactly what was held when it began: it is stopped before any of that is released,
and before it begins anew with more; a member that keeps what it has is not interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final, TypeAlias

from ..znodes.topic_partition import TopicPartition

Partitions: TypeAlias = frozenset[TopicPartition]

NOTHING: Final[Partitions] = frozenset()


class State(StrEnum):
    """What is under way; the table is at the top of this file."""

    OUT = "Out"
    JOINING = "Joining"
    LOOKING = "Looking"
    STOPPING = "Stopping"
    RELEASING = "Releasing"
    CLAIMING = "Claiming"
    IDLE = "Idle"
    LEAVING = "Leaving"
    CLOSED = "Closed"


# Events


@dataclass(frozen=True, slots=True)
class Open:
    """The member is to take part."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of the step of that turn."""

    turn: int


@dataclass(frozen=True, slots=True)
class Registered(Answer):
    """The registration was made, in a session that holds nothing yet."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Something that a plan is made from has changed, or it is time to look whether something has."""


@dataclass(frozen=True, slots=True)
class Planned(Answer):
    """The group was read: what this member is to have by the plan of that number, what the server says it has, and what
    others have of what it is to have."""

    number: int
    wanted: Partitions
    mine: Partitions = NOTHING
    taken: Partitions = NOTHING


@dataclass(frozen=True, slots=True)
class Claimed(Answer):
    """The server has granted these; the others that were asked for are held by somebody else."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Freed:
    """Somebody has let go of partitions that were waited for."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Lingered:
    """It was long enough to wait for others before going on with what there is."""


@dataclass(frozen=True, slots=True)
class Stopped(Answer):
    """The workers of the generation have ended, or were given up on."""


@dataclass(frozen=True, slots=True)
class Released(Answer):
    """What was to be released is."""


@dataclass(frozen=True, slots=True)
class Failed(Answer):
    """What was asked for has not happened, or nobody knows: to be looked at again."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The session has ended, or may have: nothing is held any more."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker has come to its end, and the generation with it: another is to begin, with what there is then."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The member is to give everything up and to stay out until it is opened again."""


@dataclass(frozen=True, slots=True)
class Close:
    """The member is to end: by leaving the group, or by leaving everything as it is for who comes after it."""

    leave: bool = True


Event: TypeAlias = (
    Open
    | Registered
    | Changed
    | Planned
    | Claimed
    | Freed
    | Lingered
    | Stopped
    | Released
    | Failed
    | Lost
    | Ended
    | Withdraw
    | Close
)

# Actions


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is answered, with its turn."""

    turn: int


@dataclass(frozen=True, slots=True)
class Register(Step):
    """Make the registration: answer with `Registered` or `Failed`."""


@dataclass(frozen=True, slots=True)
class Look(Step):
    """Read the group and plan: answer with `Planned` or `Failed`."""


@dataclass(frozen=True, slots=True)
class Claim(Step):
    """Take what of these is free: answer with `Claimed` or `Failed`."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class AwaitFree:
    """Say `Freed` when one of these is let go; it may be said never, or more than once."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Linger:
    """Say `Lingered` after a moment."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A generation begins, with these partitions."""

    number: int
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Stop(Step):
    """The generation is to end: answer with `Stopped`. What is `moving` will be released then."""

    moving: Partitions


@dataclass(frozen=True, slots=True)
class Release(Step):
    """Give these up: answer with `Released` or `Failed`."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Drop:
    """These are lost, and the generation has ended, if there is one: whoever works in it is told so. There is no
    answer."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Deregister(Step):
    """Give up everything, and the registration: answer with `Released` or `Failed`."""


Action: TypeAlias = Register | Look | Claim | AwaitFree | Linger | Begin | Stop | Release | Drop | Deregister


class _Patience(Enum):
    """With others who hold what this member is to have: it waits a moment, and then works on what there is."""

    FRESH = "fresh"
    WAITING = "waiting"
    OVER = "over"


class Rebalance:
    """One member. `receive` takes an event and returns what is to be done, in that order.

    An event that has no meaning in the state it meets changes nothing: watches fire late, and answers of a lost session
    arrive after its end.

    >>> member, orders = Rebalance(), frozenset({TopicPartition("orders", 0)})
    >>> member.receive(Open())
    [Register(turn=1)]
    >>> member.receive(Registered(1))
    [Look(turn=2)]
    >>> member.receive(Planned(2, 7, orders)) == [Claim(3, orders)]
    True
    >>> member.receive(Claimed(3, orders)) == [Begin(7, orders)], member.state
    (True, <State.IDLE: 'Idle'>)
    """

    def __init__(self) -> None:
        self.state = State.OUT
        self.held: Partitions = NOTHING
        self.wanted: Partitions = NOTHING
        self.waiting: Partitions = NOTHING
        """What it is to have, and others hold."""
        self.running: Partitions | None = None
        """What the generation has; None while there is none."""
        self.number = 0
        """Of the plan that is followed; it never falls."""
        self._turn = 0
        self._asked: Partitions = NOTHING
        self._again = False  # something has changed since the group was last read
        self._over = False  # the generation has ended by itself
        self._goal: State | None = None  # what it is on its way to: out of the group, or closed
        self._leave_it = False  # the group is left as it is
        self._patience = _Patience.FRESH

    @property
    def settled(self) -> bool:
        """Whether it has what it is to have, and works on it."""
        return self.state is State.IDLE and not self._again and self.held == self.wanted == (self.running or NOTHING)

    @property
    def leaving(self) -> bool:
        """Whether it is on its way out of the group."""
        return self._goal is not None

    def receive(self, event: Event) -> list[Action]:
        """What is to be done now that this has happened."""
        if isinstance(event, Answer) and event.turn != self._turn:
            return []
        transition = TRANSITIONS.get((self.state, type(event)))
        return [] if transition is None else transition(self, event)

    def _step(self, kind: Callable[..., Action], *details: Partitions) -> Action:
        self._turn += 1
        return kind(self._turn, *details)

    # Coming and going

    def _open(self, _event: Event) -> list[Action]:
        self.state = State.JOINING
        return [self._step(Register)]

    def _look(self, _event: Event) -> list[Action]:
        """Read the group, unless there is no use in it any more."""
        if self._goal is not None:
            return self._leave()
        self.state, self._again = State.LOOKING, False
        return [self._step(Look)]

    def _register_again(self, event: Event) -> list[Action]:
        return self._leave() if self._goal is not None else self._open(event)

    def _note(self, _event: Event) -> list[Action]:
        """The step that is under way comes first."""
        self._again = True
        return []

    def _lost(self, _event: Event) -> list[Action]:
        """Everything is void at once. A member that goes on begins anew, in a new session."""
        lost: list[Action] = [Drop(self.held)] if self.held or self.running is not None else []
        self.held = self.wanted = self.waiting = self._asked = NOTHING
        self.running = None
        self._again, self._over, self._patience = False, False, _Patience.FRESH
        if self._goal is not None:
            self.state, self._goal = self._goal, None
            return lost
        self.state = State.JOINING
        return [*lost, self._step(Register)]

    def _close(self, event: Close) -> list[Action]:
        """Whatever is under way is waited for; what it grants is given back with the rest."""
        self._goal, self._leave_it = State.CLOSED, not event.leave
        return self._leave() if self.state is State.IDLE else []

    def _withdraw(self, _event: Event) -> list[Action]:
        self._goal = self._goal or State.OUT
        return self._leave() if self.state is State.IDLE else []

    def _leave(self) -> list[Action]:
        if self.running is not None:
            self.state = State.STOPPING
            return [self._step(Stop, self.held)]
        if self._leave_it:
            return self._left(None)
        self.state = State.LEAVING
        return [self._step(Deregister)]

    def _never_came(self, _event: Event) -> list[Action]:
        self.state = State.CLOSED
        return []

    def _left(self, _event: Event | None) -> list[Action]:
        self.state, self._goal = self._goal or State.CLOSED, None
        self.held = self.wanted = self.waiting = NOTHING
        self._again, self._over, self._patience = False, False, _Patience.FRESH
        return []

    # One step after the other

    def _planned(self, event: Planned) -> list[Action]:
        """No other step is under way, so that what the server says is how it is: also of what somebody took away, and
        of what was asked for and never answered."""
        self.number = max(self.number, event.number)
        self.wanted, self.held = event.wanted, event.mine
        known, self.waiting = self.waiting, (event.taken & self.wanted) - self.held
        to_await = self.waiting - known
        return [*self._taken_away(), *([AwaitFree(to_await)] if to_await else []), *self._next()]

    def _taken_away(self) -> list[Action]:
        lost = (self.running or NOTHING) - self.held
        if not lost:
            return []
        self.running = None
        return [Drop(lost)]

    def _claimed(self, event: Claimed) -> list[Action]:
        granted = event.partitions & self._asked
        refused = self._asked - granted
        self.held |= granted
        self._asked = NOTHING
        self.waiting |= refused
        return [*([AwaitFree(refused)] if refused else []), *self._next()]

    def _stopped(self, _event: Event) -> list[Action]:
        self.running, self._over = None, False
        return self._next()

    def _ended(self, _event: Event) -> list[Action]:
        self._over = self.running is not None
        return self._next() if self.state is State.IDLE else []

    def _released(self, _event: Event) -> list[Action]:
        self.held -= self._asked
        self._asked = NOTHING
        return self._next()

    def _failed(self, _event: Event) -> list[Action]:
        """It may have happened all the same."""
        self._asked = NOTHING
        self._again = True
        return self._next()

    def _freed(self, event: Freed) -> list[Action]:
        if not event.partitions & self.waiting:
            return []
        self.waiting -= event.partitions
        return self._next() if self.state is State.IDLE else []

    def _go_on(self, _event: Event) -> list[Action]:
        if self._patience is _Patience.WAITING:
            self._patience = _Patience.OVER
        return self._next() if self.state is State.IDLE else []

    def _next(self) -> list[Action]:
        """The next step towards having what is wanted."""
        if self._goal is not None:
            return self._leave()
        if self._again:
            return self._look(Changed())
        if surplus := self.held - self.wanted:
            return self._give_up(surplus)
        if free := self.wanted - self.held - self.waiting:
            self.state, self._asked = State.CLAIMING, free
            return [self._step(Claim, free)]
        return self._settle()

    def _give_up(self, surplus: Partitions) -> list[Action]:
        if self.running is not None:
            self.state = State.STOPPING
            return [self._step(Stop, surplus)]
        self.state, self._asked = State.RELEASING, surplus
        return [self._step(Release, surplus)]

    def _settle(self) -> list[Action]:
        """Nothing more can be had at this moment: work on what there is, after a moment's patience with the others."""
        self.state = State.IDLE
        if self._over:
            self.state = State.STOPPING
            return [self._step(Stop, NOTHING)]
        if self.held == (self.running or NOTHING):
            return []
        if self.waiting and self._patience is not _Patience.OVER:
            begun, self._patience = self._patience, _Patience.WAITING
            return [Linger()] if begun is _Patience.FRESH else []
        if self.running is not None:
            self.state = State.STOPPING
            return [self._step(Stop, NOTHING)]
        self.running, self._patience = self.held, _Patience.FRESH
        return [Begin(self.number, self.held)]


Transition: TypeAlias = Callable[[Rebalance, Any], list[Action]]

_BUSY: Final = (State.JOINING, State.LOOKING, State.STOPPING, State.RELEASING, State.CLAIMING)
_ALIVE: Final = (*_BUSY, State.IDLE, State.LEAVING)

TRANSITIONS: Final[Mapping[tuple[State, type], Transition]] = {
    (State.OUT, Open): Rebalance._open,
    (State.OUT, Close): Rebalance._never_came,
    (State.JOINING, Registered): Rebalance._look,
    (State.JOINING, Failed): Rebalance._register_again,
    (State.LOOKING, Planned): Rebalance._planned,
    (State.LOOKING, Failed): Rebalance._look,
    (State.STOPPING, Stopped): Rebalance._stopped,
    (State.RELEASING, Released): Rebalance._released,
    (State.RELEASING, Failed): Rebalance._failed,
    (State.CLAIMING, Claimed): Rebalance._claimed,
    (State.CLAIMING, Failed): Rebalance._failed,
    (State.IDLE, Changed): Rebalance._look,
    (State.LEAVING, Released): Rebalance._left,
    (State.LEAVING, Failed): Rebalance._left,  # what is left ends with the session
    **{(state, Changed): Rebalance._note for state in _BUSY},
    **{(state, Freed): Rebalance._freed for state in (*_BUSY, State.IDLE)},
    **{(state, Lingered): Rebalance._go_on for state in (*_BUSY, State.IDLE)},
    **{(state, Ended): Rebalance._ended for state in (*_BUSY, State.IDLE)},
    **{(state, Lost): Rebalance._lost for state in _ALIVE},
    **{(state, Withdraw): Rebalance._withdraw for state in _ALIVE},
    **{(state, Close): Rebalance._close for state in _ALIVE},
}
"""What happens in which state on which event. What is not here changes nothing."""
