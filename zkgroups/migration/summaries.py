"""Reading stored plans and reports: their rows, and summaries by group.

Rows are counted by Arrow: first in each task, and then the counts of all tasks in this process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..core.migration.obstacles import Obstacle
from ..core.migration.offset_decision import Action, Reason
from ..core.migration.plan_rows import (
    GroupPlan,
    GroupResult,
    Match,
    MatchRow,
    MigrationStep,
    Outcome,
    PlanRow,
    ReportRow,
)
from ..core.offsets.files import FileFormat, OffsetRecord, format_offsets, group_file_name, reset_script
from ..exceptions import RefusedError, StorageError
from ..input_errors import InvalidOptionError
from .arrow_rows import arrow_schema, located, rows
from .plan_folder import PlanFolder
from .tasks import Engine, Rows

_ORDER: Final = ("target", "group", "topic", "partition")


# Rows


def first_row(engine: Engine, folder: PlanFolder) -> PlanRow:
    """Return any row of a plan, for the values that are the same in all rows."""
    found = engine.first(folder.plan(), PlanRow, f"the plan in {folder} cannot be read")
    if found is None:
        raise folder.without_rows()
    return found


def plan_rows(engine: Engine, destination: str) -> Iterator[PlanRow]:
    """Yield all rows of a plan, sorted by target."""
    folder = engine.folder(destination)
    return engine.read(PlanRow, folder.plan()).sorted(PlanRow, _ORDER, f"the plan in {folder} cannot be read")


def report_rows(engine: Engine, destination: str, name: str | None = None) -> Iterator[ReportRow | MatchRow]:
    """Yield all rows of a report, the latest if none is named, sorted by target."""
    folder = engine.folder(destination)
    path, kind = folder.report(name)
    return engine.read(kind, path).sorted(kind, _ORDER, f"the report in {folder} cannot be read")


def differing(engine: Engine, destination: str, name: str | None = None) -> Iterator[MatchRow]:
    """Yield the rows of a comparison that are not equal, sorted by target."""
    folder = engine.folder(destination)
    path, _kind = folder.report(name)
    found = engine.read(MatchRow, path).map(_differing, MatchRow)
    return found.sorted(MatchRow, _ORDER, f"the report in {folder} cannot be read")


def _differing(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.filter(pc.not_equal(batch.column("match"), Match.EQUAL.value))


# Plans by group


class _PlanCount(NamedTuple):
    """The rows of a group with one action and reason."""

    group: str
    target: str
    action: str
    reason: str
    rows: int
    lag_before: int | None
    lag_after: int | None
    obstacles: tuple[Obstacle, ...]


def groups(engine: Engine, destination: str) -> list[GroupPlan]:
    """Return a summary of each group of a plan, sorted by name."""
    folder = engine.folder(destination)
    columns = ("group", "target", "action", "reason", "offset", "planned", "before", "log_end", "obstacles")
    found = engine.read(PlanRow, folder.plan()).select(*columns).map(_count_plan, _PlanCount)
    failure = f"the plan in {folder} cannot be read"
    counts = _collect(found, _merge_plan_counts, failure, "group", "target")
    with located(failure):
        by_group = groupby(rows(_PlanCount, counts), _BY_GROUP)
    return [_group_plan(list(of_group)) for _key, of_group in by_group]


def plan_totals(found: Sequence[GroupPlan]) -> dict[str, int]:
    """Return the number of rows by action and by reason."""
    total = sum((Counter(group.counts) for group in found), Counter[str]())
    return {word.value: total[word] for word in (*Action, *Reason) if total[word]}


def _count_plan(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        offset, end = batch.column("offset"), batch.column("log_end")
        commits = pc.equal(batch.column("action"), Action.COMMIT.value)
        after = pc.if_else(commits, batch.column("planned"), batch.column("before"))
        columns = {name: batch.column(name) for name in ("group", "target", "action", "reason")}
        columns |= {"rows": pa.repeat(1, len(batch)), "lag_before": _lag(offset, end), "lag_after": _lag(after, end)}
        columns |= {"obstacles": batch.column("obstacles")}
        yield from _typed(_PlanCount, _merge_plan_counts(pa.table(columns)))


def _lag(offset: Any, end: Any) -> Any:
    """Return the lag of each partition with a known log, like `core.offsets.lag`."""
    lag = pc.subtract(end, offset)
    return pc.if_else(pc.greater_equal(lag, 0), lag, pa.scalar(None, pa.int64()))


def _merge_plan_counts(table: Any) -> Any:
    numbered = table.append_column("row", pa.array(range(len(table)), pa.int64()))
    sums = [(name, "sum", pc.ScalarAggregateOptions(min_count=1)) for name in ("rows", "lag_before", "lag_after")]
    found = _aggregate(numbered, ("group", "target", "action", "reason"), [*sums, ("row", "min")])
    obstacles = table.column("obstacles").take(found.column("row"))
    return found.drop_columns("row").append_column("obstacles", obstacles)


def _group_plan(counts: Sequence[_PlanCount]) -> GroupPlan:
    found: Counter[str] = Counter()
    for each in counts:
        found.update({each.action: each.rows, each.reason: each.rows})
    return GroupPlan(
        group=counts[0].group,
        target=counts[0].target,
        obstacles=counts[0].obstacles,
        counts={word.value: found[word] for word in (*Action, *Reason) if found[word]},
        lag_before=_sum(each.lag_before for each in counts),
        lag_after=_sum(each.lag_after for each in counts),
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [each for each in numbers if each is not None]
    return sum(known) if known else None


# Reports by group


class _ResultCount(NamedTuple):
    """The rows of a group with one result. `detail` is set for the rows that explain it."""

    target: str
    group: str
    result: str
    detail: str | None
    rows: int


def group_results(engine: Engine, destination: str, name: str | None = None) -> Iterator[GroupResult]:
    """Yield a summary of each group of a report, sorted by target."""
    folder = engine.folder(destination)
    path, kind = folder.report(name)
    column, words = ("match", Match) if kind is MatchRow else ("outcome", Outcome)
    found = engine.read(kind, path).select("target", "group", column, "detail").map(_CountResults(column), _ResultCount)
    counts = _collect(found, _merge_result_counts, f"the report in {folder} cannot be read", "target", "group")
    for _key, of_group in groupby(rows(_ResultCount, counts), _BY_GROUP):
        yield _group_result(list(of_group), words)


@dataclass(frozen=True, slots=True)
class _CountResults:
    """Counts the results in one column."""

    column: str

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            results = batch.column(self.column)
            explained = pc.is_in(results, pa.array(_EXPLAINED))
            details = pc.if_else(explained, batch.column("detail"), pa.scalar(None, pa.string()))
            columns = {"target": batch.column("target"), "group": batch.column("group"), "result": results}
            table = pa.table(columns | {"detail": details, "rows": pa.repeat(1, len(batch))})
            yield from _typed(_ResultCount, _merge_result_counts(table))


_EXPLAINED: Final = [each.value for each in (Outcome.LEFT, Outcome.OVERTAKEN, Outcome.NEWER)]
"""The outcomes whose details are shown for each group."""


def _merge_result_counts(table: Any) -> Any:
    return _aggregate(table, ("target", "group", "result", "detail"), [("rows", "sum")])


def _group_result(counts: Sequence[_ResultCount], words: type[Outcome] | type[Match]) -> GroupResult:
    found: Counter[str] = Counter()
    for each in counts:
        found[each.result] += each.rows
    return GroupResult(
        group=counts[0].group,
        target=counts[0].target,
        details=tuple(dict.fromkeys(each.detail for each in counts if each.detail is not None)),
        counts={word.value: found[word] for word in words if found[word]},
    )


# The last step of each target


class _StepTime(NamedTuple):
    """When a step has last written to a target."""

    target: str
    step: str
    reported_ms: int


def last_steps(engine: Engine, folder: PlanFolder) -> dict[str, str]:
    """Return the last step that wrote to each target."""
    paths = [folder.report(name)[0] for name in folder.reports() if name.endswith(_WRITING_STEPS)]
    if not paths:
        return {}
    columns = ("target", "step", "reported_ms", "outcome")
    found = engine.read(ReportRow, *paths).select(*columns).map(_last_writes, _StepTime)
    times = _collect(found, _merge_step_times, f"the reports in {folder} cannot be read", "reported_ms")
    return {each.target: each.step for each in rows(_StepTime, times)}


_WRITING_STEPS: Final = (f"-{MigrationStep.APPLY}", f"-{MigrationStep.ROLLBACK}")
"""How the names of reports end, if their steps write to targets."""


def _last_writes(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        written = pc.is_in(batch.column("outcome"), pa.array([Outcome.WRITTEN.value, Outcome.OVERTAKEN.value]))
        to_target = pc.not_equal(batch.column("step"), MigrationStep.TO_ZOOKEEPER.value)
        yield from _typed(
            _StepTime, _merge_step_times(pa.Table.from_batches([batch.filter(pc.and_(written, to_target))]))
        )


def _merge_step_times(table: Any) -> Any:
    return _aggregate(table, ("target", "step"), [("reported_ms", "max")])


# Arrow


_BY_GROUP: Final = attrgetter("group", "target")


def _aggregate(table: Any, keys: Sequence[str], wanted: Sequence[tuple[Any, ...]]) -> Any:
    """Aggregate columns by keys. Each keeps its name."""
    found = table.group_by(list(keys), use_threads=False).aggregate(list(wanted))
    return pa.table(
        {key: found.column(key) for key in keys} | {each[0]: found.column(f"{each[0]}_{each[1]}") for each in wanted}
    )


def _typed(kind: type[Any], table: Any) -> Iterator[Any]:
    """Return the batches of a table with the columns of a dataclass."""
    return iter(table.cast(arrow_schema(kind)).combine_chunks().to_batches())


def _collect(found: Rows, merge: Callable[[Any], Any], failure: str, *order: str) -> Any:
    """Merge the counts of all tasks, and sort them."""
    return merge(found.collect(failure)).sort_by([(column, "ascending") for column in order])


# Exporting a plan for `kafka-consumer-groups.sh`: one file of offsets for each group, and a script.


SCRIPT: Final = "reset-offsets.sh"
"""No file of a group has this name."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The files written: a script, and one file for each group with offsets to write."""

    script: Path
    groups: int
    offsets: int
    blocked: tuple[str, ...]
    """Targets without a file, because their groups have obstacles."""


