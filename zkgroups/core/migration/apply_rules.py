"""Carrying out a plan, decided from what is found: whether a group may be written, what is written, what is put back.

A group's rows are all of one target. Nothing here remembers anything: each decision is made of the plan and of what
both sides have now, so that who was killed anywhere begins again and ends the same.

    | on the target now             | apply            | rollback                     |
    |-------------------------------|------------------|------------------------------|
    | what is planned               | done             | put back what was before     |
    | what was there before         | write            | done                         |
    | nothing, where something was  | the group is left| put back what was before     |
    | anything else                 | the group is left| the group is left            |
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..kafka_values import NativeOffset, OffsetRange
from ..znodes.topic_partition import TopicPartition
from .plan_rows import PlanRow
from .rules import LEGACY, Action, GroupFacts, Log, Reason, Standing, obstacles, standing

Rows = Sequence[PlanRow]
Place = tuple[str | None, int | None]
"""Topic and partition; no partition for a topic that may not be listed, and no topic where none may."""


class Znode(NamedTuple):
    """An offset node as far as it matters here; no zxid where it may not be read, no offset where it holds none."""

    zxid: int | None
    offset: int | None


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """What ZooKeeper has of a group now."""

    instances: tuple[str, ...] = ()
    offsets: Mapping[Place, Znode] = field(default_factory=dict)
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class TargetSeen:
    """What the brokers have of a target now."""

    members: tuple[str, ...] = ()
    """Who takes part, or the state that says that somebody does."""
    committed: Mapping[TopicPartition, NativeOffset] = field(default_factory=dict)
    unreadable: str = ""


TopicIds = Mapping[str, str]
"""Kafka's ids of topics, by name; brokers before 2.8 have none."""

LogOf = Callable[[TopicPartition | None, int | None, str | None], OffsetRange | Log]
"""The log of a partition, given the zxid of its offset and the topic id in the plan."""

_ANEW: Final = "topics were recreated since the plan"


def by_target(rows: Iterable[PlanRow]) -> dict[str, list[PlanRow]]:
    """The rows of each target, in their order."""
    found: defaultdict[str, list[PlanRow]] = defaultdict(list)
    for row in rows:
        found[row.target].append(row)
    return dict(found)


# Guards


def of_source(row: PlanRow) -> bool:
    """Whether the row is of something in ZooKeeper."""
    return row.reason is not Reason.ONLY_ON_TARGET


def source_obstacles(rows: Rows, seen: SourceSeen) -> list[str]:
    """Why a group must not be written as ZooKeeper is now: somebody is registered, or an offset is not as planned."""
    changes = _Changes()
    planned = {(row.topic, row.partition): row.zxid for row in rows if of_source(row)}
    for place, zxid in planned.items():
        if place[1] is None:
            continue  # a topic that could not be listed, or a name that is no partition: there is no zxid of it
        if place not in seen.offsets:
            changes.note("offsets in ZooKeeper are gone", place)
        elif seen.offsets[place].zxid != zxid:
            changes.note("offsets in ZooKeeper were written since the plan", place)
    for place in new_offsets(rows, seen):
        changes.note("offsets in ZooKeeper are new since the plan", place)
    return [*registered(seen), *changes.told()]


def new_offsets(rows: Rows, seen: SourceSeen) -> list[Place]:
    """The offset nodes that the plan does not know, although it would have had them."""
    planned = {(row.topic, row.partition) for row in rows if of_source(row)}
    wanted = _chosen(rows)
    return [place for place in seen.offsets if place not in planned and wanted(place[0])]


def _chosen(rows: Rows) -> Callable[[str | None], bool]:
    """Whether a topic was to be planned; one that cannot be named may be any."""
    expression = rows[0].topics
    if expression is None:
        return lambda _topic: True
    chosen = re.compile(expression, re.DOTALL).fullmatch
    return lambda topic: topic is None or chosen(topic) is not None


