"""The rebalance of one member, as a state machine: events in, actions out, and no clock, thread or server.

The member's loop carries out the actions and reports the results as events. Only one request is under way at a time.
Changes that arrive meanwhile are handled after its answer. An answer carries the turn of its request: an answer that
comes late, or twice, is ignored. All transitions are in the table `TRANSITIONS`.

    Out        not registered
    Joining    registering
    Reading    reading the group and its plan
    Stopping   the workers of the generation stop, and commit their progress
    Releasing  releasing partitions that the plan gives to other members
    Claiming   claiming free partitions
    Idle       waiting for a change, or for other instances to release partitions
    Leaving    deregistering, after the last generation has ended
    Closed     ended

Two rules hold in every state. First, a held partition was granted by the server in this session. It is held no more
once its release is requested: another member may hold it before the answer arrives. Second, a generation has exactly
the partitions that were held when it started: it is stopped before any of them is released, and before a new generation
starts with more. A member whose partitions stay the same is not interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final, TypeAlias

from ..znodes.topic_partition import TopicPartition

# The events that a `Rebalance` receives. A `Reply` carries the turn of the request that it answers.


Partitions: TypeAlias = frozenset[TopicPartition]

NOTHING: Final[Partitions] = frozenset()


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """The member shall join the group."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of the request with this turn."""

    turn: int


@dataclass(frozen=True, slots=True)
class Registered(Reply):
    """The instance was registered, in a session that holds no partitions yet."""


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """Members, topics or the plan may have changed."""


@dataclass(frozen=True, slots=True)
class Planned(Reply):
    """The group was read. `wanted` are the partitions assigned to this member by the plan with this number, `held` the
    partitions that it owns on the server, and `taken` the wanted ones that other instances own."""

    number: int
    wanted: Partitions
    held: Partitions = NOTHING
    taken: Partitions = NOTHING


@dataclass(frozen=True, slots=True)
class Claimed(Reply):
    """The server granted these partitions. The other requested ones are held by other instances."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class PartitionsFreed:
    """Other instances released partitions that this member waits for."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class LingerElapsed:
    """The wait for partitions of other instances is over. The member starts with the partitions that it has."""


@dataclass(frozen=True, slots=True)
class GenerationStopped(Reply):
    """The workers of the generation have ended, or the wait for them timed out."""


@dataclass(frozen=True, slots=True)
class Released(Reply):
    """The release, or the deregistration, is complete."""


@dataclass(frozen=True, slots=True)
class RequestFailed(Reply):
    """The request failed, or its outcome is unknown. The member reads the group again."""


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session has expired, or may have: the member holds no partitions."""


@dataclass(frozen=True, slots=True)
class WorkerFinished:
    """A worker returned, which ends the generation. A new generation starts with the partitions held then."""


@dataclass(frozen=True, slots=True)
class WithdrawRequested:
    """The member shall leave the group until it is asked to join again."""


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The member shall end. With `leave=False` it stays registered and keeps its partitions, for a successor."""

    leave: bool = True


Event: TypeAlias = (
    JoinRequested
    | Registered
    | GroupChanged
    | Planned
    | Claimed
    | PartitionsFreed
    | LingerElapsed
    | GenerationStopped
    | Released
    | RequestFailed
    | SessionLost
    | WorkerFinished
    | WithdrawRequested
    | CloseRequested
)


# The actions that a `Rebalance` asks for. A `RebalanceRequest` is answered with an event that carries its turn.


@dataclass(frozen=True, slots=True)
class RebalanceRequest:
    """An action that is answered with a `Reply`."""

    turn: int


@dataclass(frozen=True, slots=True)
class RegisterInstance(RebalanceRequest):
    """Register the instance. Answer with `Registered` or `RequestFailed`."""


@dataclass(frozen=True, slots=True)
class ReadGroup(RebalanceRequest):
    """Read the group and its plan. Answer with `Planned` or `RequestFailed`."""


@dataclass(frozen=True, slots=True)
class ClaimPartitions(RebalanceRequest):
    """Claim these partitions, as far as they are free. Answer with `Claimed` or `RequestFailed`."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class AwaitRelease:
    """Send `PartitionsFreed` when other instances release these partitions. It may come several times, or never."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class StartLinger:
    """Send `LingerElapsed` after a moment."""


