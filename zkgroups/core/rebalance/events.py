"""The events that a `Rebalance` receives. A `Reply` carries the turn of the request that it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from ..znodes.topic_partition import TopicPartition

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
