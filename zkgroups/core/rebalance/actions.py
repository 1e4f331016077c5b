"""The actions that a `Rebalance` asks for. A `RebalanceRequest` is answered with an event that carries its turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .events import Partitions


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
