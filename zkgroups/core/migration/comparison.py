"""A plan against what both sides have now: row by row, and by groups.

The target is compared first, because who reads on there does so whatever ZooKeeper says.

    | the target has              | ZooKeeper has                 | match         |
    |-----------------------------|-------------------------------|---------------|
    | another topic of that name  |                               | topic recreated |
    | what it is to have          | what it was planned from      | equal         |
    | what it is to have          | another write of the node     | source moved  |
    | what it is to have          | nothing any more              | source gone   |
    | what it had before          |                               | not written   |
    | a higher, a lower, no offset|                               | target ahead, target behind, gone from the target |

What it is to have is the planned offset, or the offset before the plan if none is to be written. Rows without a
partition that the plan skips belong to nodes that are not partitions. They are equal as long as nothing is hidden
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final

from ..kafka_values import NativeOffset
from ..znodes.topic_partition import TopicPartition
from .apply_rules import (
    Place,
    Rows,
    SourceSeen,
    TargetSeen,
    TopicIds,
    is_as_before,
    is_made_anew,
    is_to_commit,
    new_offsets,
    not_moved,
    of_source,
)
from .plain_groups import Group, Natives, Znodes
from .plan_rows import Match, MatchRow, PlanRow
from .rules import Action

NO_IDS: Final[TopicIds] = MappingProxyType({})
"""For brokers that have no topic ids."""


def matches(rows: Rows, source: SourceSeen | None, target: TargetSeen, ids: TopicIds = NO_IDS) -> list[MatchRow]:
    """The rows of a group against both sides, and what either has that is not in the plan; source None: not asked."""
    return list(_Sides(rows, source, target, ids).matches())


def all_equal(
    group: Group, source: SourceSeen | None, target: TargetSeen, ids: TopicIds = NO_IDS
) -> dict[str, Any] | None:
    """The same rows as columns, where all are equal; None where they are not, or have to be looked at one by one."""
    plain, native = group.plain, target.committed
    if (
        plain is None
        or source is None
        or not isinstance(native, Natives)
        or not isinstance(source.offsets, Znodes)
        or source.unreadable
        or target.unreadable
        or not plain.shape == native.shape == source.offsets.shape
        or native.offsets != plain.planned
        or source.offsets.zxids != plain.zxids
        or any(map(is_made_anew, plain.shape.topics, plain.topic_ids, repeat(ids)))
    ):
        return None
    offsets = source.offsets.offsets
    like = {name: group.column(name) for name in ("plan", "group", "topic", "partition", "target")}
    both = ["either"] * len(group) if offsets == plain.planned else list(map(dual_commit, offsets, plain.planned))
    numbers = {"offset": offsets, "native": plain.planned, "expected": plain.planned}
    return {**like, **numbers, "match": Match.EQUAL, "dual_commit": both, "detail": ""}


class _Sides:
    """What both sides have of one group."""

    def __init__(self, rows: Rows, source: SourceSeen | None, target: TargetSeen, ids: TopicIds) -> None:
        self._rows = rows
        self._ids = ids
        self._asked = source is not None
        self._source = source or SourceSeen()
        self._unreadable = "; ".join(filter(None, [self._source.unreadable, target.unreadable]))
        self._native: dict[Place, int] = {(at.topic, at.partition): it.offset for at, it in target.committed.items()}
        self._new = dict.fromkeys(new_offsets(rows, self._source))

    def matches(self) -> Iterator[MatchRow]:
        planned = {(row.topic, row.partition) for row in self._rows}
        yield from map(self._planned, self._rows)
        for place in self._native | self._new:
            if place not in planned:
                yield self._new_one(place)

    def _planned(self, row: PlanRow) -> MatchRow:
        place = (row.topic, row.partition)
        expected = row.planned if is_to_commit(row) else row.before
        if detail := self._unreadable or ("" if None not in place else self._why_unknown(row, place)):
            return self._row(row, place, expected, Match.UNKNOWN, detail)
        if None in place:
            return self._row(row, place, expected, Match.EQUAL, "")
        if is_made_anew(row.topic, row.topic_id, self._ids):
            return self._row(row, place, expected, Match.MADE_ANEW, f"{row.action}: {row.reason}")
        match = _on_target(row, self._native.get(place), expected) or self._in_zookeeper(row, place)
        return self._row(row, place, expected, match, "" if match is Match.EQUAL else f"{row.action}: {row.reason}")

    def _why_unknown(self, row: PlanRow, place: Place) -> str:
        """Of a row without a partition; who may not list a topic, or all of them, finds a place without one, too."""
        hidden = place in self._source.offsets or (None, None) in self._source.offsets
        skipped = place[0] is not None and row.action is Action.SKIP and not not_moved([row])
        return "" if skipped and not hidden else row.problem or "there is no such partition"

    def _in_zookeeper(self, row: PlanRow, place: Place) -> Match:
        if not of_source(row):
            return Match.SOURCE_MOVED if place in self._new else Match.EQUAL
        if not self._asked:
            return Match.EQUAL
        if place not in self._source.offsets:
            return Match.SOURCE_GONE
        return Match.EQUAL if self._source.offsets[place].zxid == row.zxid else Match.SOURCE_MOVED

    def _new_one(self, place: Place) -> MatchRow:
        match = Match.AHEAD if place in self._native else Match.SOURCE_MOVED
        return self._row(self._rows[0], place, None, match, "not in the plan")

    def _row(self, like: PlanRow, place: Place, expected: int | None, match: Match, detail: str) -> MatchRow:
        znode = self._source.offsets.get(place)
        offset, native = None if znode is None else znode.offset, self._native.get(place)
        return MatchRow(
            plan=like.plan,
            group=like.group,
            topic=place[0],
            partition=place[1],
            target=like.target,
            offset=offset,
            native=native,
            expected=expected,
            match=match,
            dual_commit=dual_commit(offset, native) if self._asked else "",
            detail=detail,
        )


def _on_target(row: PlanRow, native: int | None, expected: int | None) -> Match | None:
    """How the target differs from what it is to have, None where it does not."""
    refused = row.action is Action.REFUSE
    if native == expected and not refused:
        return None
    if native == row.before:
        return Match.NOT_WRITTEN
    if native is None:
        return Match.GONE
    return Match.AHEAD if expected is None or native > expected else Match.BEHIND


def dual_commit(offset: int | None, native: int | None) -> str:
    """Which side a consumer that commits to both goes on from, which is the higher.

    >>> dual_commit(7, 9), dual_commit(7, None), dual_commit(7, 7), dual_commit(None, None)
    ('kafka', 'zookeeper', 'either', 'neither')
    """
    if offset == native:
        return "neither" if offset is None else "either"
    return "zookeeper" if native is None or (offset is not None and offset > native) else "kafka"


# By groups


class Stage(StrEnum):
    """How far a group is."""

    NOT_BEGUN = "not begun"
    PARTLY = "partly"
    """Some offsets are as planned and some as before, or are gone: apply or rollback was killed, or rows failed."""
    DONE = "done"
    NOT_MARKED = "not marked"
    """As planned, and yet old members may come, and go on where they were: it is followed, or its mark is gone."""
    NOTHING = "nothing to do"
    """As before, and the plan writes no offset of it."""
    ROLLED_BACK = "rolled back"
    """As before, and the newest report that has written says so."""
    MOVED_ON = "moved on"
    """Somebody else has committed on the target."""
    BLOCKED = "blocked"
    """As before, and the plan has obstacles."""
    UNKNOWN = "unknown"
    """The target could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """One group of a plan as it is now."""

    plan: str
    group: str
    target: str
    stage: Stage
    as_planned: int
    """So many of the offsets to write are there."""
    as_before: int
    """So many are still as they were."""
    otherwise: int
    """So many of the target's are neither, or are new."""
    mark: str
    """What the group's mark says; empty where there is none, or no ZooKeeper."""
    detail: str


