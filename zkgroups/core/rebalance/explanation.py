"""Explain a group: which strategy it follows, where each partition should be and is, and what keeps members from it.

The plan is what zkgroups members, and Scala members with the same strategy, compute from the same nodes. Members of
other clients do not announce their strategy. If it was not given, it is the one of `range` and `roundrobin` that
agrees with the current owners, and `range` if both do or none does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ..doctor.all_checks import run_checks
from ..doctor.findings import CheckCode, Finding
from ..doctor.group_nodes import GroupNodes
from ..znodes.group_description import GroupDescription, GroupView, Obstacle, PartitionDescription, describe
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import Registration
from .assignors import ASSIGNORS, COMPUTED_BY_EACH
from .members import Assignment, Members, Readers, Stream
from .shared_plan import DEFAULT_STRATEGY, Roster, SharedPlan, agreed_strategy, invalid_reason, topics_named

BLOCKING: Final = frozenset(
    {
        CheckCode.ORPHAN_OWNER,
        CheckCode.PERSISTENT_REGISTRATION,
        CheckCode.PERSISTENT_OWNER,
        CheckCode.UNREADABLE_OWNER,
        CheckCode.TWO_OWNERS,
        CheckCode.BLOCKED_PARTITION,
        CheckCode.SCALA_CANNOT_READ,
        CheckCode.UNREADABLE_REGISTRATION,
        CheckCode.UNEVALUABLE_SUBSCRIPTION,
        CheckCode.KAZOO_GO_CANNOT_READ,
        CheckCode.MIXED_DIALECTS,
    }
)
"""The doctor's checks for what keeps members from their partitions, or divides the members."""


class StrategyReason(StrEnum):
    """Why the members follow a strategy.

    - agreed: it is the first in the list of the lowest id that all members support
    - given: other clients do not announce their strategy, so it is the one that the caller named
    - inferred: other clients do not announce their strategy, and only with this one the owners are as planned
    - assumed: other clients do not announce their strategy; this is their default
    - not common: the members support no common strategy
    """

    AGREED = "agreed"
    GIVEN = "given"
    INFERRED = "inferred"
    ASSUMED = "assumed"
    NOT_COMMON = "not common"


