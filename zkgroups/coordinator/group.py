"""One group: its state, and the few operations from which the rules are built.

Empty                 no members; offsets may be committed by simple consumers
PreparingRebalance    join requests are parked until all members have joined, or until a deadline
CompletingRebalance   a generation has begun; sync requests are parked until its assignments are stored
Stable                every member has its assignment, or can ask for it
Dead                  deleted, expired or moved; nothing happens any more
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from .config import AssignmentBy
from .consumer_protocol import CONSUMER, Subscription, decode_subscription
from .group_events import GroupEvent
from .memory_storage import BY_KAFKAS_NAME
from .outbox import DeadlineKey, DeadlineKind, Outbox
from .storage import StoredGroup, StoredMember
from .values import DescribedGroup, DescribedMember, GroupProtocol, JoinAnswer, JoinedMember, KafkaError, SyncAnswer

# The members of one group, their leader, and the protocols that all of them support.


class MemberState(StrEnum):
    """The state of a member."""

    PENDING = "Pending"
    """It got a member id, and has not joined with it yet."""
    JOINING = "Joining"
    """Its join request is parked."""
    AWAITING_SYNC = "AwaitingSync"
    """It belongs to a generation, and has no assignment yet."""
    STABLE = "Stable"
    """It has its assignment. While the group prepares a rebalance, the group waits for it to join again."""
    LEAVING = "Leaving"
    """It was removed, and the storage is releasing its partitions."""


@dataclass(slots=True, eq=False)
class Member:
    """One member. `parked_join` and `parked_sync` are the ids of its requests that wait for an answer."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: tuple[GroupProtocol, ...]
    parked_join: int | None = None
    parked_sync: int | None = None
    has_had_generation: bool = False
    """False until its first generation. Until then, the client sends no heartbeats."""
    must_sync: bool = False
    """True from the start of a generation until the member has sent its sync request."""
    assignment: bytes = b""
    _decoded: tuple[bytes, Subscription | None] = (b"", None)
    """The last metadata that was decoded, and its subscription. A client may list very many partitions."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_parked(self) -> bool:
        return self.parked_join is not None or self.parked_sync is not None

    def metadata(self, protocol: str | None) -> bytes:
        """The subscription for a protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def subscription(self, protocol: str | None) -> Subscription | None:
        """The decoded subscription for a protocol; None if it is malformed."""
        metadata = self.metadata(protocol)
        if metadata != self._decoded[0]:
            self._decoded = metadata, decode_subscription(metadata)
        return self._decoded[1]


class Members:
    """All members of a group, in the order in which they joined. The first one is the leader until it leaves."""

    def __init__(self) -> None:
        self.protocol_type = ""
        self.leader: str | None = None
        self.pending_ids: dict[str, None] = {}
        """Ids that clients got, and with which they have not joined yet, the oldest first."""
        self.static_ids: dict[str, str] = {}
        """The member ids of static members, by instance id."""
        self._by_id: dict[str, Member] = {}
        self._supporters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._by_id.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    @property
    def rebalance_timeout(self) -> float:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout for member in self._by_id.values()), default=0.0)

    @property
    def joined_count(self) -> int:
        """The number of members whose join requests are parked."""
        return sum(member.parked_join is not None for member in self._by_id.values())

    @property
    def all_have_joined(self) -> bool:
        """True if every member has joined the rebalance, and every client that got a member id has joined with it."""
        return not self.pending_ids and all(member.parked_join is not None for member in self._by_id.values())

    def add(self, member: Member, protocol_type: str) -> None:
        if not self._by_id:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.id
        self._by_id[member.id] = member
        self._supporters.update(_names(member.protocols))
        if self.leader is None:
            self.leader = member.id

    def remove(self, member: Member) -> None:
        del self._by_id[member.id]
        self._forget_protocols(member)
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self._by_id), None)

    def change_id(self, member: Member, new_id: str) -> None:
        """Give a new id to a static member that has restarted. Everything else stays."""
        assert member.instance_id is not None
        self._by_id = {new_id if id == member.id else id: each for id, each in self._by_id.items()}
        self.static_ids[member.instance_id] = new_id
        if self.leader == member.id:
            self.leader = new_id
        member.id = new_id

    def change_protocols(self, member: Member, protocols: tuple[GroupProtocol, ...]) -> None:
        self._forget_protocols(member)
        member.protocols = protocols
        self._supporters.update(_names(protocols))

    def _forget_protocols(self, member: Member) -> None:
        """Remove a member from the counts. Names without supporters go: a client may send new ones again and again."""
        self._supporters -= Counter(_names(member.protocols))

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined the rebalance. Return False if no member has joined."""
        if self.leader is not None and self._by_id[self.leader].parked_join is not None:
            return True
        joined = next((member for member in self._by_id.values() if member.parked_join is not None), None)
        if joined is None:
            return False
        self.leader = joined.id
        return True

    def can_admit(
        self, protocol_type: str, protocols: tuple[GroupProtocol, ...], known: Container[str] | None = None
    ) -> bool:
        """True if a member with these protocols can take part: all members support one of them, which is also `known`.

        With None, all protocols are known.
        """
        names = {each.name for each in protocols if known is None or each.name in known}
        if not self._by_id:
            return bool(protocol_type and names)
        common = any(self._supporters[name] == len(self._by_id) for name in names)
        return common and protocol_type == self.protocol_type

    def choose_protocol(self, preferred: tuple[str, ...] = (), known: Container[str] | None = None) -> str:
        """Return the first preferred protocol that all members support, or else the protocol with the most votes.

        Each member votes for the first `known` protocol in its list that all members support. If two protocols get the
        same number of votes, the member that joined first decides.
        """
        candidates = {
            name
            for name, supporters in self._supporters.items()
            if supporters == len(self._by_id) and (known is None or name in known)
        }
        for name in preferred:
            if name in candidates:
                return name
        votes = Counter(
            next(each.name for each in member.protocols if each.name in candidates) for member in self._by_id.values()
        )
        return votes.most_common(1)[0][0]


def _names(protocols: tuple[GroupProtocol, ...]) -> set[str]:
    return {each.name for each in protocols}


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
    """A group of this coordinator. Only the rules change it: see `transitions.py`."""

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
        return self.strategies(self.protocol_type) is not None

    def strategies(self, protocol_type: str) -> Container[str] | None:
        """The strategies by which the coordinator assigns partitions to members of this type; None if it does not."""
        assigns = self.config.assignment_by is AssignmentBy.COORDINATOR and protocol_type == CONSUMER
        return BY_KAFKAS_NAME if assigns else None

    def choose_protocol(self) -> str:
        return self.members.choose_protocol(self.config.preferred_protocols, self.strategies(self.protocol_type))

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(JoinedMember(each.id, each.instance_id, each.metadata(self.protocol)) for each in self.members)


# The members of a generation, as values for the storage.


def stored_members(group: Group, assignments: Mapping[str, bytes]) -> dict[str, StoredMember]:
    """Return all members of a group with these assignments. A member without one gets an empty assignment."""
    found = {}
    for member in group.members:
        subscription = member.subscription(group.protocol)
        found[member.id] = StoredMember(
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(group.protocol),
            assignments.get(member.id, b""),
            frozenset() if subscription is None else subscription.owned,
        )
    return found


# A group as a value: for describing it to clients, and for programs that use the coordinator as a library.


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
