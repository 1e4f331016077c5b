"""The members of one group, their leader, and the protocols that all of them support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from ..values.consumer_protocol import Subscription, decode_subscription
from ..values.requests import GroupProtocol


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
        self.pending_ids: set[str] = set()
        """Ids that clients got, and with which they have not joined yet."""
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

    # Protocols

    def can_admit(self, protocol_type: str, protocols: tuple[GroupProtocol, ...]) -> bool:
        """True if a member with these protocols can take part: one of them is supported by all members."""
        if not self._by_id:
            return bool(protocol_type and protocols)
        common = any(self._supporters[each.name] == len(self._by_id) for each in protocols)
        return common and protocol_type == self.protocol_type

    def choose_protocol(self, preferred: tuple[str, ...] = ()) -> str:
        """Return the first preferred protocol that all members support, or else the protocol with the most votes.

        Each member votes for the first protocol in its list that all members support. If two protocols get the same
        number of votes, the member that joined first decides.
        """
        candidates = {name for name, supporters in self._supporters.items() if supporters == len(self._by_id)}
        for name in preferred:
            if name in candidates:
                return name
        votes = Counter(
            next(each.name for each in member.protocols if each.name in candidates) for member in self._by_id.values()
        )
        return votes.most_common(1)[0][0]


def _names(protocols: tuple[GroupProtocol, ...]) -> set[str]:
    return {each.name for each in protocols}