class Placement(StrEnum):
    """Whether a partition is where the plan puts it, and if not, why.

    - as planned: its owner is the planned member
    - unowned: nobody owns it
    - held: another instance owns it, and has not released it
    - blocked: its owner will not release it in a rebalance; `obstacle` says why
    - not subscribed: it has an owner, but no member subscribes to its topic
    - unknown: the plan is unknown
    """

    AS_PLANNED = "as planned"
    UNOWNED = "unowned"
    HELD = "held"
    BLOCKED = "blocked"
    NOT_SUBSCRIBED = "not subscribed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """One partition: its owner, the stream that should read it, and the stream after the named members have left."""

    at: TopicPartition
    placement: Placement
    owner: str | None
    planned: Stream | None
    planned_without: Stream | None
    obstacle: Obstacle | None = None


@dataclass(frozen=True, slots=True)
class TopicDivision:
    """Topics that are divided alike: each has this many partitions, and these instances with their streams."""

    topics: tuple[str, ...]
    partitions: int
    readers: Readers

    @property
    def streams(self) -> int:
        """The number of streams that share the partitions of one topic."""
        return sum(count for _instance, count in self.readers)


@dataclass(frozen=True, slots=True)
class GroupExplanation:
    """Why the partitions of a group are where they are.

    - `description`: the state of the group, its instances and its owners.
    - `strategy`, `reason`: the strategy that its members follow, and why.
    - `members`: the instances that share the partitions, in the order in which the strategies take them.
    - `planner`: the member that plans for all; None if each member computes its own share.
    - `plan_is_written`: whether the plan in ZooKeeper is valid for these members. Without it, or for a strategy that
      zkgroups does not know, the plan may be unknown.
    - `divisions`: the topics with their partitions and streams.
    - `missing`: the subscribed topics that Kafka has not registered.
    - `partitions`: all partitions that are planned or owned.
    - `findings`: what keeps members from their partitions.
    - `without`, `strategy_without`: the members that are assumed to leave, and the strategy of the others.
    """

    description: GroupDescription
    strategy: str
    reason: StrategyReason
    members: Mapping[str, Registration]
    planner: str | None
    plan_is_written: bool
    divisions: tuple[TopicDivision, ...]
    missing: tuple[str, ...]
    partitions: tuple[PlacedPartition, ...]
    findings: tuple[Finding, ...]
    without: tuple[str, ...] = ()
    strategy_without: str | None = None

    @property
    def plan_is_known(self) -> bool:
        """False if only the members can compute the plan."""
        return all(each.placement is not Placement.UNKNOWN for each in self.partitions)

    @property
    def idle(self) -> tuple[str, ...]:
        """The registered instances that get no share, because they cannot be alive or cannot be read."""
        registered = (each for each in self.description.instances if each.registration is not None)
        return tuple(each.id for each in registered if each.id not in self.members)


def explain(
    view: GroupView,
    *,
    written: SharedPlan | None = None,
    ids_zxid: int = 0,
    without: Collection[str] = (),
    foreign: str | None = None,
) -> GroupExplanation:
    """Explain a group. `written` is its shared plan, and `foreign` the strategy of clients that announce none."""
    description, roster = describe(view), _roster(view, ids_zxid)
    owners = {each.at: each.instance for each in description.partitions if each.instance is not None}
    strategy, reason = _strategy(roster, owners, foreign)
    plan, is_written = _plan(roster, strategy, owners, written)
    rest = replace(roster, instances=[each for each in roster.instances if each.id not in without])
    strategy_without = _strategy(rest, {}, strategy if foreign is None else foreign)[0]
    later, _ = _plan(rest, strategy_without, owners, None)
    members = roster.participants
    return GroupExplanation(
        description=description,
        strategy=strategy,
        reason=reason,
        members=members,
        planner=None if strategy in COMPUTED_BY_EACH else min(members, default=None),
        plan_is_written=is_written,
        divisions=tuple(_divisions(roster.members())),
        missing=tuple(sorted(set(topics_named(view.instances, view.partitions)) - view.partitions.keys())),
        partitions=tuple(_placed(description, roster.members(), plan, later if without else None)),
        findings=tuple(found for found in run_checks(GroupNodes(view)) if found.code in BLOCKING),
        without=tuple(without),
        strategy_without=strategy_without if without else None,
    )


def _roster(view: GroupView, ids_zxid: int) -> Roster:
    named = topics_named(view.instances, view.partitions)
    return Roster(
        0, ids_zxid, view.instances, {name: view.partitions[name] for name in named if name in view.partitions}
    )


# The strategy


def _strategy(roster: Roster, owners: Mapping[TopicPartition, str], foreign: str | None) -> tuple[str, StrategyReason]:
    """Return the strategy that the members follow. `foreign` is that of other clients, None if it is not known."""
    members = roster.participants
    if all(each.assignors for each in members.values()):
        return agreed_strategy(members), StrategyReason.AGREED if _have_common(members) else StrategyReason.NOT_COMMON
    reason = StrategyReason.ASSUMED if foreign is None else StrategyReason.GIVEN
    if foreign is None and _follows(roster, owners, "roundrobin") and not _follows(roster, owners, DEFAULT_STRATEGY):
        foreign, reason = "roundrobin", StrategyReason.INFERRED
    found = foreign or DEFAULT_STRATEGY
    announced = (each.assignors for each in members.values() if each.assignors)
    common = all(found in names for names in announced)
    return agreed_strategy(members, foreign=found), reason if common else StrategyReason.NOT_COMMON


def _have_common(members: Mapping[str, Registration]) -> bool:
    announced = [set(each.assignors) for each in members.values()]
    return not announced or bool(set.intersection(*announced))


def _follows(roster: Roster, owners: Mapping[TopicPartition, str], strategy: str) -> bool:
    """True if all partitions have the owners that this strategy gives them."""
    plan = ASSIGNORS[strategy](roster.members())
    return all(owners.get(at) == stream.instance for at, stream in plan.items())


# The plan


def _plan(
    roster: Roster, strategy: str, owners: Mapping[TopicPartition, str], written: SharedPlan | None
) -> tuple[Assignment | None, bool]:
    """Return the plan, and whether it is the written one, or None if zkgroups does not know the strategy."""
    members = roster.members(owners)
    if strategy in COMPUTED_BY_EACH:
        return ASSIGNORS[strategy](members), False
    if written is not None and _is_valid(written, roster, strategy):
        return dict(written.assignment), True
    return ASSIGNORS[strategy](members) if strategy in ASSIGNORS else None, False


def _is_valid(plan: SharedPlan, roster: Roster, strategy: str) -> bool:
    return plan.matches(roster.fingerprint, strategy) and invalid_reason(plan.assignment, roster.members()) is None


def _divisions(members: Members) -> Iterator[TopicDivision]:
    alike: dict[tuple[int, Readers], list[str]] = {}
    for topic in members.topics:
        alike.setdefault((len(members.numbers(topic)), members.readers(topic)), []).append(topic)
    for (partitions, readers), topics in alike.items():
        yield TopicDivision(tuple(topics), partitions, readers)


# Each partition


def _placed(
    description: GroupDescription, members: Members, plan: Assignment | None, later: Assignment | None
) -> Iterator[PlacedPartition]:
    found = {each.at: each for each in description.partitions}
    obstacles = {each.at: each.obstacle for each in description.blocked}
    wanted = {at for topic in members.topics for at in members.in_order(topic)}
    owned = {at for at, each in found.items() if each.owners}
    for at in sorted(wanted | owned | obstacles.keys()):
        each = found.get(at) or PartitionDescription(at, (), None, None)
        stream = (plan or {}).get(at)
        owner = each.instance or next((owner.id for owner in each.owners), None)
        if plan is None and at in wanted:
            placement = Placement.UNKNOWN
        else:
            placement = _placement(owner, stream, is_blocked=at in obstacles)
        yield PlacedPartition(at, placement, owner, stream, (later or {}).get(at), obstacles.get(at))


def _placement(owner: str | None, planned: Stream | None, *, is_blocked: bool) -> Placement:
    if is_blocked:
        return Placement.BLOCKED
    if planned is None:
        return Placement.NOT_SUBSCRIBED
    if owner is None:
        return Placement.UNOWNED
    return Placement.AS_PLANNED if owner == planned.instance else Placement.HELD
