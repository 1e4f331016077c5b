"""Reading stored plans and reports: their rows, and summaries by group.

Rows are counted by Arrow, one file at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

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
from ..tables.table_reader import lags
from .arrow_rows import arrow_schema, rows
from .plan_folder import PlanFolder
from .stored_rows import first_stored, read_errors, sorted_rows, stored_tables
from .tasks import Engine

T = TypeVar("T")

# Rows


def first_row(folder: PlanFolder) -> PlanRow:
    """Return any row of a plan, for the values that are the same in all rows."""
    path = folder.plan()
    with read_errors(f"the plan in {folder} cannot be read"):
        found = first_stored(folder.file_system, path, PlanRow)
    if found is None:
        raise folder.without_rows()
    return found


def plan_rows(engine: Engine, destination: str) -> Iterator[PlanRow]:
    """Yield all rows of a plan, sorted by target."""
    folder = engine.folder(destination)
    return _sorted(folder, folder.plan(), PlanRow, f"the plan in {folder} cannot be read")


def report_rows(engine: Engine, destination: str, name: str | None = None) -> Iterator[ReportRow | MatchRow]:
    """Yield all rows of a report, the latest if none is named, sorted by target."""
    folder = engine.folder(destination)
    path, kind = folder.report(name)
    return _sorted(folder, path, kind, f"the report in {folder} cannot be read")


def differing(engine: Engine, destination: str, name: str | None = None) -> Iterator[MatchRow]:
    """Yield the rows of a comparison that are not equal, sorted by target."""

    def unequal(found: Any) -> Any:
        return found.filter(pc.not_equal(found.column("match"), Match.EQUAL.value))

    folder = engine.folder(destination)
    path, _kind = folder.report(name)
    return _sorted(folder, path, MatchRow, f"the report in {folder} cannot be read", unequal)


def _sorted(
    folder: PlanFolder, path: str, kind: type[T], failure: str, select: Callable[[Any], Any] = lambda found: found
) -> Iterator[T]:
    with read_errors(failure):
        yield from sorted_rows(map(select, stored_tables(folder.file_system, [path], kind)), kind)


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
    path = folder.plan()
    with read_errors(f"the plan in {folder} cannot be read"):
        tables = stored_tables(folder.file_system, [path], PlanRow, columns)
        counts = _counted(_PlanCount, map(_count_plan, tables), _merge_plan_counts, "group", "target")
        by_group = groupby(rows(_PlanCount, counts), _BY_GROUP)
    return [_group_plan(list(of_group)) for _key, of_group in by_group]


def plan_totals(found: Sequence[GroupPlan]) -> dict[str, int]:
    """Return the number of rows by action and by reason."""
    total = sum((Counter(group.counts) for group in found), Counter[str]())
    return {word.value: total[word] for word in (*Action, *Reason) if total[word]}


def _count_plan(found: Any) -> Any:
    offset, end = found.column("offset"), found.column("log_end")
    commits = pc.equal(found.column("action"), Action.COMMIT.value)
    after = pc.if_else(commits, found.column("planned"), found.column("before"))
    columns = {name: found.column(name) for name in ("group", "target", "action", "reason", "obstacles")}
    columns |= {"rows": pa.repeat(1, len(found)), "lag_before": lags(offset, end), "lag_after": lags(after, end)}
    return _merge_plan_counts(pa.table(columns))


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

    def count(found: Any) -> Any:
        results = found.column(column)
        explained = pc.is_in(results, pa.array(_EXPLAINED))
        details = pc.if_else(explained, found.column("detail"), pa.scalar(None, pa.string()))
        columns = {"target": found.column("target"), "group": found.column("group"), "result": results}
        return _merge_result_counts(pa.table(columns | {"detail": details, "rows": pa.repeat(1, len(found))}))

    with read_errors(f"the report in {folder} cannot be read"):
        tables = stored_tables(folder.file_system, [path], kind, ("target", "group", column, "detail"))
        counts = _counted(_ResultCount, map(count, tables), _merge_result_counts, "target", "group")
    for _key, of_group in groupby(rows(_ResultCount, counts), _BY_GROUP):
        yield _group_result(list(of_group), words)


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


def last_steps(folder: PlanFolder) -> dict[str, str]:
    """Return the last step that wrote to each target."""
    paths = [folder.report(name)[0] for name in folder.reports() if name.endswith(_WRITING_STEPS)]
    columns = ("target", "step", "reported_ms", "outcome")
    last: dict[str, tuple[int, str]] = {}
    with read_errors(f"the reports in {folder} cannot be read"):
        for found in stored_tables(folder.file_system, paths, ReportRow, columns):
            written = pc.is_in(found.column("outcome"), pa.array([Outcome.WRITTEN.value, Outcome.OVERTAKEN.value]))
            to_target = pc.not_equal(found.column("step"), MigrationStep.TO_ZOOKEEPER.value)
            of_file = found.filter(pc.and_(written, to_target))
            for each in _aggregate(of_file, ("target", "step"), [("reported_ms", "max")]).to_pylist():
                step = each["reported_ms"], each["step"]
                last[each["target"]] = max(step, last.get(each["target"], step))
    return {target: step for target, (_ms, step) in last.items()}


_WRITING_STEPS: Final = (f"-{MigrationStep.APPLY}", f"-{MigrationStep.ROLLBACK}")
"""How the names of reports end, if their steps write to targets."""


# Arrow


_BY_GROUP: Final = attrgetter("group", "target")


def _aggregate(table: Any, keys: Sequence[str], wanted: Sequence[tuple[Any, ...]]) -> Any:
    """Aggregate columns by keys. Each keeps its name."""
    found = table.group_by(list(keys), use_threads=False).aggregate(list(wanted))
    return pa.table(
        {key: found.column(key) for key in keys} | {each[0]: found.column(f"{each[0]}_{each[1]}") for each in wanted}
    )


def _counted(kind: type[Any], parts: Iterable[Any], merge: Callable[[Any], Any], *order: str) -> Any:
    """Merge the counts of all files, and sort them."""
    schema = arrow_schema(kind)
    together = pa.concat_tables([schema.empty_table(), *(part.select(schema.names).cast(schema) for part in parts)])
    return merge(together).sort_by([(column, "ascending") for column in order])


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
