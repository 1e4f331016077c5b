"""The strategies by which a coordinator assigns partitions to Kafka's clients. zkgroups members use the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.rebalance.assignors import ASSIGNORS
from ...core.rebalance.members import Members
from ...core.rebalance.range import range_assignor
from ...core.rebalance.sticky import sticky_assignor
from ...core.znodes.topic_partition import TopicPartition
from .work import PlannedMember

BY_KAFKAS_NAME = {**ASSIGNORS, "cooperative-sticky": sticky_assignor}
"""The strategies by the names under which Kafka's clients offer them."""


def assign_partitions(
    strategy: str, members: Mapping[str, PlannedMember], partitions: Mapping[str, int | Sequence[int]]
) -> dict[str, frozenset[TopicPartition]]:
    """Assign all partitions of the topics to which members subscribe. An unknown strategy counts as `range`.

    `partitions` has the number of partitions of each topic, or the list of their numbers. The sticky strategies leave a
    partition with its owner: the member that listed it when it joined, or else the member that had it before.

    >>> from zkgroups.coordinator.values.consumer_protocol import Subscription
    >>> alike = PlannedMember(Subscription(frozenset({"orders"})))
    >>> shares = assign_partitions("range", {"a": alike, "b": alike}, {"orders": 3})
    >>> {member: sorted(at.partition for at in share) for member, share in shares.items()}
    {'a': [0, 1], 'b': [2]}
    """
    streams = {id: dict.fromkeys(member.subscription.topics, 1) for id, member in members.items()}
    numbers = {topic: range(some) if isinstance(some, int) else some for topic, some in partitions.items()}
    owners = {at: id for id, member in members.items() for at in member.previous}
    owners |= {at: id for id, member in members.items() for at in member.subscription.owned}
    assigned = BY_KAFKAS_NAME.get(strategy, range_assignor)(Members(streams, numbers, owners))
    shares: dict[str, set[TopicPartition]] = {id: set() for id in members}
    for at, stream in assigned.items():
        shares[stream.instance].add(at)
    return {id: frozenset(share) for id, share in shares.items()}
