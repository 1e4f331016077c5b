"""The table of all rules: the function that handles an event in a state. An event without a rule is ignored."""

from __future__ import annotations

from typing import Final

from . import generation_rules, join_rules
from . import group_events as events
from .group import GroupState, Transitions

_EMPTY: Final = GroupState.EMPTY
_PREPARING: Final = GroupState.PREPARING_REBALANCE
_COMPLETING: Final = GroupState.COMPLETING_REBALANCE
_STABLE: Final = GroupState.STABLE
_WITH_MEMBERS: Final = (_PREPARING, _COMPLETING, _STABLE)
_ALIVE: Final = (_EMPTY, *_WITH_MEMBERS)

TRANSITIONS: Final[Transitions] = {
    **{(state, events.MemberIdRequested): join_rules.give_id for state in _ALIVE},
    **{(state, events.MemberJoined): join_rules.add_member for state in _ALIVE},
    (_PREPARING, events.MemberRejoined): join_rules.rejoin,
    (_COMPLETING, events.MemberRejoined): join_rules.rejoin_or_repeat,
    (_STABLE, events.MemberRejoined): join_rules.rejoin_or_repeat_to_follower,
    (_PREPARING, events.StaticMemberReturned): join_rules.replace_and_rebalance,
    (_COMPLETING, events.StaticMemberReturned): join_rules.replace_and_rebalance,
    (_STABLE, events.StaticMemberReturned): join_rules.replace_quietly,
    (_PREPARING, events.MemberSynced): join_rules.refuse_sync,
    (_COMPLETING, events.MemberSynced): join_rules.await_assignment,
    (_STABLE, events.MemberSynced): join_rules.give_assignment,
    (_PREPARING, events.HeartbeatReceived): join_rules.call_to_join,
    (_COMPLETING, events.HeartbeatReceived): join_rules.confirm,
    (_STABLE, events.HeartbeatReceived): join_rules.confirm,
    (_EMPTY, events.CommitReceived): generation_rules.commit,
    (_PREPARING, events.CommitReceived): generation_rules.commit,
    (_COMPLETING, events.CommitReceived): generation_rules.refuse_commit,
    (_STABLE, events.CommitReceived): generation_rules.commit,
    **{(state, events.MemberLeft): join_rules.leave for state in _WITH_MEMBERS},
    **{(state, events.MemberExpired): join_rules.expire_member for state in _WITH_MEMBERS},
    (_EMPTY, events.PendingIdDropped): join_rules.forget_id,
    (_PREPARING, events.PendingIdDropped): join_rules.forget_id_and_continue,
    (_COMPLETING, events.PendingIdDropped): join_rules.forget_id,
    (_STABLE, events.PendingIdDropped): join_rules.forget_id,
    (_PREPARING, events.InitialDelayElapsed): generation_rules.end_initial_delay,
    (_PREPARING, events.JoinTimedOut): generation_rules.end_joining,
    (_COMPLETING, events.SyncTimedOut): join_rules.remove_unsynced,
    (_STABLE, events.SyncTimedOut): join_rules.remove_unsynced,
    (_PREPARING, events.RebalanceStuck): generation_rules.end_stuck_rebalance,
    (_COMPLETING, events.RebalanceStuck): generation_rules.end_stuck_rebalance,
    (_COMPLETING, events.PartitionsAssigned): generation_rules.store_assigned,
    (_COMPLETING, events.GenerationReady): join_rules.become_stable,
    (_COMPLETING, events.GenerationFailed): generation_rules.fail_generation,
    (_STABLE, events.ReplacementStored): join_rules.answer_replacement,
    (_PREPARING, events.RebalanceRequested): generation_rules.limit_joining,
    (_COMPLETING, events.RebalanceRequested): generation_rules.begin_on_request,
    (_STABLE, events.RebalanceRequested): generation_rules.begin_on_request,
    **{(state, events.MembersLost): generation_rules.lose_members for state in _WITH_MEMBERS},
    **{(state, events.GroupDropped): join_rules.drop_group for state in _ALIVE},
}
