"""Checks of a request against a group, before it becomes an event of the group. The order of the checks is Kafka's."""

from __future__ import annotations

from ..group.events import MemberIdRequested, MemberJoined, MemberRejoined, StaticMemberReturned
from ..group.group import Group, GroupState
from ..values.kafka_errors import KafkaError
from ..values.requests import CommitRequest, HeartbeatRequest, JoinRequest, SyncRequest


def check_member(group: Group, member_id: str, instance_id: str | None) -> KafkaError:
    """Check that a member is in the group. A static member is fenced if another client has taken its instance id."""
    if instance_id is not None:
        current = group.members.static_ids.get(instance_id)
        if current is not None and current != member_id:
            return KafkaError.FENCED_INSTANCE_ID
        if current is None:
            return KafkaError.UNKNOWN_MEMBER_ID
    return KafkaError.NONE if member_id in group.members else KafkaError.UNKNOWN_MEMBER_ID


def check_heartbeat(group: Group, request: HeartbeatRequest) -> KafkaError:
    """Check that a heartbeat comes from a member of the current generation."""
    return check_member(group, request.member_id, request.instance_id) or _check_generation(group, request.generation)


def check_sync(group: Group, request: SyncRequest) -> KafkaError:
    """Check that a sync request comes from a member of the current generation, and names its protocol."""
    error = check_member(group, request.member_id, request.instance_id) or _check_generation(group, request.generation)
    if error:
        return error
    same_type = request.protocol_type in (None, group.protocol_type)
    same_protocol = request.protocol is None or group.protocol == request.protocol
    return KafkaError.NONE if same_type and same_protocol else KafkaError.INCONSISTENT_GROUP_PROTOCOL


def check_commit(group: Group, request: CommitRequest) -> KafkaError:
    """Check that offsets are committed by a member of the current generation, or that the group has no members.

    A commit without a generation comes from a simple consumer, or from an administrator.
    """
    if request.generation < 0 and group.state is GroupState.EMPTY:
        return KafkaError.NONE
    return check_member(group, request.member_id, request.instance_id) or _check_generation(group, request.generation)


def _check_generation(group: Group, generation: int) -> KafkaError:
    return KafkaError.NONE if generation == group.generation else KafkaError.ILLEGAL_GENERATION


def admit(
    group: Group, request_id: int, request: JoinRequest
) -> KafkaError | MemberIdRequested | MemberJoined | MemberRejoined | StaticMemberReturned:
    """Return the event of the group for a join request, or the error that refuses it."""
    if not _has_room(group, request.member_id):
        return KafkaError.GROUP_MAX_SIZE_REACHED
    if not group.members.can_admit(request.protocol_type, request.protocols):
        return KafkaError.INCONSISTENT_GROUP_PROTOCOL
    if not request.member_id:
        return _admit_new(group, request_id, request)
    if request.member_id in group.members.pending_ids and request.instance_id is None:
        return MemberJoined(request_id, request, request.member_id)
    return check_member(group, request.member_id, request.instance_id) or MemberRejoined(request_id, request)


def _admit_new(
    group: Group, request_id: int, request: JoinRequest
) -> MemberIdRequested | MemberJoined | StaticMemberReturned:
    if request.instance_id is not None:
        if request.instance_id in group.members.static_ids:
            return StaticMemberReturned(request_id, request)
    elif request.requires_known_member_id:
        return MemberIdRequested(request_id, request)
    return MemberJoined(request_id, request, new_member_id(group, request))


def new_member_id(group: Group, request: JoinRequest) -> str:
    """Return a new unique id. It begins with the instance id or the client id."""
    return f"{request.client_id if request.instance_id is None else request.instance_id}-{group.outbox.new_id()}"


def _has_room(group: Group, member_id: str) -> bool:
    """True if a member may join. If the group is full during a rebalance, the members that join first are accepted."""
    limit = group.config.max_members
    member = group.members.get(member_id)
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            return (member is not None and member.parked_join is not None) or group.members.joined_count < limit
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            return member is not None or len(group.members) < limit
    return True