def status(rows: Rows, target: TargetSeen, mark: str, *, moved: bool) -> GroupStatus:
    """How far a group is, as far as it can be seen: who has put it back is told by reports.

    `moved` is whether its mark says that this plan has moved it, or nobody can be asked.
    """
    counts = _Counts.of(rows, target.committed)
    stage = Stage.UNKNOWN if target.unreadable else _stage(rows, counts)
    stage = Stage.NOT_MARKED if stage is Stage.DONE and not moved else stage
    return GroupStatus(
        plan=rows[0].plan,
        group=rows[0].group,
        target=rows[0].target,
        stage=stage,
        as_planned=counts.as_planned,
        as_before=counts.as_before,
        otherwise=counts.otherwise,
        mark=mark,
        detail="; ".join(filter(None, [target.unreadable, _NOT_CLOSED.get(stage), *rows[0].obstacles])),
    )


_NOT_CLOSED: Final = {Stage.NOT_MARKED: "nothing in ZooKeeper says that this plan has moved it: old members may come"}


@dataclass(frozen=True, slots=True)
class _Counts:
    as_planned: int
    as_before: int
    otherwise: int
    gone: int

    @classmethod
    def of(cls, rows: Rows, committed: Mapping[TopicPartition, NativeOffset]) -> _Counts:
        as_planned = as_before = otherwise = gone = 0
        for row in rows:
            now = None if row.at is None else committed.get(row.at)
            if is_to_commit(row) and now is not None and now.offset == row.planned:
                as_planned += 1
            elif is_as_before(row, now):
                as_before += is_to_commit(row)
            elif now is None:
                gone += 1
            else:
                otherwise += 1
        new = len(committed.keys() - {row.at for row in rows})
        return cls(as_planned, as_before, otherwise + new, gone)


def _stage(rows: Rows, counts: _Counts) -> Stage:
    if counts.otherwise:
        return Stage.MOVED_ON
    if counts.gone or (counts.as_planned and counts.as_before):
        return Stage.PARTLY
    if counts.as_planned:
        return Stage.DONE
    if rows[0].obstacles:
        return Stage.BLOCKED
    return Stage.NOT_BEGUN if counts.as_before else Stage.NOTHING