@dataclass(frozen=True, slots=True)
class StartGeneration:
    """Start a generation with these partitions."""

    number: int
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class StopGeneration(RebalanceRequest):
    """Stop the workers of the generation, before the `moving` partitions are released.

    Answer with `GenerationStopped`.
    """

    moving: Partitions


@dataclass(frozen=True, slots=True)
class ReleasePartitions(RebalanceRequest):
    """Release these partitions. Answer with `Released` or `RequestFailed`."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class DropPartitions:
    """These partitions are lost. End the generation if there is one, and report the loss. Not answered."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class DeregisterInstance(RebalanceRequest):
    """Deregister, and release these partitions: all that were held. Answer with `Released` or `RequestFailed`."""

    partitions: Partitions


AnyRequest: TypeAlias = (
    RegisterInstance | ReadGroup | ClaimPartitions | StopGeneration | ReleasePartitions | DeregisterInstance
)

Action: TypeAlias = AnyRequest | AwaitRelease | StartLinger | StartGeneration | DropPartitions


class RebalanceState(StrEnum):
    """The state of a member's rebalance; the table is at the top of this file."""

    OUT = "Out"
    JOINING = "Joining"
    READING = "Reading"
    STOPPING = "Stopping"
    RELEASING = "Releasing"
    CLAIMING = "Claiming"
    IDLE = "Idle"
    LEAVING = "Leaving"
    CLOSED = "Closed"


class _Linger(Enum):
    """The short wait for partitions of other instances, before a generation starts without them."""

    NOT_STARTED = "not started"
    RUNNING = "running"
    OVER = "over"


