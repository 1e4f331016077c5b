"""When a member leaves, the other members rebalance."""

from __future__ import annotations

from ..group.events import GroupDropped, MemberLeft, PendingIdDropped
from ..group.group import Group, GroupState
from ..group.members import Member
from .rebalancing import begin_or_continue, continue_if_all_joined
from .removing import drop_pending_id, remove_members


def leave(group: Group, event: MemberLeft) -> None:
    remove_and_rebalance(group, group.members[event.member_id])


def remove_and_rebalance(group: Group, member: Member) -> None:
    """Remove a member, and let the others share its partitions."""
    remove_members(group, [member])
    begin_or_continue(group)


def forget_id(group: Group, event: PendingIdDropped) -> None:
    """Forget an id that is not in use."""
    drop_pending_id(group, event.member_id)


def forget_id_and_continue(group: Group, event: PendingIdDropped) -> None:
    """Forget an id that is not in use, and continue the rebalance if it waited only for this id."""
    drop_pending_id(group, event.member_id)
    continue_if_all_joined(group)


def drop_group(group: Group, event: GroupDropped) -> None:
    """Answer all parked requests with the error. The group is dead from now on."""
    for member in group.members:
        group.answer_parked(member, event.error, member.id)
    group.cancel_all_deadlines()
    group.change_state(GroupState.DEAD)
