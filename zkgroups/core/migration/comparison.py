"""Comparing a plan with the current state of both sides, row by row.

The target is compared first: consumers that have continued there do not depend on ZooKeeper.

    | the target has                    | ZooKeeper has        | match                                             |
    |-----------------------------------|----------------------|---------------------------------------------------|
    | a recreated topic of that name    |                      | topic recreated                                   |
    | the expected offset               | the planned node     | equal                                             |
    | the expected offset               | a later write        | source moved                                      |
    | the expected offset               | no such node         | source gone                                       |
    | the offset from before the plan   |                      | not written                                       |
    | a higher, a lower, or no offset   |                      | target ahead, target behind, gone from the target |

The expected offset is the planned one, or the offset from before the plan if the row is not a commit. A skipped row
without a partition describes a node that is not a partition. It is equal unless nodes of the topic are hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from .changes_since_plan import PlanRows, is_of_source, new_offsets
from .offset_decision import Action
from .plan_rows import Match, MatchRow, PlanRow
from .rollback_rules import not_moved
from .source_and_target_state import OffsetKey, SourceState, TargetState, TopicIds, is_recreated

NO_TOPIC_IDS: Final[TopicIds] = MappingProxyType({})
"""For brokers without topic ids."""


def compare_rows(
    rows: PlanRows, source: SourceState | None, target: TargetState, ids: TopicIds = NO_TOPIC_IDS
) -> list[MatchRow]:
    """Compare the rows of a group with both sides, and add rows for offsets that are not in the plan.

    Without a source only the target is compared.
    """
    return list(_Comparison(rows, source, target, ids).matches())


class _Comparison:
    """One group with its state on both sides."""

    def __init__(self, rows: PlanRows, source: SourceState | None, target: TargetState, ids: TopicIds) -> None:
        self._rows = rows
        self._ids = ids
        self._has_source = source is not None
        self._source = source or SourceState()
        self._unreadable = "; ".join(filter(None, [self._source.unreadable, target.unreadable]))
        self._native: dict[OffsetKey, int] = {
            (at.topic, at.partition): found.offset for at, found in target.committed.items()
        }
        self._new = dict.fromkeys(new_offsets(rows, self._source))

    def matches(self) -> Iterator[MatchRow]:
        planned = {(row.topic, row.partition) for row in self._rows}
        yield from map(self._compare, self._rows)
        for key in self._native | self._new:
            if key not in planned:
                yield self._unplanned(key)

    def _compare(self, row: PlanRow) -> MatchRow:
        key = (row.topic, row.partition)
        match = self._match(row, key)
        match match:
            case Match.EQUAL:
                detail = ""
            case Match.UNKNOWN:
                detail = self._unreadable or row.problem or "no such partition"
            case _:
                detail = f"{row.action}: {row.reason}"
        return self._row(row, key, row.expected, match, detail)

    def _match(self, row: PlanRow, key: OffsetKey) -> Match:
        if self._unreadable:
            return Match.UNKNOWN
        if None in key:
            return Match.EQUAL if self._is_not_a_partition(row, key) else Match.UNKNOWN
        if is_recreated(row.topic, row.topic_id, self._ids):
            return Match.RECREATED
        return _compare_target(row, self._native.get(key)) or self._compare_source(row, key)

    def _is_not_a_partition(self, row: PlanRow, key: OffsetKey) -> bool:
        """Return whether a row without a partition describes a readable node that the plan skips."""
        hidden = key in self._source.offsets or (None, None) in self._source.offsets
        return row.topic is not None and row.action is Action.SKIP and not not_moved([row]) and not hidden

    def _compare_source(self, row: PlanRow, key: OffsetKey) -> Match:
        if not is_of_source(row):
            return Match.SOURCE_MOVED if key in self._new else Match.EQUAL
        if not self._has_source:
            return Match.EQUAL
        if key not in self._source.offsets:
            return Match.SOURCE_GONE
        return Match.EQUAL if self._source.offsets[key].zxid == row.zxid else Match.SOURCE_MOVED

    def _unplanned(self, key: OffsetKey) -> MatchRow:
        match = Match.AHEAD if key in self._native else Match.SOURCE_MOVED
        return self._row(self._rows[0], key, None, match, "not in the plan")

    def _row(self, like: PlanRow, key: OffsetKey, expected: int | None, match: Match, detail: str) -> MatchRow:
        node = self._source.offsets.get(key)
        offset, native = None if node is None else node.offset, self._native.get(key)
        return MatchRow(
            plan=like.plan,
            group=like.group,
            topic=key[0],
            partition=key[1],
            target=like.target,
            offset=offset,
            native=native,
            expected=expected,
            match=match,
            dual_commit=dual_commit(offset, native) if self._has_source else "",
            detail=detail,
        )


def _compare_target(row: PlanRow, native: int | None) -> Match | None:
    """Return how the target differs from the expected offset, or None if it does not."""
    expected = row.expected
    if native == expected and row.action is not Action.REFUSE:
        return None
    if native == row.before:
        return Match.NOT_WRITTEN
    if native is None:
        return Match.GONE
    return Match.AHEAD if expected is None or native > expected else Match.BEHIND


def dual_commit(offset: int | None, native: int | None) -> str:
    """Return the side with the higher offset, where a consumer that commits to both continues.

    >>> dual_commit(7, 9), dual_commit(7, None), dual_commit(7, 7), dual_commit(None, None)
    ('kafka', 'zookeeper', 'either', 'neither')
    """
    if offset == native:
        return "neither" if offset is None else "either"
    return "zookeeper" if native is None or (offset is not None and offset > native) else "kafka"