def target_obstacles(rows: Rows, seen: TargetSeen) -> list[str]:
    """Why a group must not be written as the target is now: somebody takes part, or has committed since the plan."""
    changes = _Changes()
    planned = set()
    for row in rows:
        if (at := row.at) is not None:
            planned.add(at)
            now = seen.committed.get(at)
            if not is_as_before(row, now) and not _is_as_planned(row, now):
                changes.note("offsets of the target are not as planned", _place(at))
    for at in seen.committed:
        if at not in planned:
            changes.note("offsets of the target are new since the plan", _place(at))
    return [*living(seen), *changes.told()]


def log_obstacles(rows: Rows, log: LogOf) -> list[str]:
    """Why numbers that are to be written mean nothing any more; what brokers do not know they say themselves."""
    changes = _Changes()
    for row in rows:
        found = log(row.at, row.zxid, row.topic_id)
        if found in (Log.YOUNGER, Log.MADE_ANEW):
            changes.note(_ANEW, (row.topic, row.partition))
        elif isinstance(found, OffsetRange) and row.log_end is not None and (row.planned or 0) not in found:
            changes.note("offsets are not in the log any more", (row.topic, row.partition))
    return changes.told()


def made_anew(rows: Iterable[PlanRow], ids: TopicIds) -> frozenset[TopicPartition]:
    """The partitions of topics that were recreated since the plan: the messages of their offsets are gone."""
    found = (row.at for row in rows if is_made_anew(row.topic, row.topic_id, ids))
    return frozenset(at for at in found if at is not None)


def is_made_anew(topic: str | None, planned: str | None, ids: TopicIds) -> bool:
    """Whether the topic was recreated since the plan: the brokers have the name under another id.

    >>> is_made_anew("orders", "a", {"orders": "b"}), is_made_anew("orders", "a", {}), is_made_anew("orders", None, {})
    (True, False, False)
    """
    now = None if topic is None else ids.get(topic)
    return None not in (planned, now) and planned != now


def anew_obstacles(rows: Iterable[PlanRow], anew: Container[TopicPartition]) -> list[str]:
    """Why nothing of a target can be carried any more: some of its topics were recreated."""
    changes = _Changes()
    for row in rows:
        if row.at is not None and row.at in anew:
            changes.note(_ANEW, (row.topic, row.partition))
    return changes.told()


def overwritten(rows: Rows, written: Mapping[TopicPartition, int], seen: TargetSeen) -> list[str]:
    """Why a target does not have the offsets that were just written: another program writes to it too."""
    changes = _Changes()
    for at, offset in written.items():
        now = seen.committed.get(at)
        if now is None or now.offset != offset:
            changes.note("offsets of the target were overwritten by others", _place(at))
    for at in seen.committed.keys() - {row.at for row in rows}:
        changes.note("offsets of the target were added by others", _place(at))
    return changes.told()


def registered(seen: SourceSeen) -> list[str]:
    """Why nobody may write to a group in ZooKeeper, whatever it has."""
    return obstacles(GroupFacts(legacy=seen.instances, unreadable=seen.unreadable), ())


def living(seen: TargetSeen) -> list[str]:
    """Why nobody may write to a target, whatever it has."""
    return obstacles(GroupFacts(native=seen.members, unreadable=seen.unreadable), ())


def is_as_before(row: PlanRow, now: NativeOffset | None) -> bool:
    """Whether the target has what it had, with the same note and leader epoch."""
    if now is None or row.before is None:
        return now is None and row.before is None
    return (now.offset, now.metadata, now.leader_epoch) == (row.before, row.before_metadata, row.before_epoch)


def _is_as_planned(row: PlanRow, now: NativeOffset | None) -> bool:
    return now is not None and now.offset == row.planned and is_to_commit(row)


