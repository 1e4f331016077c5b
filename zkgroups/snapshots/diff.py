"""Compare the offsets of two snapshots by partition, topic or group.

moved       the offset is higher, by `delta`
unchanged   the offset is the same, whatever the lag is; `held` is true if the partition is owned
went-back   the offset is lower
new         the offset is only in the second snapshot
gone        the offset is only in the first snapshot
unreadable  in one snapshot the node is malformed or forbidden

`stalled` is true if the offset is unchanged, and was behind the log end in both snapshots, so that there were messages
to read all the time. It and `lag` are null unless the snapshots have log ends.

`recreated` is true if the node was deleted and recreated in between. `rate` is in messages per second, between the two
commits that the snapshots found. Messages read after the last commit are not included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..core.offsets.changes import CHANGE_FILTERS, STALLED, UNCHANGED_HELD, SnapshotChange, SummaryLevel, count_column
from ..core.selection import Selection
from ..core.table_columns import Table
from ..exceptions import InvalidOptionError
from ..tables.arrow import where_name
from ..tables.parquet_files import arrow_errors
from ..tables.table_reader import lags
from .layout import ChosenSnapshot, SnapshotPair
from .local_snapshot import ArrowLayout

KEY: Final = ("group", "topic", "partition")
_BATCH_ROWS: Final = 10_000


def diff(
    layout: ArrowLayout,
    of: SnapshotPair,
    *,
    by: SummaryLevel | str = SummaryLevel.GROUP,
    groups: str | None = None,
    topics: str | None = None,
) -> Any:
    """Compare two chosen snapshots, and return an Arrow table. `zkgroups.spark.diff_snapshots` has its columns."""
    if by not in set(SummaryLevel):
        raise InvalidOptionError("by", by, f"it must be one of {', '.join(SummaryLevel)}")
    selection = Selection(groups, topics)
    with arrow_errors("the snapshots cannot be compared"):
        before, after = (_read(layout, each, selection) for each in (of.before, of.after))
        both = _side(before, "a_").join(_side(after, "b_"), list(KEY), join_type="full outer").combine_chunks()
        both = both.append_column("state", _state(both, {"a_": _hidden(before), "b_": _hidden(after)}))
        rows = _rows(both, of.after.cluster)
        return rows if by == SummaryLevel.PARTITION else _grouped(rows, SummaryLevel(by))


def with_states(rows: Any, states: Collection[str]) -> Any:
    """Select the rows of a diff with an offset in one of these states. Unchanged-held counts as a state."""
    nothing = pa.repeat(pa.scalar(False), len(rows))
    return rows.filter(reduce(pc.or_, [_is_in(rows, state) for state in states], nothing))


def totals(rows: Any) -> Mapping[str, int]:
    """Count the offsets of a diff by state, and the unchanged-held and stalled ones."""
    if "state" in rows.column_names:
        return {state: pc.sum(_is_in(rows, state)).as_py() or 0 for state in CHANGE_FILTERS}
    return {state: pc.sum(rows.column(count_column(state))).as_py() or 0 for state in CHANGE_FILTERS}


def iterate(rows: Any) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a diff, sorted by name."""
    keys = [(name, "ascending") for name in KEY if name in rows.column_names]
    for batch in rows.sort_by(keys).to_batches(max_chunksize=_BATCH_ROWS):
        yield from batch.to_pylist()


def _is_in(rows: Any, state: str) -> Any:
    if "state" not in rows.column_names:
        return pc.greater(rows.column(count_column(state)), 0)
    if state == UNCHANGED_HELD:
        return pc.and_(pc.equal(rows.column("state"), SnapshotChange.UNCHANGED.value), rows.column("held"))
    return rows.column(STALLED) if state == STALLED else pc.equal(rows.column("state"), str(state))


# Reading


def _read(layout: ArrowLayout, choice: ChosenSnapshot, selection: Selection) -> Any:
    """Return the selected offsets, and the rows that report a group whose topics may not be listed."""
    rows = layout.rows(Table.OFFSETS, choice)
    if selection.groups is not None:
        rows = rows.filter(where_name(rows.column("group"), selection.has_group))
    if selection.topics is not None:
        has_topic = selection.has_topic
        rows = rows.filter(where_name(rows.column("topic"), lambda topic: topic is None or has_topic("", topic)))
    return rows


def _side(rows: Any, prefix: str) -> Any:
    """Return the columns to compare. Rows without a partition report a forbidden node, and are left out."""
    if rows.column("partition").null_count:
        rows = rows.filter(pc.is_valid(rows.column("partition")))
    values = {
        "there": pa.repeat(pa.scalar(True), len(rows)),
        "offset": rows.column("offset"),
        "count": rows.column("commit_count").cast(pa.int64()),
        "committed": rows.column("committed_at"),
        "created": rows.column("created_at"),
        "held": pc.is_valid(rows.column("owner")),
        "end": rows.column("log_end"),
    }
    keys = {name: rows.column(name) for name in KEY}
    return pa.table(keys | {f"{prefix}{name}": value for name, value in values.items()})


def _hidden(rows: Any) -> Any:
    """Return the groups ("group/") and topics ("group/topic") whose children may not be listed."""
    forbidden = rows.filter(pc.and_(pc.is_null(rows.column("partition")), pc.is_null(rows.column("raw"))))
    return pc.unique(_joined(forbidden.column("group"), pc.fill_null(forbidden.column("topic"), "")))


def _joined(groups: Any, topics: Any) -> Any:
    return pc.binary_join_element_wise(groups, topics, "/")


# Comparing