class Rebalance:
    """The rebalance of one member. `receive` takes an event and returns the actions to carry out, in this order.

    Events without a transition in the current state are ignored: watches fire late, and answers of an expired session
    arrive after its end.

    >>> from zkgroups import TopicPartition
    >>> member, orders = Rebalance(), frozenset({TopicPartition("orders", 0)})
    >>> member.receive(JoinRequested())
    [RegisterInstance(turn=1)]
    >>> member.receive(Registered(1))
    [ReadGroup(turn=2)]
    >>> member.receive(Planned(2, 7, orders)) == [ClaimPartitions(3, orders)]
    True
    >>> member.receive(Claimed(3, orders)) == [StartGeneration(7, orders)], member.state
    (True, <RebalanceState.IDLE: 'Idle'>)
    """

    def __init__(self) -> None:
        self.state = RebalanceState.OUT
        self.held: Partitions = NOTHING
        self.wanted: Partitions = NOTHING
        """The partitions that the plan assigns to this member."""
        self.waiting: Partitions = NOTHING
        """The wanted partitions that other instances hold."""
        self.running: Partitions | None = None
        """The partitions of the generation; None if no generation is running."""
        self.number = 0
        """The number of the current plan; it never decreases."""
        self._turn = 0
        self._to_claim: Partitions = NOTHING
        self._read_again = False  # the group has changed since it was last read
        self._reads_settled = False  # it was settled when it began to read the group
        self._worker_finished = False  # the generation has to be replaced
        self._destination: RebalanceState | None = None  # OUT or CLOSED, if the member is leaving the group
        self._keep_registration = False  # leave without deregistering
        self._linger = _Linger.NOT_STARTED

    @property
    def settled(self) -> bool:
        """True if the member works on exactly the partitions that the plan assigns to it."""
        return self.state is RebalanceState.IDLE and self.held == self.wanted == (self.running or NOTHING)

    @property
    def stable(self) -> bool:
        """True if it is settled, and while it reads the group as long as nothing else is known."""
        has_its_share = self.held == self.wanted == (self.running or NOTHING)
        return self.settled or (self.state is RebalanceState.READING and self._reads_settled and has_its_share)

    @property
    def leaving(self) -> bool:
        """True if the member is leaving the group."""
        return self._destination is not None

    def receive(self, event: Event) -> list[Action]:
        """Process an event, and return the actions to carry out."""
        if isinstance(event, Reply) and event.turn != self._turn:
            return []
        transition = TRANSITIONS.get((self.state, type(event)))
        return [] if transition is None else transition(self, event)

    def _request(self, kind: Callable[..., Action], *details: Partitions) -> Action:
        self._turn += 1
        return kind(self._turn, *details)

    # Joining and leaving

    def _join(self, _event: Event) -> list[Action]:
        self.state = RebalanceState.JOINING
        return [self._request(RegisterInstance)]

    def _read(self, _event: Event) -> list[Action]:
        """Read the group, unless the member is leaving it."""
        if self._destination is not None:
            return self._leave()
        self._reads_settled = self.stable
        self.state, self._read_again = RebalanceState.READING, False
        return [self._request(ReadGroup)]

    def _join_again(self, event: Event) -> list[Action]:
        return self._leave() if self._destination is not None else self._join(event)

    def _read_later(self, _event: Event) -> list[Action]:
        """Finish the current request first."""
        self._read_again = True
        return []

    def _drop_claims(self, _event: Event) -> list[Action]:
        """Drop all claims at once. Then register again, perhaps in a new session, unless the member is leaving.

        A leaving member deregisters: the session may live on, with the registration and the claims.
        """
        lost: list[Action] = [DropPartitions(self.held)] if self.held or self.running is not None else []
        self.held = self.wanted = self.waiting = self._to_claim = NOTHING
        self.running = None
        self._read_again, self._worker_finished, self._linger = False, False, _Linger.NOT_STARTED
        if self._destination is not None:
            return [*lost, *self._leave()]
        self.state = RebalanceState.JOINING
        return [*lost, self._request(RegisterInstance)]

    def _close(self, event: CloseRequested) -> list[Action]:
        """Wait for the current request, and release what it grants together with the rest."""
        self._destination, self._keep_registration = RebalanceState.CLOSED, not event.leave
        return self._leave() if self.state is RebalanceState.IDLE else []

    def _withdraw(self, _event: Event) -> list[Action]:
        self._destination = self._destination or RebalanceState.OUT
        return self._leave() if self.state is RebalanceState.IDLE else []

    def _leave(self) -> list[Action]:
        if self.running is not None:
            self.state = RebalanceState.STOPPING
            return [self._request(StopGeneration, self.held)]
        if self._keep_registration:
            return self._left(None)
        self.state, held, self.held = RebalanceState.LEAVING, self.held, NOTHING
        return [self._request(DeregisterInstance, held)]

    def _close_unjoined(self, _event: Event) -> list[Action]:
        self.state = RebalanceState.CLOSED
        return []

    def _left(self, _event: Event | None) -> list[Action]:
        self.state, self._destination = self._destination or RebalanceState.CLOSED, None
        self.held = self.wanted = self.waiting = NOTHING
        self._read_again, self._worker_finished, self._linger = False, False, _Linger.NOT_STARTED
        return []

    # Following the plan

    def _follow_plan(self, event: Planned) -> list[Action]:
        """Adopt the state on the server. No other request is under way, so it is exact.

        It includes partitions that were taken away, and claims whose answer was lost.
        """
        self.number = max(self.number, event.number)
        self.wanted, self.held = event.wanted, event.held
        known, self.waiting = self.waiting, (event.taken & self.wanted) - self.held
        to_await = self.waiting - known
        return [*self._drop_taken_away(), *([AwaitRelease(to_await)] if to_await else []), *self._next()]

    def _drop_taken_away(self) -> list[Action]:
        lost = (self.running or NOTHING) - self.held
        if not lost:
            return []
        self.running = None
        return [DropPartitions(lost)]

    def _take_granted(self, event: Claimed) -> list[Action]:
        granted = event.partitions & self._to_claim
        refused = self._to_claim - granted
        self.held |= granted
        self._to_claim = NOTHING
        self.waiting |= refused
        return [*([AwaitRelease(refused)] if refused else []), *self._next()]

    def _after_stop(self, _event: Event) -> list[Action]:
        self.running, self._worker_finished = None, False
        return self._next()

    def _replace_generation(self, _event: Event) -> list[Action]:
        self._worker_finished = self.running is not None
        return self._next() if self.state is RebalanceState.IDLE else []

    def _after_release(self, _event: Event) -> list[Action]:
        return self._next()

    def _after_failure(self, _event: Event) -> list[Action]:
        """Read the group: a failed request may have taken effect."""
        self._to_claim = NOTHING
        self._read_again = True
        return self._next()

    def _claim_freed(self, event: PartitionsFreed) -> list[Action]:
        if not event.partitions & self.waiting:
            return []
        self.waiting -= event.partitions
        return self._next() if self.state is RebalanceState.IDLE else []

    def _end_linger(self, _event: Event) -> list[Action]:
        if self._linger is _Linger.RUNNING:
            self._linger = _Linger.OVER
        return self._next() if self.state is RebalanceState.IDLE else []

    def _next(self) -> list[Action]:
        """Take the next step towards the plan."""
        if self._destination is not None:
            return self._leave()
        if self._read_again:
            return self._read(GroupChanged())
        if surplus := self.held - self.wanted:
            return self._give_up(surplus)
        if free := self.wanted - self.held - self.waiting:
            self.state, self._to_claim = RebalanceState.CLAIMING, free
            return [self._request(ClaimPartitions, free)]
        return self._settle()

    def _give_up(self, surplus: Partitions) -> list[Action]:
        if self.running is not None:
            self.state = RebalanceState.STOPPING
            return [self._request(StopGeneration, surplus)]
        self.state = RebalanceState.RELEASING
        self.held -= surplus
        return [self._request(ReleasePartitions, surplus)]

    def _settle(self) -> list[Action]:
        """Work on the held partitions. If some are still missing, linger once before starting without them."""
        self.state = RebalanceState.IDLE
        if self._worker_finished:
            self.state = RebalanceState.STOPPING
            return [self._request(StopGeneration, NOTHING)]
        if self.held == (self.running or NOTHING):
            return []
        if self.waiting and self._linger is not _Linger.OVER:
            before, self._linger = self._linger, _Linger.RUNNING
            return [StartLinger()] if before is _Linger.NOT_STARTED else []
        if self.running is not None:
            self.state = RebalanceState.STOPPING
            return [self._request(StopGeneration, NOTHING)]
        self.running, self._linger = self.held, _Linger.NOT_STARTED
        return [StartGeneration(self.number, self.held)]