class _Changes:
    """What was found to be otherwise, with the partitions where."""

    def __init__(self) -> None:
        self._found: defaultdict[str, list[Place]] = defaultdict(list)

    def note(self, what: str, place: Place) -> None:
        self._found[what].append(place)

    def told(self) -> list[str]:
        return [f"{what}: {_some(places)}" for what, places in sorted(self._found.items())]


def _some(places: Sequence[Place]) -> str:
    shown = ", ".join("/".join(str(part) for part in place if part is not None) or "all" for place in places[:3])
    return shown + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _place(at: TopicPartition) -> Place:
    return at.topic, at.partition


# Apply


def is_to_commit(row: PlanRow) -> bool:
    """Whether an offset is to be written for this row."""
    return row.action is Action.COMMIT and row.planned is not None


def to_commit(rows: Rows, committed: Mapping[TopicPartition, NativeOffset]) -> dict[TopicPartition, int]:
    """What is still to be written of a group that nothing is in the way of."""
    found = {}
    for row in rows:
        if row.planned is not None and is_to_commit(row) and (at := row.at) is not None:
            now = committed.get(at)
            if standing(None if now is None else now.offset, row.before, row.planned) is Standing.TO_WRITE:
                found[at] = row.planned
    return found


def is_worth_a_mark(rows: Rows) -> bool:
    """Whether a group has anything on the target, or is to have it; one of which all is skipped has not moved."""
    return any(is_to_commit(row) or row.reason in (Reason.ALREADY_THERE, Reason.TARGET_AHEAD) for row in rows)


def is_begun(rows: Rows, committed: Mapping[TopicPartition, NativeOffset]) -> bool:
    """Whether anything of the plan is on the target."""
    return any(_is_as_planned(row, committed.get(row.at)) for row in rows if row.at)


# Rollback


@dataclass(frozen=True, slots=True)
class Restoring:
    """What puts a target back as it was: what it had is committed, and again after the group went, if it must go.

    The first time it is seen whether all of it can be put back: what is deleted is gone.
    """

    commits: Mapping[TopicPartition, NativeOffset]
    taken: frozenset[TopicPartition]
    """Offsets that were not there before; the group has to be deleted for them."""
    moved: frozenset[TopicPartition]
    """What somebody else has committed there since."""
    back: frozenset[TopicPartition]
    """Those of them that are before the offsets that the plan has left there."""

    @property
    def delete(self) -> bool:
        """Whether the group must go."""
        return bool(self.taken)

    @property
    def touched(self) -> frozenset[TopicPartition]:
        """Every partition of which something is to become of."""
        return self.taken | self.commits.keys()


@dataclass(frozen=True, slots=True)
class Lost:
    """Partitions whose earlier offsets cannot be put back."""

    anew: frozenset[TopicPartition] = frozenset()
    """Their topics were recreated since the plan. The offsets that they have now belong to the new topics."""
    gone: Mapping[TopicPartition, Reason] = field(default_factory=dict)
    """The brokers do not have them any more, and why."""

    def why(self, at: TopicPartition | None) -> str:
        """The reason for one partition; empty if it is not lost."""
        if at is None:
            return ""
        return Reason.MADE_ANEW if at in self.anew else self.gone.get(at, "")


NOTHING_LOST: Final = Lost()


def restoring(rows: Rows, committed: Mapping[TopicPartition, NativeOffset], lost: Lost = NOTHING_LOST) -> Restoring:
    """How a target is put back; killed after any part of it, what is then left to do comes to the same end.

    The exception are offsets of new topics: if the group is deleted, they are committed again, but no plan knows them.
    So they count as moved, and such a group is only deleted by force.
    """
    prior = {before.at: before for row in rows if (before := row.prior) is not None and not lost.why(before.at)}
    planned = {row.at: row.planned for row in rows if is_to_commit(row) and row.at not in lost.anew}
    left = _left(rows)
    moved = {at for at, now in committed.items() if now != prior.get(at) and planned.get(at) != now.offset}
    back = (at for at in moved if committed[at].offset < _or_none_yet(left.get(at)))
    taken = frozenset(committed.keys() - prior.keys() - lost.anew)
    commits = {at: there for at, there in prior.items() if taken or committed.get(at) != there}
    if taken:
        commits |= {at: now for at, now in committed.items() if at in lost.anew}
    return Restoring(commits, taken, frozenset(moved), frozenset(back))


