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

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from ..core.offsets.changes import CHANGE_FILTERS, STALLED, UNCHANGED_HELD, SnapshotChange, SummaryLevel, count_column
from ..core.table_columns import Table
from ..exceptions import InvalidOptionError
from ..snapshots.layout import ChosenSnapshot, SnapshotPair
from ..storage.snapshot_folder import LATEST, PREVIOUS, Summary
from .data_source import strict_reader, to_current_columns
from .errors import translated
from .lag import lag
from .snapshots import Layout

# Read the offsets of two snapshots in aligned parts.
#
# Each share of a snapshot is written to its own files. A topic's share depends on its name and the number of shares
# (see `selection.py`). So if two snapshots have equally many shares, one task can join the files of one share without
# a shuffle. Otherwise Spark shuffles all rows of both.


_MOST: Final = 64
"""With more shares, planning a union of them takes longer than a shuffle."""

_SHARE: Final = re.compile("part-([0-9]+)-.*")


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One of the two snapshots, with its summary. All of its files are present."""

    layout: Layout
    name: str
    summary: Summary | None
    cluster: str | None

    @classmethod
    def of(cls, spark: SparkSession, choice: ChosenSnapshot) -> DiffSide:
        """Check that all files of the snapshot are present."""
        layout = Layout(spark, choice.destination)
        summary = layout.summary(choice.name)
        layout.check_intact(Table.OFFSETS, choice.name, summary)
        return cls(layout, choice.name, summary, choice.cluster)

    @property
    def origin(self) -> str:
        """The snapshot and its folder, for messages."""
        return f"snapshot {self.name} in {self.layout}"

    def rows(self) -> DataFrame:
        """Return the offsets of the chosen cluster, in the columns of this version."""
        everything = self.layout.read_as_written(Table.OFFSETS, self.name)
        return self.only_cluster(to_current_columns(everything, Table.OFFSETS, self.origin))

    @property
    def may_have_forbidden_nodes(self) -> bool:
        """Whether the snapshot may report forbidden nodes."""
        return self.summary is None or self.summary.tables[Table.OFFSETS].problems > 0

    def only_cluster(self, rows: DataFrame) -> DataFrame:
        """Filter by cluster, unless the summary shows that all rows belong to it."""
        if self.cluster is None or (self.summary is not None and self.summary.cluster == self.cluster):
            return rows
        return rows.where(f.col("cluster") == self.cluster)

    def shares(self) -> Mapping[int, Sequence[str]]:
        """Return the files of each share; empty if unknown."""
        if self.summary is None or not 0 < self.summary.shares <= _MOST:
            return {}
        folder = self.layout.table(Table.OFFSETS, self.name)
        found: defaultdict[int, list[str]] = defaultdict(list)
        for file in self.summary.tables[Table.OFFSETS].files:
            if (match := _SHARE.fullmatch(file)) is None:
                return {}
            found[int(match[1])].append(f"{folder}/{file}")
        return found if max(found, default=0) < self.summary.shares else {}

    def read_files(self, spark: SparkSession, files: Sequence[str]) -> DataFrame:
        """Read some of its files in one task."""
        assert self.summary is not None
        columns = StructType.fromJson(json.loads(self.summary.tables[Table.OFFSETS].columns))
        read = strict_reader(spark).schema(columns).parquet(*files)
        return self.only_cluster(to_current_columns(read, Table.OFFSETS, self.origin)).coalesce(1)


def aligned_parts(spark: SparkSession, before: DiffSide, after: DiffSide) -> list[tuple[DataFrame, DataFrame]]:
    """Split both into parts, so that each offset is in the same part of both."""
    before_files, after_files = before.shares(), after.shares()
    if not before_files or before_files.keys() != after_files.keys() or _count(before) != _count(after):
        return [(before.rows(), after.rows())]
    return [
        (before.read_files(spark, before_files[k]), after.read_files(spark, after_files[k]))
        for k in sorted(before_files)
    ]


def _count(side: DiffSide) -> int:
    return 0 if side.summary is None else side.summary.shares


KEY: Final = ("group", "topic", "partition")
_HASH: Final = "xxhash64(`group`, topic, partition)"


def choose_pair(
    spark: SparkSession,
    destination: str,
    before: str = PREVIOUS,
    after: str = LATEST,
    *,
    cluster: str | None = None,
    address: str | None = None,
) -> SnapshotPair:
    """Choose two snapshots of the named cluster, or of the one at the address, or of the only one."""
    layout = Layout(spark, destination)
    last = layout.choose_in_cluster(after, cluster=cluster, address=address)
    return SnapshotPair(layout.choose_in_cluster(before, cluster=cluster or last.cluster), last)


def diff_snapshots(
    spark: SparkSession,
    destination: str,
    before: str = PREVIOUS,
    after: str = LATEST,
    *,
    by: SummaryLevel | str = SummaryLevel.GROUP,
    cluster: str | None = None,
    groups: str | None = None,
    topics: str | None = None,
) -> DataFrame:
    """Compare the offsets of two snapshots.

    - `before`, `after`: the snapshots: "latest", "previous", a name, or a time such as "2026-01-31 12:00" in UTC, which
      means the latest snapshot at or before it.
    - `by`: one row per "group", "topic" or "partition".
    - `cluster`: the value of the column `cluster`, if the destination has snapshots of several.
    - `groups`, `topics`: regular expressions that must match the whole names.

    By partition, the columns are cluster, group, topic, partition, `state`, the offsets `before` and `after`, `delta`,
    `rate`, `commits`, `recreated`, `held`, `stalled`, `lag`, `lag_delta` and `committed_at`. The states are:

        moved       the offset is higher, by `delta`
        unchanged   the offset is the same; `held` is true if the partition is owned
        went-back   the offset is lower
        new         the offset is only in the second snapshot
        gone        the offset is only in the first snapshot
        unreadable  in one snapshot the node is malformed or forbidden

    `stalled` is true if the offset is unchanged, and was behind the log end in both snapshots. `lag` is that of the
    second snapshot, and `lag_delta` its change. They are null if unknown, for example without log ends.

    By group and topic, the columns are the number of `partitions`, the numbers of them in each state (`moved`,
    `unchanged`, `went_back`, `new`, `gone`, `unreadable`), `unchanged_held`, `stalled`, and `recreated`; then the sums
    `delta`, `rate`, `lag` and `lag_delta`, and the last `committed_at`. `rate` is in messages per second, between the
    two commits. Sums are of the known values, and null if none is known.
    """
    if by not in set(SummaryLevel):
        raise InvalidOptionError("by", by, f"it must be one of {', '.join(SummaryLevel)}")
    return diff(
        spark, choose_pair(spark, destination, before, after, cluster=cluster), by=by, groups=groups, topics=topics
    )


def diff(
    spark: SparkSession,
    of: SnapshotPair,
    *,
    by: SummaryLevel | str = SummaryLevel.GROUP,
    groups: str | None = None,
    topics: str | None = None,
) -> DataFrame:
    """Compare two chosen snapshots; see `diff_snapshots`."""
    with translated("the snapshots cannot be compared"):
        before, after = DiffSide.of(spark, of.before), DiffSide.of(spark, of.after)
        joined = reduce(
            DataFrame.unionByName,
            [
                _joined(_selected(a, groups, topics), _selected(b, groups, topics))
                for a, b in aligned_parts(spark, before, after)
            ],
        )
        hidden = {
            prefix: _hidden(_selected(side.rows(), groups, topics), prefix)
            for prefix, side in (("a_", before), ("b_", after))
            if side.may_have_forbidden_nodes
        }
        rows = _with_state(joined, hidden).select(f.lit(of.after.cluster).alias("cluster"), *map(f.expr, _COLUMNS))
        return (
            rows.withColumn("state", f.expr(_NAMED))
            if by == SummaryLevel.PARTITION
            else _grouped(rows, SummaryLevel(by))
        )


def with_states(rows: DataFrame, states: Collection[str]) -> DataFrame:
    """Select the rows of a diff with an offset in one of these states. Unchanged-held counts as a state."""
    return rows.where(reduce(Column.__or__, [f.expr(_is_in(rows, state)) for state in states], f.lit(False)))


def _is_in(rows: DataFrame, state: str) -> str:
    if "state" not in rows.columns:
        return f"{count_column(state)} > 0"
    if state == STALLED:
        return STALLED
    return f"state = '{SnapshotChange.UNCHANGED}' and held" if state == UNCHANGED_HELD else f"state = '{state}'"


def totals(rows: DataFrame) -> Mapping[str, int]:
    """Count the offsets of a diff by state, and the unchanged-held and stalled ones."""
    is_grouped = "state" not in rows.columns
    sums = [
        f"sum({count_column(state)})" if is_grouped else f"count_if({_is_in(rows, state)})" for state in CHANGE_FILTERS
    ]
    with translated("the snapshots cannot be compared"):
        [found] = rows.agg(*map(f.expr, sums)).collect()
    return {state: number or 0 for state, number in zip(CHANGE_FILTERS, found, strict=True)}


def iterate(rows: DataFrame) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a diff, sorted by name, without loading all into memory."""
    with translated("the snapshots cannot be compared"):
        for row in rows.sort(*(name for name in KEY if name in rows.columns)).toLocalIterator():
            yield row.asDict()


