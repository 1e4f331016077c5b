"""The assignments of a generation. The leader or the storage makes them, and members get them after they are stored.

With cooperative members, a partition moves in two generations:

1. The old owner lists the partition when it joins. So the first generation assigns the partition to nobody. The old
   owner sees this, and gives it up.
2. The old owner joins again, without the partition. The second generation assigns it to the new owner.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...core.znodes.topic_partition import TopicPartition
from ..group.events import GenerationFailed, GenerationReady, PartitionsAssigned
from ..group.group import Group
from ..group.stored_members import stored_members
from ..storage.work import AssignmentMade, PerformAssignment, PlannedMember, Result, StoreGeneration, WorkFailed
from ..values.consumer_protocol import Subscription, decode_assignment, encode_assignment
from ..values.kafka_errors import KafkaError


def request_assignment(group: Group) -> None:
    """Let the storage assign partitions to all members."""
    generation = group.generation
    members = {
        member.id: PlannedMember(
            member.subscription(group.protocol) or Subscription(frozenset()),
            decode_assignment(member.assignment) or frozenset(),
            member.instance_id,
            member.client_id,
            member.client_host,
        )
        for member in group.members
    }

    def assigned(result: Result) -> None:
        if isinstance(result, AssignmentMade):
            group.receive(PartitionsAssigned(generation, result.partitions))
        else:
            group.receive(GenerationFailed(generation, _error_of(result)))

    work = PerformAssignment(group.name, generation, group.protocol or "", members)
    group.outbox.start(work, assigned, timeout=_time_for_assigning(group))


def store_assigned(group: Group, event: PartitionsAssigned) -> None:
    """Store the generation with the partitions that each member may have now."""
    if event.generation == group.generation:
        owned = {member.id: _owned(group, member.id) for member in group.members}
        allowed = withhold_owned(event.partitions, owned)
        store_generation(group, {member_id: encode_assignment(allowed.get(member_id, ())) for member_id in owned})


def store_generation(group: Group, assignments: Mapping[str, bytes]) -> None:
    """Store the generation. The group becomes stable when this has succeeded."""
    generation = group.generation
    known = {member.id: assignments.get(member.id, b"") for member in group.members}
    work = StoreGeneration(
        group.name, generation, group.protocol_type, group.protocol or "", group.leader, stored_members(group, known)
    )

    def stored(result: Result) -> None:
        if isinstance(result, WorkFailed):
            group.receive(GenerationFailed(generation, result.error))
        else:
            group.receive(GenerationReady(generation, known))

    group.outbox.start(work, stored, timeout=_time_for_assigning(group))


def withhold_owned(
    assigned: Mapping[str, frozenset[TopicPartition]], owned: Mapping[str, frozenset[TopicPartition]]
) -> dict[str, frozenset[TopicPartition]]:
    """Leave out each partition that another member listed as its own when it joined.

    >>> orders = frozenset({TopicPartition("orders", 0)})
    >>> withhold_owned({"new": orders}, {"old": orders, "new": frozenset()})
    {'new': frozenset()}
    >>> withhold_owned({"old": orders}, {"old": orders, "new": frozenset()}) == {"old": orders}
    True
    """
    given = frozenset().union(*assigned.values())
    owners: dict[TopicPartition, set[str]] = {}
    for member_id, partitions in owned.items():
        for at in partitions & given:  # a member may list very many
            owners.setdefault(at, set()).add(member_id)
    return {
        member_id: frozenset(at for at in partitions if owners.get(at, {member_id}) == {member_id})
        for member_id, partitions in assigned.items()
    }


def _owned(group: Group, member_id: str) -> frozenset[TopicPartition]:
    subscription = group.members[member_id].subscription(group.protocol)
    return frozenset() if subscription is None else subscription.owned


def _error_of(result: Result) -> KafkaError:
    return result.error if isinstance(result, WorkFailed) else KafkaError.COORDINATOR_NOT_AVAILABLE


def _time_for_assigning(group: Group) -> float:
    return max(group.config.storage_timeout, group.members.rebalance_timeout)
