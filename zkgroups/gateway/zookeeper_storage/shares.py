"""Compute the share of each member of a group, including the members of other clients. Pure: no I/O.

While other clients take part, all members must compute the same shares. So the gateway uses the strategy that a
zkgroups member would choose in this group, and its shares are exactly Scala's. Without other clients, it uses the
strategy of the Kafka clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...coordinator.storage.strategies import assign_partitions
from ...coordinator.storage.work import PlannedMember
from ...core.rebalance.assignors import ASSIGNORS
from ...core.rebalance.roster import Roster
from ...core.rebalance.shared_plan import agreed_strategy
from ...core.znodes.topic_partition import TopicPartition

Partitions = frozenset[TopicPartition]

ANNOUNCED = ("range", "roundrobin")
"""The strategies in the registrations of a gateway's members. Not `sticky`: one of them would have to write plans."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The partitions of this gateway's members, by instance id, and those of the members of other clients."""

    own: Mapping[str, Partitions]
    foreign: Partitions


def has_foreign(roster: Roster, own: Mapping[str, object]) -> bool:
    """Return whether members of other clients take part."""
    return any(id not in own for id in roster.participants)


def compute_shares(roster: Roster, own: Mapping[str, PlannedMember], strategy: str, foreign_assignor: str) -> Shares:
    """Assign all partitions of the roster. `own` has the members of this gateway, by instance id."""
    if not has_foreign(roster, own):
        return Shares(assign_partitions(strategy, own, roster.partitions), frozenset())
    agreed = agreed_strategy(roster.participants, foreign=foreign_assignor)
    shares: dict[str, set[TopicPartition]] = {id: set() for id in own}
    foreign: set[TopicPartition] = set()
    for at, stream in ASSIGNORS[agreed](roster.members()).items():
        shares.get(stream.instance, foreign).add(at)
    return Shares({id: frozenset(some) for id, some in shares.items()}, frozenset(foreign))