def _selected(rows: DataFrame, groups: str | None, topics: str | None) -> DataFrame:
    if groups is not None:
        rows = rows.where(_matches("group", groups))
    if topics is not None:
        rows = rows.where(f.col("topic").isNull() | _matches("topic", topics))
    return rows


def _matches(name: str, expression: str) -> Column:
    return f.col(name).rlike(f"^(?s:{expression})\\z")


def _side(rows: DataFrame, prefix: str) -> DataFrame:
    """Select the columns to compare. Rows without a partition report a forbidden node, and are left out."""
    values = {
        "offset": "offset",
        "count": "commit_count",
        "committed": "committed_at",
        "created": "created_at",
        "held": "owner is not null",
        "end": "log_end",
    }
    named = (f"{value} as {prefix}{name}" for name, value in values.items())
    return rows.where("partition is not null").selectExpr(f"{_HASH} as {prefix}hash", *_quoted(KEY), *named)


def _quoted(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def _joined(before: DataFrame, after: DataFrame) -> DataFrame:
    """Join by a hash of the names, and compare the names only if the hashes are equal.

    Sorting by names would take most of the time, because they have long common prefixes. The comparison is written with
    `nullif`, because Spark would sort by columns compared with `=`.
    """
    same = (f"nullif(a.{name}, b.{name}) is null" for name in _quoted(KEY))
    names = (f"coalesce(a.{name}, b.{name}) as {name}" for name in _quoted(KEY))
    a, b = _side(before, "a_").alias("a"), _side(after, "b_").alias("b")
    both = a.join(b.hint("merge"), f.expr(" and ".join(["a_hash = b_hash", *same])), "full")
    return both.selectExpr(*names, *(name for name in both.columns if name.startswith(("a_", "b_"))))


def _hidden(rows: DataFrame, prefix: str) -> DataFrame:
    """Return the groups and topics whose children may not be listed: few, if any."""
    forbidden = rows.where("partition is null and raw is null").select(f.col("group"), f.col("topic")).distinct()
    return f.broadcast(forbidden.select(*(f.col(name).alias(f"{prefix}hidden_{name}") for name in ("group", "topic"))))


def _with_state(joined: DataFrame, hidden: Mapping[str, DataFrame]) -> DataFrame:
    """Add the state. An offset missing below a forbidden node is unreadable, not gone or new."""
    for prefix, forbidden in hidden.items():
        group, topic = f.col(f"{prefix}hidden_group"), f.col(f"{prefix}hidden_topic")
        of_topic = forbidden.where(topic.isNotNull())
        of_group = forbidden.where(topic.isNull()).select(group.alias(f"{prefix}hidden_whole"))
        joined = joined.join(of_topic, (f.col("group") == group) & (f.col("topic") == topic), "left")
        joined = joined.join(of_group, f.col("group") == f.col(f"{prefix}hidden_whole"), "left")
    return joined.withColumn("state", f.expr(_state(hidden)))


# The following is SQL text, because building it with one call to Java per term takes longer than a small diff.

_NUMBERS: Final = {state: number for number, state in enumerate(SnapshotChange)}
"""Numbers of the states, because numbers compare faster than texts."""


def _state(hidden: Collection[str]) -> str:
    """Return the SQL expression for the number of the state."""
    unseen = {p: f"coalesce({p}hidden_group, {p}hidden_whole) is not null" for p in hidden}
    number = {count_column(state): number for state, number in _NUMBERS.items()}
    return """case
        when a_hash is not null and a_offset is null or b_hash is not null and b_offset is null then {unreadable}
        when a_hash is null and {before_unseen} or b_hash is null and {after_unseen} then {unreadable}
        when a_hash is null then {new}
        when b_hash is null then {gone}
        when b_offset > a_offset then {moved}
        when b_offset < a_offset then {went_back}
        else {unchanged} end""".format(
        before_unseen=unseen.get("a_", "false"), after_unseen=unseen.get("b_", "false"), **number
    )


_NAMED: Final = f"array({', '.join(repr(state.value) for state in _NUMBERS)})[state]"
_RECREATED: Final = "coalesce(a_created != b_created, false)"
_DELTA: Final = "try_subtract(b_offset, a_offset)"
_SECONDS: Final = "((unix_micros(b_committed) - unix_micros(a_committed)) / 1e6d)"
_UNCHANGED: Final = f"state = {_NUMBERS[SnapshotChange.UNCHANGED]}"
_BEHIND: Final = "a_end > a_offset and b_end > b_offset"
_LAGS: Final = tuple(lag(f"{side}_offset", f"{side}_end") for side in ("a", "b"))
_RATE: Final = f"""case
    when {_UNCHANGED} then 0.0d
    when state = {_NUMBERS[SnapshotChange.MOVED]} and {_SECONDS} > 0 then {_DELTA} / {_SECONDS} end"""
_COLUMNS: Final = (
    *(f"`{name}`" for name in KEY),
    "state",
    "a_offset as before",
    "b_offset as after",
    f"{_DELTA} as delta",
    f"{_RATE} as rate",
    f"case when not {_RECREATED} then cast(b_count as bigint) - a_count end as commits",
    f"{_RECREATED} as recreated",
    "coalesce(a_held, false) or coalesce(b_held, false) as held",
    f"case when a_end is not null and b_end is not null then {_UNCHANGED} and {_BEHIND} end as stalled",
    f"{_LAGS[1]} as lag",
    f"{_LAGS[1]} - {_LAGS[0]} as lag_delta",
    "coalesce(b_committed, a_committed) as committed_at",
)


def _grouped(rows: DataFrame, by: SummaryLevel) -> DataFrame:
    """Count the states by group or topic. A sum that overflows is null."""
    names = ["cluster", "group"] if by is SummaryLevel.GROUP else ["cluster", "group", "topic"]
    counts = {
        "partitions": "count(1)",
        **{count_column(state): f"count_if(state = {number})" for state, number in _NUMBERS.items()},
        count_column(UNCHANGED_HELD): f"count_if({_UNCHANGED} and held)",
        STALLED: "case when count(stalled) > 0 then count_if(stalled) end",
        "recreated": "count_if(recreated)",
        "delta": "try_sum(delta)",
        "rate": "sum(rate)",
        "lag": "try_sum(lag)",
        "lag_delta": "try_sum(lag_delta)",
        "committed_at": "max(committed_at)",
    }
    return rows.groupBy(*names).agg(*(f.expr(how).alias(name) for name, how in counts.items()))
