"""Moving one group live: which members and which offsets stop it.

The offsets of the side that the group leaves are the truth, unless all its members read those of the brokers already:
then these stay, and nothing is copied there. A higher offset on the other side would let the group skip messages, and
lowering it would be an offset that goes back. So it stops the move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..kafka_values import NativeOffset
from ..znodes.group_view import RegisteredInstance
from ..znodes.offset_sides import Side
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import CommittedOffset, CurrentOffset, Dialect, Registration
from .obstacles import Obstacle, ObstacleKind, texts
from .offset_decision import Reason
from .plan_rows import Match, MatchRow, Outcome, PlanRow, ReportRow

_SHOWN = 3
_ARRIVED = (Outcome.WRITTEN, Outcome.THERE, Outcome.SKIPPED)


def other_members(instances: Iterable[RegisteredInstance]) -> list[str]:
    """Return the members that cannot move with their group, each with its client."""
    return [f"{each.id} ({_client(each)})" for each in instances if not _can_move(each)]


def _can_move(instance: RegisteredInstance) -> bool:
    """True for a `Consumer`, a `Member` that leaves, and a member that comes through a gateway."""
    found = instance.registration
    return isinstance(found, Registration) and (found.moves or found.leaves or found.dialect is Dialect.GATEWAY)


def members_that_stay_out(instances: Iterable[RegisteredInstance]) -> list[str]:
    """Return the members that leave, and do not join on the brokers."""
    return [each.id for each in instances if isinstance(each.registration, Registration) and each.registration.leaves]


def _client(instance: RegisteredInstance) -> str:
    found = instance.registration
    return str(found.dialect) if isinstance(found, Registration) else "unknown client"


def truths(instances: Iterable[RegisteredInstance]) -> dict[str, Side]:
    """Return the side on which each member reads its offsets. Clients of a gateway have theirs in ZooKeeper."""
    found = {each.id: each.registration for each in instances}
    return {id: each.offsets.truth for id, each in found.items() if isinstance(each, Registration)}


def truth_problem(found: Mapping[str, Side], truth: Side) -> str:
    """Return which members read their offsets on another side; empty if none does."""
    others = [f"{id} ({side})" for id, side in found.items() if side is not truth]
    text = f"it moves with the offsets of {truth.shown}, but these members read others: {some(others)}; "
    return f"{text}restart them with the same options as the other members" if others else ""


def plan_problem(rows: Sequence[PlanRow], *, members_leave: bool) -> str:
    """Return why these offsets cannot be moved to the brokers; empty if they can.

    With `members_leave`, members that are still registered do not matter.
    """
    known: Sequence[Obstacle] = rows[0].obstacles if rows else ()
    if members_leave:
        known = [each for each in known if each.kind is not ObstacleKind.LEGACY_INSTANCES]
    if known:
        return texts(known)
    ahead = [f"{row.at} ({row.before} > {row.offset})" for row in rows if row.reason is Reason.TARGET_AHEAD]
    return f"the brokers have higher offsets: {some(ahead)}; delete the group on the brokers first" if ahead else ""


def apply_problem(report: Iterable[ReportRow]) -> str:
    """Return why offsets did not arrive at the brokers; empty if all did."""
    details = dict.fromkeys(row.detail or str(row.outcome) for row in report if row.outcome not in _ARRIVED)
    return "; ".join(details)


def verify_problem(rows: Iterable[MatchRow]) -> str:
    """Return how both sides differ after the copy; empty if they agree."""
    wrong = [f"{row.topic}-{row.partition} ({row.match})" for row in rows if row.match is not Match.EQUAL]
    return f"both sides differ: {some(wrong)}" if wrong else ""


def return_problem(
    committed: Mapping[TopicPartition, NativeOffset], found: Mapping[TopicPartition, CurrentOffset]
) -> str:
    """Return why the offsets of the brokers cannot be copied to ZooKeeper; empty if they can."""
    ahead = [
        f"{at} ({now.offset} > {committed[at].offset})"
        for at, now in found.items()
        if isinstance(now, CommittedOffset) and now.offset > committed[at].offset
    ]
    return f"ZooKeeper has higher offsets: {some(ahead)}; delete these in ZooKeeper first" if ahead else ""


def offsets_to_return(
    committed: Mapping[TopicPartition, NativeOffset], found: Mapping[TopicPartition, CurrentOffset]
) -> dict[TopicPartition, int]:
    """Return the offsets of the brokers that ZooKeeper does not have yet."""
    return {
        at: native.offset
        for at, native in committed.items()
        if not isinstance(now := found[at], CommittedOffset) or now.offset != native.offset
    }


def some(names: Sequence[str]) -> str:
    """Return the first few names for a message.

    >>> some(["a", "b"]), some(["a", "b", "c", "d"])
    ('a, b', 'a, b, c and 1 more')
    """
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