def export(rows: Iterable[PlanRow], folder: Path) -> ExportResult:
    """Export the rows of whole groups, sorted by target, to a new or empty folder.

    Each file has the lines topic,partition,offset, as `kafka-consumer-groups.sh --reset-offsets --from-file` reads
    them. Blocked groups have no file. At most one group is in memory.
    """
    _create_empty(folder)
    try:
        return _write(rows, folder)
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"{folder} could not be written: {reason}; delete it, and export again") from error


def _write(rows: Iterable[PlanRow], folder: Path) -> ExportResult:
    groups: list[str] = []
    blocked: list[str] = []
    offsets = 0
    brokers: str | None = None
    for target, found in groupby(rows, key=lambda row: row.target):
        group = list(found)
        brokers = group[0].brokers
        if group[0].obstacles:
            blocked.append(target)
        elif records := list(_records(group)):
            text = "".join(f"{line}\n" for line in format_offsets(records, FileFormat.KAFKA_CSV))
            with (folder / group_file_name(target)).open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
            groups.append(target)
            offsets += len(records)
    # The script comes last, so that all files that it names exist.
    with (folder / SCRIPT).open("x", encoding="utf-8", newline="\n") as file:
        file.writelines(reset_script(SCRIPT, groups, brokers))
    return ExportResult(folder / SCRIPT, len(groups), offsets, tuple(blocked))


def _create_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RefusedError(f"{folder} is not empty: export to a new folder")
    except OSError as error:
        raise InvalidOptionError(
            "folder", str(folder), f"it cannot be used: {error.strerror}; choose another folder"
        ) from error


def _records(rows: Iterable[PlanRow]) -> Iterator[OffsetRecord]:
    for row in rows:
        if row.action is Action.COMMIT and row.at is not None:
            yield OffsetRecord(None, row.at, row.planned)
