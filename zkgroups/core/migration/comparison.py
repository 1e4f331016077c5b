"""Comparing a plan with the current state of both sides, row by row.

The target is compared first: consumers that have continued there do not depend on ZooKeeper.

    | the target has                    | ZooKeeper has        | match                                             |
    |-----------------------------------|----------------------|---------------------------------------------------|
    | a recreated topic of that name    |                      | topic recreated                                   |
    | the expected offset               | the planned node     | equal                                             |
    | the expected offset               | a later write        | source moved                                      |
    | the expected offset               | no such node         | source gone                                       |
    | the offset from before the plan   |                      | not written; or blocked, see below                |
    | a higher, a lower, or no offset   |                      | target ahead, target behind, gone from the target |

The expected offset is the planned one, or the offset from before the plan if the row is not a commit. A group is
blocked if the plan has obstacles, unless it was followed, and moved. A skipped row
without a partition describes a node that is not a partition. It is equal unless nodes of the topic are hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from ..columns import Columns, column
from .changes_since_plan import PlanRows, is_of_source, new_offsets, recreated_topics
from .obstacles import texts
from .offset_decision import Action
from .plan_rows import Match, MatchRow, PlanRow, all_commit, expected_offsets, places
from .rollback_rules import not_moved
from .source_and_target_state import OffsetKey, SourceState, TargetState, TopicIds

_offset = attrgetter("offset")

NO_TOPIC_IDS: Final[TopicIds] = MappingProxyType({})
"""For brokers without topic ids."""


def compare_rows(
    rows: PlanRows,
    source: SourceState | None,
    target: TargetState,
    ids: TopicIds = NO_TOPIC_IDS,
    *,
    moved: bool = False,
) -> Columns[MatchRow]:
    """Compare the rows of a group with both sides, and add rows for offsets that are not in the plan.

    Without a source only the target is compared. Pass `moved` if the group's mark says that this plan has moved it.
    """
    return _Comparison(rows, source, target, ids, moved=moved).matches()


class _Comparison:
    """One group with its state on both sides."""

    def __init__(
        self, rows: PlanRows, source: SourceState | None, target: TargetState, ids: TopicIds, *, moved: bool
    ) -> None:
        self._rows = rows
        self._is_blocked = bool(rows[0].obstacles) and not moved
        self._has_source = source is not None
        self._source = source or SourceState()
        self._unreadable = "; ".join(filter(None, [self._source.unreadable, target.unreadable]))
        self._committed = target.committed
        self._recreated = recreated_topics(rows, ids)

    def matches(self) -> Columns[MatchRow]:
        if self._are_equal():
            return self._equal_rows()  # as usual, and faster
        keys: list[OffsetKey] = [*zip(column(self._rows, "topic"), column(self._rows, "partition"), strict=True)]
        expected = expected_offsets(self._rows)
        matches = [*map(self._match, self._rows, keys, expected)]
        details = [*map(self._detail, self._rows, matches)]
        planned = set(keys)
        unplanned = [key for key in self._native | self._new if key not in planned]
        return self._match_rows(
            keys + unplanned,
            expected + [None] * len(unplanned),
            matches + [Match.AHEAD if key in self._native else Match.SOURCE_MOVED for key in unplanned],
            details + ["not in the plan"] * len(unplanned),
        )

    def _are_equal(self) -> bool:
        """Return whether all rows are equal, and no other offsets exist. If not, each row is compared by itself."""
        if self._unreadable or self._recreated or not all_commit(self._rows):
            return False
        ats = places(self._rows)
        if self._has_source and not self._source.offsets.are(ats, column(self._rows, "zxid")):
            return False
        there = [*map(_offset, self._committed.values())]
        return there == column(self._rows, "planned") and [*self._committed] == [*ats]

    def _equal_rows(self) -> Columns[MatchRow]:
        count, planned = len(self._rows), column(self._rows, "planned")
        columns: dict[str, Sequence[Any]] = {
            name: column(self._rows, name) for name in ("plan", "group", "target", "topic", "partition")
        } | {
            "offset": self._source.offsets.offsets if self._has_source else [None] * count,
            "native": planned,
            "expected": planned,
            "match": [Match.EQUAL] * count,
            "detail": [""] * count,
        }
        columns["dual_commit"] = self._dual_commits(columns["offset"], planned)
        return Columns(MatchRow, count, columns.__getitem__)

    def _dual_commits(self, offsets: Sequence[int | None], native: Sequence[int | None]) -> list[str]:
        return [*map(dual_commit, offsets, native)] if self._has_source else [""] * len(native)

    @cached_property
    def _native(self) -> dict[OffsetKey, int]:
        return {at: found.offset for at, found in self._committed.items()}

    @cached_property
    def _new(self) -> dict[OffsetKey, None]:
        return dict.fromkeys(new_offsets(self._rows, self._source))

    def _match_rows(
        self,
        keys: Sequence[OffsetKey],
        expected: Sequence[int | None],
        matches: Sequence[Match],
        details: Sequence[str],
    ) -> Columns[MatchRow]:
        count = len(keys)
        offsets = [None if node is None else node.offset for node in map(self._source.offsets.get, keys)]
        native = [*map(self._native.get, keys)]
        columns: dict[str, Sequence[Any]] = {
            name: [column(self._rows, name)[0]] * count for name in ("plan", "group", "target")
        } | {
            "topic": [topic for topic, _ in keys],
            "partition": [partition for _, partition in keys],
            "offset": offsets,
            "native": native,
            "expected": expected,
            "match": matches,
            "dual_commit": self._dual_commits(offsets, native),
            "detail": details,
        }
        return Columns(MatchRow, count, columns.__getitem__)

    def _detail(self, row: PlanRow, match: Match) -> str:
        if match is Match.EQUAL:
            return ""
        if match is Match.UNKNOWN:
            return self._unreadable or row.problem or "no such partition"
        if match is Match.BLOCKED:
            return texts(row.obstacles)
        return f"{row.action}: {row.reason}"

    def _match(self, row: PlanRow, key: OffsetKey, expected: int | None) -> Match:
        if self._unreadable:
            return Match.UNKNOWN
        if None in key:
            return Match.EQUAL if self._is_not_a_partition(row, key) else Match.UNKNOWN
        if row.topic in self._recreated:
            return Match.RECREATED
        return self._compare_target(row, expected, self._native.get(key)) or self._compare_source(row, key)

    def _is_not_a_partition(self, row: PlanRow, key: OffsetKey) -> bool:
        """Return whether a row without a partition describes a readable node that the plan skips."""
        hidden = key in self._source.offsets or (None, None) in self._source.offsets
        return row.topic is not None and row.action is Action.SKIP and not not_moved([row]) and not hidden

    def _compare_target(self, row: PlanRow, expected: int | None, native: int | None) -> Match | None:
        """Return how the target differs from the expected offset, or None if it does not."""
        if native == expected and row.action is not Action.REFUSE:
            return None
        if native == row.before:
            return Match.BLOCKED if self._is_blocked else Match.NOT_WRITTEN
        if native is None:
            return Match.GONE
        return Match.AHEAD if expected is None or native > expected else Match.BEHIND

    def _compare_source(self, row: PlanRow, key: OffsetKey) -> Match:
        if not is_of_source(row):
            return Match.SOURCE_MOVED if key in self._new else Match.EQUAL
        if not self._has_source:
            return Match.EQUAL
        node = self._source.offsets.get(key)
        if node is None:
            return Match.SOURCE_GONE
        return Match.EQUAL if node.zxid == row.zxid else Match.SOURCE_MOVED


def dual_commit(offset: int | None, native: int | None) -> str:
    """Return the side with the higher offset: consumers that commit to both continue there.

    >>> dual_commit(7, 9), dual_commit(7, None), dual_commit(7, 7), dual_commit(None, None)
    ('kafka', 'zookeeper', 'either', 'neither')
    """
    if offset == native:
        return "neither" if offset is None else "either"
    return "zookeeper" if native is None or (offset is not None and offset > native) else "kafka"
