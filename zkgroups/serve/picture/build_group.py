"""Make the picture of one group from its description, its lag, and its past."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from ...core.commit_record import Commit, CommitRecord, catch_up_seconds, observe
from ...core.doctor.all_checks import CHECKS, run_checks, run_log_checks, worst_first
from ...core.doctor.findings import CheckCode, Finding
from ...core.doctor.group_nodes import GroupNodes, is_in
from ...core.health import Hold, Limits, PartitionFacts, Status, Verdict, judge, judge_group
from ...core.offsets.lag import GroupLag, PartitionLag
from ...core.times import to_ms
from ...core.znodes.group_description import GroupDescription, GroupView, InstanceDescription, Obstacle
from ...core.znodes.own_nodes import Mark, MarkState
from ...core.znodes.paths import GroupPaths
from ...core.znodes.registrations import host_of_instance
from ...core.znodes.states import GroupState
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import ForbiddenNode, Owner, Pattern, Registration, UnevaluableRegistration, UnreadableNode
from .past import GroupHistory, LogEnds
from .values import GroupPicture, MemberPicture, PartitionPicture

# The findings of the doctor in the nodes that every sweep reads anyway.
#
# Checks that need more requests are left to `zkgroups doctor`: open access control lists, nodes below leaves, empty
# directories. A finding that can disappear by itself is shown when two checks in a row have found it.


LEFT_TO_DOCTOR: Final = frozenset({CheckCode.EMPTY_GROUP, CheckCode.NESTED_NODE, CheckCode.OPEN_ACL})
_TRANSIENT: Final = frozenset(check.code for check in CHECKS if check.is_transient)


class Findings:
    """The findings of all groups."""

    def __init__(self, *, stale_ms: int) -> None:
        self._stale_ms = stale_ms
        self._seen: dict[str, frozenset[tuple[CheckCode, str]]] = {}
        self._shown: dict[str, tuple[Finding, ...]] = {}

    def check(self, view: GroupView, lag: GroupLag, topics: Collection[str] | None, now_ms: int) -> tuple[Finding, ...]:
        """Check a group, and return its confirmed findings."""
        nodes = GroupNodes(view, topics=topics, now_ms=now_ms, stale_ms=self._stale_ms)
        found = [each for each in run_checks(nodes) if each.code not in LEFT_TO_DOCTOR]
        found = worst_first([*found, *run_log_checks(lag)])
        before = self._seen.get(view.group, frozenset())
        self._seen[view.group] = frozenset((each.code, each.path) for each in found)
        shown = tuple(each for each in found if each.code not in _TRANSIENT or (each.code, each.path) in before)
        self._shown[view.group] = shown
        return shown

    def last(self, group: str) -> tuple[Finding, ...]:
        """Return the findings of the last check of a group."""
        return self._shown.get(group, ())

    def keep_only(self, groups: Collection[str]) -> None:
        """Forget groups that do not exist any more."""
        for known in (self._seen, self._shown):
            for name in [name for name in known if name not in groups]:
                del known[name]


class Rules(NamedTuple):
    """The limits of statuses, and whether brokers are configured."""

    limits: Limits = Limits()
    asks_brokers: bool = True


class _Holding(NamedTuple):
    """How a partition is held, by whom, and since when, as far as the znodes tell.

    - `obstacle`: why no member can claim it, if it is blocked.
    """

    hold: Hold
    holder: Owner | None = None
    since_ms: int = 0
    obstacle: Obstacle = Obstacle.NOT_SUBSCRIBED


_OWNED: Final = _Holding(Hold.OWNED)


def build_group(
    group: GroupDescription,
    lag: GroupLag,
    past: GroupHistory,
    ends: LogEnds,
    rules: Rules,
    *,
    now_ms: int,
    findings: tuple[Finding, ...],
    is_complete_sweep: bool,
) -> GroupPicture:
    """Return the picture of a group, and add the present to its past."""
    builder = _Builder(group, past, ends, rules, now_ms)
    partitions = tuple(builder.partition(each) for each in lag.partitions)
    builder.note_members(partitions)
    verdict = judge_group(group.state, [each.verdict for each in partitions], lag.total)
    past.see_verdict(verdict, now_ms)
    past.keep_only(each.at for each in partitions)
    if is_complete_sweep:
        past.see_totals(lag.total, sum(each.commits or 0 for each in partitions), now_ms)
    consumed, produced = _sum(each.consumed for each in partitions), _sum(each.produced for each in partitions)
    return GroupPicture(
        name=group.group,
        state=group.state,
        verdict=verdict,
        in_use=builder.in_use,
        members=tuple(member(group.group, each) for each in group.instances),
        partitions=partitions,
        lag=lag.total,
        time_lag=max((each.time_lag for each in partitions if each.time_lag is not None), default=None),
        consumed=consumed,
        produced=produced,
        catch_up=None if lag.total is None else catch_up_seconds(lag.total, consumed, produced),
        last_commit_ms=max((each.committed_ms for each in partitions if each.committed_ms is not None), default=None),
        unowned=_count(partitions, Status.UNOWNED),
        orphaned=len({owner.at for owner in group.orphans}),
        blocked=len({blocked.at for blocked in group.blocked if blocked.obstacle is not Obstacle.NOT_REGISTERED}),
        unknown_lags=lag.unknown,
        migration=_migration(group),
        trend=past.trend,
        events=past.events,
        counters=past.counters,
        findings=findings,
    )


class _Builder:
    """The facts of one group that its partitions share."""

    def __init__(self, group: GroupDescription, past: GroupHistory, ends: LogEnds, rules: Rules, now_ms: int) -> None:
        self._group = group
        self._past = past
        self._ends = ends
        self._rules = rules
        self._now_ms = now_ms
        self._members = group.members
        self._moved = _moved(group)
        self._holds = _holds(group)
        read = {*group.subscribed, *(each.at.topic for each in group.partitions if each.owners)}
        is_known = all(isinstance(each.registration, Registration | None) for each in group.instances)
        self._read = read if is_known else None  # None: members may read any topic
        self.in_use = _in_use(group, now_ms - rules.limits.abandoned_ms)
        registered = (to_ms(each.registered_at) for each in group.instances)
        self._last_registered_ms = max(registered, default=0)

    def partition(self, lag: PartitionLag) -> PartitionPicture:
        """Return the picture of one partition."""
        part, at, now_ms = lag.partition, lag.partition.at, self._now_ms
        record = self._record(lag)
        owner = part.owners[0] if part.owners else None
        owner_id = part.instance or (None if owner is None else owner.id)
        owner_ms = None if owner is None else to_ms(owner.claimed_at) or None
        history = self._ends.history(at)
        unread_ms = None
        if lag.lag and lag.log is not None and part.offset is not None and history is not None:
            unread_ms = history.written_ms(max(part.offset.offset, lag.log.start))
        period_ms = self._rules.limits.period_ms
        commit = None if record is None else record.commit
        return PartitionPicture(
            at=at,
            offset=None if commit is None else commit.offset,
            committed_ms=None if commit is None else commit.committed_ms,
            commits=None if commit is None else commit.version,
            log=lag.log,
            lag=lag.lag,
            time_lag=_time_lag(lag.lag, unread_ms, now_ms),
            owner=owner_id,
            owner_ms=owner_ms,
            consumed=None if record is None else record.consumed_per_second(now_ms),
            produced=None if history is None else history.produced_per_second(now_ms, period_ms=period_ms),
            verdict=self._judge(lag, record, unread_ms),
            holder=self._holds.get(at, _OWNED).holder,
        )

    def _record(self, lag: PartitionLag) -> CommitRecord | None:
        """Observe the committed offset. None without one."""
        at, found = lag.partition.at, lag.partition.offset
        if found is None:
            self._past.records.pop(at, None)
            return None
        known = self._past.records.get(at)
        commit = Commit(found.offset, found.version, to_ms(found.committed_at), to_ms(found.created_at))
        if commit.committed_ms > self._now_ms:  # a clock is wrong: the commit is as old as its first sight
            seen = None if known is None else known.commit
            is_seen = seen is not None and seen._replace(committed_ms=commit.committed_ms) == commit
            commit = seen if seen is not None and is_seen else commit._replace(committed_ms=self._now_ms)
        limits = self._rules.limits
        record = observe(
            known,
            commit,
            lag.lag,
            now_ms=self._now_ms,
            period_ms=limits.period_ms,
            allowed_lag=limits.allowed_lag,
        )
        self._past.records[at] = record
        return record

    def _judge(self, lag: PartitionLag, record: CommitRecord | None, unread_ms: int | None) -> Verdict:
        at = lag.partition.at
        holding = self._holds.get(at, _OWNED)
        is_read = self._read is None or at.topic in self._read
        abandoned_ms = self._now_ms - self._rules.limits.abandoned_ms
        facts = PartitionFacts(
            hold=holding.hold,
            members=self._members if is_read else 0,
            lag=lag.lag,
            note=lag.note,
            record=record,
            hold_since_ms=self._hold_since(at, holding),
            holder=holding.holder.id if holding.holder else "",
            unread_since_ms=unread_ms,
            moved=self._moved,
            asks_brokers=self._rules.asks_brokers,
            obstacle=holding.obstacle,
            in_use=self.in_use
            and (not self._members or is_read or record is None or record.commit.committed_ms > abandoned_ms),
        )
        return judge(facts, self._now_ms, self._rules.limits)

    def _hold_since(self, at: TopicPartition, holding: _Holding) -> int:
        """Return since when the partition is held like this. At the first sight, the znodes tell."""
        holds, hold = self._past.holds, holding.hold
        if hold is Hold.OWNED:
            holds.pop(at, None)
            return 0
        known = holds.get(at)
        if known is not None and known[0] is hold:
            return known[1]
        first_sight = holding.since_ms or self._last_registered_ms
        since = min(first_sight or self._now_ms, self._now_ms) if self._past.is_new else self._now_ms
        holds[at] = hold, since
        return since

    def note_members(self, partitions: Iterable[PartitionPicture]) -> None:
        """Add joins, leaves and changes of owners to the past."""
        owners = {each.at: each.owner for each in partitions if each.owner is not None}
        self._past.see_members((each.id for each in self._group.instances if each.registered_at), owners, self._now_ms)


def _in_use(group: GroupDescription, abandoned_ms: int) -> bool:
    """Return True unless the group certainly has no members, no owners, and no commit since this time."""
    if group.members or group.state is GroupState.UNKNOWN or any(each.owners for each in group.partitions):
        return True
    last = group.last_commit_at
    return bool(group.unreadable) if last is None else to_ms(last) > abandoned_ms


def _holds(group: GroupDescription) -> dict[TopicPartition, _Holding]:
    """Return the partitions that are not held as they should be. An owner may have a forbidden registration."""
    found = dict.fromkeys(group.unowned, _Holding(Hold.UNOWNED))
    ids = GroupPaths(group.group).ids
    if not any(isinstance(node, ForbiddenNode) and is_in(node.path, ids) for node in group.unreadable):
        found |= {orphan.at: _Holding(Hold.ORPHANED, orphan, to_ms(orphan.claimed_at)) for orphan in group.orphans}
    for blocked in group.blocked:
        if blocked.obstacle is not Obstacle.NOT_REGISTERED:
            holder = blocked.holder if isinstance(blocked.holder, Owner) else None
            found[blocked.at] = _Holding(Hold.BLOCKED, holder, to_ms(blocked.since), blocked.obstacle)
    return found


def _time_lag(lag: int | None, unread_ms: int | None, now_ms: int) -> float | None:
    if lag == 0:
        return 0.0
    return None if lag is None or unread_ms is None else max(0, now_ms - unread_ms) / 1000


def _moved(group: GroupDescription) -> str:
    if isinstance(group.mark, Mark):
        return group.mark.shown
    return "" if group.mark is None else "its migration mark cannot be read"


def _migration(group: GroupDescription) -> MarkState | None:
    return group.mark.state if isinstance(group.mark, Mark) else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _count(partitions: Iterable[PartitionPicture], status: Status) -> int:
    return sum(each.verdict.status is status for each in partitions)


def member(group: str, instance: InstanceDescription) -> MemberPicture:
    """Return the picture of an instance."""
    found = instance.registration
    registration = found.registration if isinstance(found, UnevaluableRegistration) else found
    known = registration if isinstance(registration, Registration) else None
    return MemberPicture(
        id=instance.id,
        state=instance.state,
        host=(known.client_host if known else "") or host_of_instance(group, instance.id),
        registered_ms=to_ms(instance.registered_at) or None,
        dialect=known.dialect.value if known else None,
        client_id=(known.client_id if known else "") or None,
        subscription=_subscription(registration),
        owned=len(instance.owned),
    )


def _subscription(registration: Registration | UnreadableNode | None) -> str:
    if registration is None:
        return ""
    if not isinstance(registration, Registration):
        return registration.reason
    names = _names(registration.streams)
    return names if registration.pattern is Pattern.STATIC else f"{registration.pattern}: {names}"


def _names(streams: Mapping[str, int]) -> str:
    return ", ".join(name if count == 1 else f"{name} ({count} streams)" for name, count in sorted(streams.items()))