Transition: TypeAlias = Callable[[Rebalance, Any], list[Action]]

_S: TypeAlias = RebalanceState
_BUSY: Final = (_S.JOINING, _S.READING, _S.STOPPING, _S.RELEASING, _S.CLAIMING)
_ALIVE: Final = (*_BUSY, _S.IDLE, _S.LEAVING)

TRANSITIONS: Final[Mapping[tuple[RebalanceState, type], Transition]] = {
    (_S.OUT, JoinRequested): Rebalance._join,
    (_S.OUT, CloseRequested): Rebalance._close_unjoined,
    (_S.JOINING, Registered): Rebalance._read,
    (_S.JOINING, RequestFailed): Rebalance._join_again,
    (_S.READING, Planned): Rebalance._follow_plan,
    (_S.READING, RequestFailed): Rebalance._read,
    (_S.STOPPING, GenerationStopped): Rebalance._after_stop,
    (_S.STOPPING, RequestFailed): Rebalance._after_stop,  # the generation has ended, whatever failed after that
    (_S.RELEASING, Released): Rebalance._after_release,
    (_S.RELEASING, RequestFailed): Rebalance._after_failure,
    (_S.CLAIMING, Claimed): Rebalance._take_granted,
    (_S.CLAIMING, RequestFailed): Rebalance._after_failure,
    (_S.IDLE, GroupChanged): Rebalance._read,
    (_S.LEAVING, Released): Rebalance._left,
    (_S.LEAVING, RequestFailed): Rebalance._left,  # the rest ends with the session
    **{(state, GroupChanged): Rebalance._read_later for state in _BUSY},
    **{(state, PartitionsFreed): Rebalance._claim_freed for state in (*_BUSY, _S.IDLE)},
    **{(state, LingerElapsed): Rebalance._end_linger for state in (*_BUSY, _S.IDLE)},
    **{(state, WorkerFinished): Rebalance._replace_generation for state in (*_BUSY, _S.IDLE)},
    **{(state, SessionLost): Rebalance._drop_claims for state in _ALIVE},
    **{(state, WithdrawRequested): Rebalance._withdraw for state in _ALIVE},
    **{(state, CloseRequested): Rebalance._close for state in _ALIVE},
}
"""The method that handles an event in a state. Pairs that are not in the table are ignored."""
