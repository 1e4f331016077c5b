"""The table of all rules: the function that handles an event in a state. An event without a rule is ignored."""

from __future__ import annotations

from typing import Final

from .generation_rules import (
    begin_on_request,
    commit,
    end_initial_delay,
    end_joining,
    end_stuck_rebalance,
    fail_generation,
    limit_joining,
    lose_members,
    refuse_commit,
    store_assigned,
)
from .group import GroupState, Transitions
from .group_events import (
    CommitReceived,
    GenerationFailed,
    GenerationReady,
    GroupDropped,
    HeartbeatReceived,
    InitialDelayElapsed,
    JoinTimedOut,
    MemberExpired,
    MemberIdRequested,
    MemberJoined,
    MemberLeft,
    MemberRejoined,
    MembersLost,
    MemberSynced,
    PartitionsAssigned,
    PendingIdDropped,
    RebalanceRequested,
    RebalanceStuck,
    ReplacementStored,
    StaticMemberReturned,
    SyncTimedOut,
)
from .join_rules import (
    add_member,
    answer_replacement,
    await_assignment,
    become_stable,
    call_to_join,
    confirm,
    drop_group,
    expire_member,
    forget_id,
    forget_id_and_continue,
    give_assignment,
    give_id,
    leave,
    refuse_sync,
    rejoin,
    rejoin_or_repeat,
    rejoin_or_repeat_to_follower,
    remove_unsynced,
    replace_and_rebalance,
    replace_quietly,
)

_EMPTY: Final = GroupState.EMPTY
_PREPARING: Final = GroupState.PREPARING_REBALANCE
_COMPLETING: Final = GroupState.COMPLETING_REBALANCE
_STABLE: Final = GroupState.STABLE
_WITH_MEMBERS: Final = (_PREPARING, _COMPLETING, _STABLE)
_ALIVE: Final = (_EMPTY, *_WITH_MEMBERS)

TRANSITIONS: Final[Transitions] = {
    **{(state, MemberIdRequested): give_id for state in _ALIVE},
    **{(state, MemberJoined): add_member for state in _ALIVE},
    (_PREPARING, MemberRejoined): rejoin,
    (_COMPLETING, MemberRejoined): rejoin_or_repeat,
    (_STABLE, MemberRejoined): rejoin_or_repeat_to_follower,
    (_PREPARING, StaticMemberReturned): replace_and_rebalance,
    (_COMPLETING, StaticMemberReturned): replace_and_rebalance,
    (_STABLE, StaticMemberReturned): replace_quietly,
    (_PREPARING, MemberSynced): refuse_sync,
    (_COMPLETING, MemberSynced): await_assignment,
    (_STABLE, MemberSynced): give_assignment,
    (_PREPARING, HeartbeatReceived): call_to_join,
    (_COMPLETING, HeartbeatReceived): confirm,
    (_STABLE, HeartbeatReceived): confirm,
    (_EMPTY, CommitReceived): commit,
    (_PREPARING, CommitReceived): commit,
    (_COMPLETING, CommitReceived): refuse_commit,
    (_STABLE, CommitReceived): commit,
    **{(state, MemberLeft): leave for state in _WITH_MEMBERS},
    **{(state, MemberExpired): expire_member for state in _WITH_MEMBERS},
    (_EMPTY, PendingIdDropped): forget_id,
    (_PREPARING, PendingIdDropped): forget_id_and_continue,
    (_COMPLETING, PendingIdDropped): forget_id,
    (_STABLE, PendingIdDropped): forget_id,
    (_PREPARING, InitialDelayElapsed): end_initial_delay,
    (_PREPARING, JoinTimedOut): end_joining,
    (_COMPLETING, SyncTimedOut): remove_unsynced,
    (_STABLE, SyncTimedOut): remove_unsynced,
    (_PREPARING, RebalanceStuck): end_stuck_rebalance,
    (_COMPLETING, RebalanceStuck): end_stuck_rebalance,
    (_COMPLETING, PartitionsAssigned): store_assigned,
    (_COMPLETING, GenerationReady): become_stable,
    (_COMPLETING, GenerationFailed): fail_generation,
    (_STABLE, ReplacementStored): answer_replacement,
    (_PREPARING, RebalanceRequested): limit_joining,
    (_COMPLETING, RebalanceRequested): begin_on_request,
    (_STABLE, RebalanceRequested): begin_on_request,
    **{(state, MembersLost): lose_members for state in _WITH_MEMBERS},
    **{(state, GroupDropped): drop_group for state in _ALIVE},
}
