"""One group: its state, and the few operations from which the rules are built.

Empty                 no members; offsets may be committed by simple consumers
PreparingRebalance    join requests are parked until all members have joined, or until a deadline
CompletingRebalance   a generation has begun; sync requests are parked until its assignments are stored
Stable                every member has its assignment, or can ask for it
Dead                  deleted, expired or moved; nothing happens any more
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from ..config import AssignmentBy
from ..deadlines import DeadlineKey, DeadlineKind
from ..outbox import Outbox
from ..values.answers import JoinAnswer, JoinedMember, SyncAnswer
from ..values.consumer_protocol import CONSUMER
from ..values.kafka_errors import KafkaError
from .events import GroupEvent
from .members import Member, Members, MemberState


class GroupState(StrEnum):
    """The state of a group, in Kafka's words; the table is at the top of this file."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


MAY_COME_AFTER = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState) - {GroupState.DEAD},
}
"""For each state, the states that may come directly before it."""


Transitions: TypeAlias = "Mapping[tuple[GroupState, type], Callable[[Group, Any], None]]"
"""The rule for each event in each state."""


class Group:
    """A group of this coordinator. Only the rules change it: see `rules/transitions.py`."""

    def __init__(
        self, name: str, outbox: Outbox, transitions: Transitions, generation: int = 0, protocol_type: str = ""
    ) -> None:
        self.name = name
        self._transitions = transitions
        self.outbox = outbox
        self.config = outbox.config
        self.state = GroupState.EMPTY
        self.since = outbox.time
        """The time at which the state began."""
        self.generation = generation
        self.protocol: str | None = None
        self.members = Members()
        self.members.protocol_type = protocol_type
        self.topics: frozenset[str] | None = None
        """The topics to which the members of the generation subscribe; None if they are unknown."""
        self.exists = False
        """True if the storage knows the group, a member has joined, or an offset was committed."""
        self.leaving: set[str] = set()
        """Removed members that the storage is still releasing."""
        self.more_members_came = False
        """True if members have joined during the initial delay, which is extended then."""
        self.initial_delay_left = 0.0

    def __repr__(self) -> str:
        return f"<Group {self.name} {self.state} generation={self.generation} members={len(self.members)}>"

    def receive(self, event: GroupEvent) -> None:
        """Process an event with the rule for this state. An event without a rule is ignored."""
        if (rule := self._transitions.get((self.state, type(event)))) is not None:
            rule(self, event)

    @property
    def protocol_type(self) -> str:
        return self.members.protocol_type

    def change_state(self, state: GroupState) -> None:
        assert self.state in MAY_COME_AFTER[state], (self, state)
        self.state, self.since = state, self.outbox.time

    def state_of(self, member_id: str) -> MemberState | None:
        """The state of a member; None if the group does not know it."""
        if (member := self.members.get(member_id)) is not None:
            if member.parked_join is not None:
                return MemberState.JOINING
            completing = self.state is GroupState.COMPLETING_REBALANCE
            return MemberState.AWAITING_SYNC if completing or member.must_sync else MemberState.STABLE
        if member_id in self.members.pending_ids:
            return MemberState.PENDING
        return MemberState.LEAVING if member_id in self.leaving else None

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics to which members subscribe; None if a subscription cannot be read."""
        if self.protocol_type != CONSUMER:
            return None
        topics: frozenset[str] = frozenset()
        for member in self.members:
            subscription = member.subscription(self.protocol)
            if subscription is None:
                return None
            topics |= subscription.topics
        return topics

    # Deadlines

    def set_deadline(self, kind: DeadlineKind, delay: float, owner: str = "") -> None:
        self.outbox.deadlines.set(DeadlineKey(kind, self.name, owner), self.outbox.time + delay)

    def has_deadline(self, kind: DeadlineKind) -> bool:
        return self.outbox.deadlines.time_of(DeadlineKey(kind, self.name)) is not None

    def shorten_deadline(self, kind: DeadlineKind, delay: float) -> None:
        """Move a deadline to an earlier time. Do nothing if it is not set, or is earlier already."""
        time = self.outbox.deadlines.time_of(DeadlineKey(kind, self.name))
        if time is not None and self.outbox.time + delay < time:
            self.set_deadline(kind, delay)

    def cancel_deadline(self, kind: DeadlineKind, owner: str = "") -> None:
        self.outbox.deadlines.cancel(DeadlineKey(kind, self.name, owner))

    def cancel_all_deadlines(self) -> None:
        for kind in DeadlineKind:
            self.cancel_deadline(kind)
        for member in self.members:
            self.cancel_deadline(DeadlineKind.SESSION, member.id)
        for member_id in self.members.pending_ids:
            self.cancel_deadline(DeadlineKind.PENDING_ID, member_id)

    def renew_session(self, member: Member) -> None:
        """Restart the session timeout of a member."""
        self.set_deadline(DeadlineKind.SESSION, member.session_timeout, member.id)

    # Parked requests

    def answer_join(self, member: Member, answer: JoinAnswer) -> None:
        """Answer the parked join request of a member, if it has one."""
        if member.parked_join is not None:
            self.outbox.answer(member.parked_join, answer)
            member.parked_join = None

    def answer_sync(self, member: Member, answer: SyncAnswer) -> None:
        """Answer the parked sync request of a member, if it has one."""
        if member.parked_sync is not None:
            self.outbox.answer(member.parked_sync, answer)
            member.parked_sync = None

    def answer_parked(self, member: Member, error: KafkaError, member_id: str = "") -> None:
        """Answer all parked requests of a member with an error."""
        self.answer_join(member, JoinAnswer(error, member_id))
        self.answer_sync(member, SyncAnswer(error))

    def park_join(self, member: Member, request_id: int) -> None:
        """Park a join request. Older parked requests of the member get an error: their connection is gone."""
        self.answer_parked(member, KafkaError.REBALANCE_IN_PROGRESS, member.id)
        member.parked_join = request_id

    def park_sync(self, member: Member, request_id: int) -> None:
        """Park a sync request. Older parked requests of the member get an error: their connection is gone."""
        self.answer_parked(member, KafkaError.REBALANCE_IN_PROGRESS, member.id)
        member.parked_sync = request_id

    def generation_answer(self, member: Member) -> JoinAnswer:
        """Return the answer to a join request: the current generation, and for the leader all members."""
        leads = self.leader == member.id
        return JoinAnswer(
            KafkaError.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            self.joined_members() if leads else (),
        )

    def assignment_answer(self, member: Member) -> SyncAnswer:
        """Return the answer to a sync request."""
        return SyncAnswer(KafkaError.NONE, member.assignment, self.protocol_type, self.protocol)

    @property
    def leader(self) -> str:
        """The leader that clients see."""
        return self.config.leader_name if self.coordinator_assigns else self.members.leader or ""

    @property
    def coordinator_assigns(self) -> bool:
        """True if the coordinator assigns the partitions. It can do so only for consumers."""
        return self.config.assignment_by is AssignmentBy.COORDINATOR and self.protocol_type == CONSUMER

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(JoinedMember(each.id, each.instance_id, each.metadata(self.protocol)) for each in self.members)