def _state(both: Any, hidden: Mapping[str, Any]) -> Any:
    """Return the state of each offset. An offset missing below a forbidden node is unreadable, not gone or new."""
    a_offset, b_offset = both.column("a_offset"), both.column("b_offset")
    missing = {prefix: pc.is_null(both.column(f"{prefix}there")) for prefix in hidden}
    conditions = [
        (SnapshotChange.WENT_BACK, pc.less(b_offset, a_offset)),
        (SnapshotChange.MOVED, pc.greater(b_offset, a_offset)),
        (SnapshotChange.GONE, missing["b_"]),
        (SnapshotChange.NEW, missing["a_"]),
    ]
    for prefix, names in hidden.items():
        unseen = pc.and_(missing[prefix], _is_below(both, names))
        malformed = pc.and_(pc.invert(missing[prefix]), pc.is_null(both.column(f"{prefix}offset")))
        conditions.append((SnapshotChange.UNREADABLE, pc.or_(unseen, malformed)))
    state = pa.repeat(pa.scalar(SnapshotChange.UNCHANGED.value), len(both))
    for value, holds in conditions:  # the last one that holds counts
        state = pc.if_else(pc.fill_null(holds, False), value.value, state)
    return state


def _is_below(both: Any, hidden: Any) -> Any:
    if not len(hidden):  # as usual, and faster
        return pa.scalar(False)
    group, topic = both.column("group"), both.column("topic")
    of_group = pc.is_in(_joined(group, pa.scalar("")), value_set=hidden)
    return pc.or_(of_group, pc.is_in(_joined(group, topic), value_set=hidden))


def _rows(both: Any, cluster: str | None) -> Any:
    a_committed, b_committed = both.column("a_committed"), both.column("b_committed")
    delta = pc.subtract(both.column("b_offset"), both.column("a_offset"))
    micros = pc.subtract(b_committed.cast(pa.int64()), a_committed.cast(pa.int64()))
    recreated = pc.fill_null(pc.not_equal(both.column("a_created"), both.column("b_created")), False)
    commits = pc.subtract(both.column("b_count"), both.column("a_count"))
    held = (pc.fill_null(both.column(f"{prefix}held"), False) for prefix in ("a_", "b_"))
    a_lag, b_lag = (lags(both.column(f"{prefix}offset"), both.column(f"{prefix}end")) for prefix in ("a_", "b_"))
    columns = {
        "cluster": pa.repeat(pa.scalar(cluster, pa.string()), len(both)),
        **{name: both.column(name) for name in KEY},
        "state": both.column("state"),
        "before": both.column("a_offset"),
        "after": both.column("b_offset"),
        "delta": delta,
        "rate": _rate(both.column("state"), delta, micros),
        "commits": pc.if_else(recreated, pa.scalar(None, pa.int64()), commits),
        "recreated": recreated,
        "held": pc.or_(*held),
        STALLED: _stalled(both),
        "lag": b_lag,
        "lag_delta": pc.subtract(b_lag, a_lag),
        "committed_at": pc.coalesce(b_committed, a_committed),
    }
    return pa.table(columns)


def _stalled(both: Any) -> Any:
    """Return whether each offset is unchanged although behind the log end; null if a log end is unknown."""
    behind = [pc.greater(both.column(f"{prefix}end"), both.column(f"{prefix}offset")) for prefix in ("a_", "b_")]
    stalled = pc.and_(pc.equal(both.column("state"), SnapshotChange.UNCHANGED.value), pc.and_(*behind))
    known = pc.and_(*(pc.is_valid(both.column(f"{prefix}end")) for prefix in ("a_", "b_")))
    return pc.if_else(known, pc.fill_null(stalled, False), pa.scalar(None, pa.bool_()))


def _rate(state: Any, delta: Any, micros: Any) -> Any:
    """Return the messages per second between the two commits; null unless the offset moved or is unchanged."""
    known = pc.fill_null(pc.and_(pc.equal(state, SnapshotChange.MOVED.value), pc.greater(micros, 0)), False)
    seconds = pc.divide(pc.if_else(known, micros, pa.scalar(None, pa.int64())).cast(pa.float64()), 1e6)
    moving = pc.divide(delta.cast(pa.float64(), safe=False), seconds)
    return pc.if_else(pc.equal(state, SnapshotChange.UNCHANGED.value), 0.0, moving)


# Counting


def _grouped(rows: Any, by: SummaryLevel) -> Any:
    """Count the states by group or topic. A sum that overflows is null."""
    names = ["cluster", "group"] if by is SummaryLevel.GROUP else ["cluster", "group", "topic"]
    counted = {count_column(state): _is_in(rows, state).cast(pa.int64()) for state in CHANGE_FILTERS}
    counted["recreated"] = rows.column("recreated").cast(pa.int64())
    sums = counted | {name: rows.column(name) for name in ("delta", "rate", "lag", "lag_delta")}
    sums |= {name: sums[name].cast(pa.decimal128(38)) for name in _LONG_SUMS}
    plain = pa.table({name: rows.column(name) for name in names} | sums | {"committed_at": rows.column("committed_at")})
    how = [([], "count_all"), *((name, "sum") for name in sums), ("committed_at", "max")]
    found = plain.group_by(names).aggregate(how)
    columns = {name: found.column(name) for name in names} | {"partitions": found.column("count_all")}
    columns |= {name: found.column(f"{name}_sum") for name in sums}
    columns |= {name: _as_long(columns[name]) for name in _LONG_SUMS}
    return pa.table(columns | {"committed_at": found.column("committed_at_max")})


def _as_long(sums: Any) -> Any:
    fits = pc.and_(pc.less(sums, _LIMIT), pc.greater_equal(sums, pc.negate(_LIMIT)))
    return pc.if_else(fits, sums, pa.scalar(None, sums.type)).cast(pa.int64())


_LONG_SUMS: Final = ("delta", "lag", "lag_delta")
_LIMIT: Final = pa.scalar(2**63, pa.decimal128(38))
