"""A group as a value: for describing it to clients, and for programs that use the coordinator as a library."""

from __future__ import annotations

from dataclasses import dataclass

from ..storage.work import StoredGroup
from ..values.answers import DescribedGroup, DescribedMember
from ..values.kafka_errors import KafkaError
from .group import Group, GroupState
from .members import MemberState


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member of a group.

    - `member_id`, `instance_id`: its ids.
    - `state`: its state.
    - `client_id`, `client_host`: its client.
    - `session_timeout`, `rebalance_timeout`: its timeouts, in seconds.
    - `metadata`: its subscription for the protocol of the group.
    - `assignment`: its last assignment.
    """

    member_id: str
    state: MemberState
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout: float = 0.0
    rebalance_timeout: float = 0.0
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group with its members.

    - `group`, `state`, `since`: the name, the state, and the time at which this state began.
    - `generation`, `protocol_type`, `protocol`, `leader`: those of the last generation.
    - `members`: in the order in which they joined. Pending and leaving members come last.
    """

    group: str
    state: GroupState
    since: float
    generation: int
    protocol_type: str
    protocol: str | None
    leader: str
    members: tuple[MemberMetadata, ...]


def metadata_of(group: Group) -> GroupMetadata:
    members = [
        MemberMetadata(
            member.id,
            group.state_of(member.id) or MemberState.STABLE,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout,
            member.rebalance_timeout,
            member.metadata(group.protocol),
            member.assignment,
        )
        for member in group.members
    ]
    members += [MemberMetadata(id, MemberState.PENDING) for id in sorted(group.members.pending_ids)]
    members += [MemberMetadata(id, MemberState.LEAVING) for id in sorted(group.leaving)]
    return GroupMetadata(
        group.name,
        group.state,
        group.since,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader if len(group.members) else "",
        tuple(members),
    )


def described(name: str, group: Group | None, stored: StoredGroup | KafkaError | None) -> DescribedGroup:
    """Describe a group for clients, with the members of other clients, which `stored` contains.

    Subscriptions and assignments of the coordinator's members are shown only while the group is stable.
    """
    if isinstance(stored, KafkaError):
        return DescribedGroup(name, stored)
    if group is None or not len(group.members):
        return _described_as_stored(name, group, stored)
    stable = group.state is GroupState.STABLE
    own = tuple(
        DescribedMember(
            member.id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(group.protocol) if stable else b"",
            member.assignment if stable else b"",
        )
        for member in group.members
    )
    protocol = group.protocol or "" if stable else ""
    members = own + (stored.members if stored is not None else ())
    return DescribedGroup(name, KafkaError.NONE, group.state, group.protocol_type, protocol, members)


def _described_as_stored(name: str, group: Group | None, stored: StoredGroup | None) -> DescribedGroup:
    if stored is not None and stored.members:
        return DescribedGroup(
            name, KafkaError.NONE, stored.state, stored.protocol_type, stored.protocol, stored.members
        )
    if group is not None:
        return DescribedGroup(name, KafkaError.NONE, group.state, group.protocol_type)
    if stored is not None:
        return DescribedGroup(name, KafkaError.NONE, stored.state, stored.protocol_type, stored.protocol)
    return DescribedGroup(name, KafkaError.NONE, GroupState.DEAD)