def _left(rows: Rows) -> dict[TopicPartition | None, int | None]:
    """The offsets that the plan has left on the target."""
    return {row.at: row.planned if is_to_commit(row) else row.before for row in rows}


def lost_partitions(
    rows: Rows,
    ids: TopicIds,
    partitions: Mapping[str, Sequence[int]],
    kept: Container[TopicPartition] = (),
) -> Lost:
    """What of a target cannot be put back, by the topics that the brokers have now.

    A partition that is `kept` is not gone: the brokers still have an offset of it.
    """
    priors = (before.at for row in rows if (before := row.prior) is not None)
    gone = {
        at: Reason.NO_PARTITION if at.topic in partitions else Reason.NO_TOPIC
        for at in priors
        if at.partition not in partitions.get(at.topic, ()) and at not in kept
    }
    return Lost(made_anew(rows, ids), gone)


def not_moved(rows: Rows) -> list[str]:
    """Why a plan cannot have written to a target, whatever is there: only legacy instances go while it is followed."""
    reasons = [reason for reason in rows[0].obstacles if not reason.startswith(LEGACY)]
    return [f"this plan has not moved it: {'; '.join(reasons)}"] if reasons else []


def moved_obstacles(restoring: Restoring) -> list[str]:
    """Why a target must not be put back as if nothing had happened."""
    changes = _Changes()
    for at in sorted(restoring.moved):
        changes.note("somebody has committed on the target since", _place(at))
    return changes.told()


def back_obstacles(restoring: Restoring) -> list[str]:
    """Why a target must not go after its progress was carried: offsets in ZooKeeper do not follow where it went."""
    changes = _Changes()
    for at in sorted(restoring.back):
        changes.note("somebody has moved offsets of the target back, and ZooKeeper keeps the higher ones", _place(at))
    return changes.told()


def changed(before: TargetSeen, now: TargetSeen) -> list[TopicPartition]:
    """The partitions of a target whose offsets are not as they were; none where it cannot be read."""
    if now.unreadable:
        return []
    both = before.committed.keys() | now.committed.keys()
    return sorted(at for at in both if before.committed.get(at) != now.committed.get(at))


def changed_obstacles(before: TargetSeen, now: TargetSeen) -> list[str]:
    """Why a target must not be put back that has changed since it was looked at."""
    changes = _Changes()
    for at in changed(before, now):
        changes.note("somebody has committed on the target meanwhile", _place(at))
    return [*living(now), *changes.told()]


def progress(rows: Rows, committed: Mapping[TopicPartition, NativeOffset]) -> dict[TopicPartition, int]:
    """What was read on the target since: offsets further than those that the plan has left there."""
    prior = {row.at: row.prior for row in rows}
    left = _left(rows)
    return {
        at: now.offset
        for at, now in committed.items()
        if now != prior.get(at) and now.offset > _or_none_yet(left.get(at))
    }


def _or_none_yet(offset: int | None) -> int:
    return -1 if offset is None else offset


def forward(progress: Mapping[TopicPartition, int], offsets: Mapping[Place, Znode]) -> dict[TopicPartition, int]:
    """What of it ZooKeeper does not have, or does not have so far."""
    return {at: offset for at, offset in progress.items() if offset > _or_none_yet(_in_zookeeper(at, offsets))}


def _in_zookeeper(at: TopicPartition, offsets: Mapping[Place, Znode]) -> int | None:
    found = offsets.get(_place(at))
    return None if found is None else found.offset
