"""The plan of a group: read it and check it, or write it if this member is the planner."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, cast

from ..core.rebalance.assignors import ASSIGNORS, COMPUTED_BY_EACH, share_of
from ..core.rebalance.members import Stream, assigned_to
from ..core.rebalance.shared_plan import (
    AwaitedPlan,
    PlannerElection,
    Roster,
    SharedPlan,
    agreed_strategy,
    decode_plan,
    invalid_reason,
)
from ..core.znodes.paths import BROKER_TOPICS, broker_topic
from ..core.znodes.registrations import subscribed_topics
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import Dialect, OffsetSides, Owner, Registration, Side, UnreadableNode
from ..exceptions import InvalidOptionError
from ..zookeeper.group import Consumergroup
from ..zookeeper.instance import MemberInstance
from ..zookeeper.reading.observers import GroupObserver
from .events import EventKind
from .options import Options

# Notes on oddities of a group: missing topics, unreadable nodes, and members of other clients.


_NAMED: Final = 5
"""How many nodes, ids or topics a note lists."""


def few(names: Iterable[str], separator: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return separator.join(found[:_NAMED]) + more


def unreadable_nodes(nodes: Iterable[UnreadableNode]) -> str:
    """Return the text of a note about these nodes."""
    return few((f"{node.path}: {node.reason}" for node in nodes), "; ")


def missing_topics(
    registration: Registration, existing: Collection[str], unreadable: Iterable[UnreadableNode]
) -> dict[EventKind, str]:
    """Note the topics that do not exist. There may be none at all if the address lacks Kafka's chroot."""
    hidden = {node.path for node in unreadable}
    wanted = subscribed_topics(registration, existing)
    missing = [t for t in sorted(wanted) if t not in existing and broker_topic(t) not in hidden]
    if wanted and not missing:
        return {}
    names = few(missing) or f"topic that matches {', '.join(registration.streams)}"
    advice = "is the chroot right? Brokers in KRaft mode register no topics there: see Registry.read_topics_from"
    return {EventKind.MISSING: f"{names} not found in {BROKER_TOPICS}; waiting ({advice})"}


def oddities(roster: Roster) -> dict[EventKind, str]:
    """Note unreadable nodes and members of other clients."""
    notes: dict[EventKind, str] = {}
    if unreadable := [*roster.unreadable_registrations, *roster.unreadable_topics]:
        notes[EventKind.MALFORMED] = unreadable_nodes(unreadable)
    foreign = {dialect: ids for dialect, ids in roster.dialects.items() if not dialect.is_of_zkgroups}
    if foreign:
        notes[EventKind.FOREIGN] = "; ".join(f"{dialect}: {few(ids)}" for dialect, ids in sorted(foreign.items()))
    return notes


def offsets_elsewhere(own: OffsetSides, roster: Roster) -> dict[EventKind, str]:
    """Note members that do not find the offsets of this one, or whose offsets this one does not find.

    Where Scala members commit is not visible in ZooKeeper.
    """
    sides = {id: _sides(registration) for id, registration in roster.participants.items()}
    others = [f"{id} ({found})" for id, found in sides.items() if found is not None and not found.suits(own)]
    if not others:
        return {}
    return {EventKind.DIFFER: f"this member commits to {own}, others elsewhere: {few(others)}"}


def _sides(registration: Registration) -> OffsetSides | None:
    match registration.dialect:
        case Dialect.SCALA:
            return None
        case Dialect.PYKAFKA:
            return OffsetSides(Side.KAFKA)
    return registration.offsets


_PlanKey = tuple[int, str, str]
"""The zxid of a plan, and the fingerprint and the strategy that it must have."""


class GroupPlan:
    """The plan of one group, as one of its members sees it."""

    def __init__(
        self, group: Consumergroup, instance: MemberInstance, observer: GroupObserver, options: Options
    ) -> None:
        self._group = group
        self._instance = instance
        self._id = instance.id
        self._observer = observer
        self._assignors, self._foreign = options.strategies(), options.foreign_assignor
        self._election = PlannerElection(instance.id)
        self._share: tuple[_PlanKey, dict[TopicPartition, int] | None] = ((0, "", ""), None)
        self.awaited: AwaitedPlan | None = None
        """The plan that this member waits for."""

    def skip(self, awaited: AwaitedPlan) -> list[str]:
        """Stop waiting for this planner. The next look chooses another one, unless a plan was written meanwhile."""
        return self._election.skip(awaited)

    def share(self, roster: Roster) -> tuple[int, dict[TopicPartition, int] | None]:
        """Return the number of the plan and the share of this member; None if the plan is still to be written."""
        participants = roster.participants
        strategy = agreed_strategy(participants, foreign=self._foreign)
        if strategy in COMPUTED_BY_EACH:
            self.awaited = None
            return roster.number, share_of(self._id, strategy, roster.members())
        fingerprint = roster.fingerprint
        zxid, version, share = self._read_share(roster, fingerprint, strategy)
        if share is None:
            self.awaited = self._election.awaited(participants, version)
            if self.awaited.planner == self._id:
                self._plan_for_all(roster, fingerprint, strategy, version)
                # read it back: only the server knows which plan won
                zxid, version, share = self._read_share(roster, fingerprint, strategy)
        if share is None:
            return 0, None
        self.awaited = None
        return zxid, dict(share)

    def _read_share(
        self, roster: Roster, fingerprint: str, strategy: str
    ) -> tuple[int, int, dict[TopicPartition, int] | None]:
        """The zxid and the version of the plan node, and the share of this member; None if there is no valid plan.

        A plan is decoded and checked once, not at each look.
        """
        data, zxid, version = self._observer.read_plan()
        key = zxid, fingerprint, strategy
        if self._share[0] != key:
            plan = decode_plan(data)
            valid = (
                plan
                and plan.matches(fingerprint, strategy)
                and invalid_reason(plan.assignment, roster.members()) is None
            )
            self._share = key, assigned_to(self._id, plan.assignment) if plan and valid else None
        return zxid, version, self._share[1]

    def _plan_for_all(self, roster: Roster, fingerprint: str, strategy: str, version: int) -> None:
        known = {**ASSIGNORS, **self._assignors}  # the agreed strategy need not be one that this member announces
        members = roster.members(self._owners(roster))
        assignment: object = known[strategy](members)
        if (reason := invalid_reason(assignment, members)) is not None:
            raise InvalidOptionError("assignors", strategy, f"it returned a plan that cannot be used: {reason}")
        plan = SharedPlan(fingerprint, strategy, dict(cast("Mapping[TopicPartition, Stream]", assignment)))
        if self._observer.write_plan(plan, version, self._instance.session_id or 0):
            self._election.wrote(version)

    def _owners(self, roster: Roster) -> dict[TopicPartition, str]:
        """Return the partitions that members hold, each with the id of its holder."""
        sessions = {instance.id: instance.session for instance in roster.instances}
        found: dict[TopicPartition, str] = {}
        for owner in self._group.owners():
            id = owner.instance(sessions) if isinstance(owner, Owner) else None
            if isinstance(owner, Owner) and id is not None and sessions[id] == owner.session:
                found[owner.at] = id
        return found
