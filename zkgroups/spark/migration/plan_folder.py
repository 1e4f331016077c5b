"""Where a plan lies, with the reports of what was done with it, and how each comes to be there whole or not at all.

    DEST/_unfinished/<time>-<random>/     written here first, where no reader looks
    DEST/plan/part-*.parquet
    DEST/plan/_SUCCESS                    lists the files: see `whole.py`
    DEST/reports/<time>-<step>/part-*.parquet
    DEST/reports/<time>-<step>/_SUCCESS

A folder is moved into place, and `_SUCCESS` is made when that is done: what has none is not there for anybody. Where a
run was killed between the two, the next plan takes that place. A plan that is there is never written over, because
reports and fences are of that one, but for one that is named: nothing was written by it. What was left in `_unfinished`
is thrown away when it is a week old.

Times are as in `layout.py`, UTC with milliseconds in a form that sorts.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, Row, SparkSession

from ...core.migration.plan_rows import MatchRow, PlanRow, ReportRow, Step
from ...exceptions import DamagedFileError, NotFoundError, RefusedError
from ..errors import translated
from ..snapshots.layout import ABANDONED_AFTER, MARK, UNFINISHED, snapshot_name, snapshot_time
from ..storage.completeness import FileList, check_written, mark_written
from ..storage.files import java, resolve, write_text
from .arrow_rows import schema

PLAN: Final = "plan"
REPORTS: Final = "reports"

_PROBE: Final = 64 * 1024
"""In bytes, about the size of a small report with all of its files."""

_NEW_PLAN: Final = "make a new plan in another folder"
_TIME: Final = r"([0-9]{8}T[0-9]{6}\.[0-9]{3}Z)"
_REPORT: Final = re.compile(f"{_TIME}-[a-z-]+")
_LEFT: Final = re.compile(f"{_TIME}-[0-9a-f]{{8}}")


@dataclass(slots=True)
class NewReport:
    """Where a report is written, and what it is called in the end."""

    path: str
    name: str = ""


class PlanFolder:
    """One plan's folder, on whatever file system Spark writes to."""

    def __init__(self, spark: SparkSession, destination: str) -> None:
        self._spark = spark
        self._jvm: Any = java(spark)
        self._files, self._root = resolve(spark, destination)

    def __str__(self) -> str:
        return str(self._root.toString())

    # Reading

    def has_plan(self) -> bool:
        """Whether a plan is there."""
        return self._has(PLAN)

    def plan(self) -> DataFrame:
        """The plan's rows, as `core.plan.PlanRow` has them."""
        if not self.has_plan():
            raise NotFoundError(f"there is no plan in {self}")
        return self._read(PlanRow, PLAN)

    def head(self, *columns: str) -> Row:
        """These columns of any row of the plan."""
        with translated(f"the plan in {self} cannot be read"):
            row = self.plan().select(*columns).first()
        if row is None:
            raise self.without_rows()
        return row

    def check_rows(self, found: int) -> None:
        """Raise an error if the plan was written with another number of rows; every plan has some."""
        written = self._check(PLAN)
        if not found:
            raise self.without_rows()
        if written is not None and found != written.rows:
            raise DamagedFileError(
                f"the plan in {self} was written with {written.rows} rows, and {found} are there: {_NEW_PLAN}"
            )

    def without_rows(self) -> DamagedFileError:
        """The error for a plan that is marked as written but has no rows, although every plan has some."""
        return DamagedFileError(f"the rows of the plan in {self} are missing: {_NEW_PLAN}")

    def reports(self) -> list[str]:
        """The names of the reports that are there, oldest first: each is a time, and what was done."""
        names = sorted(name for name in self._list(REPORTS) if _REPORT.fullmatch(name))
        return [name for name in names if self._has(REPORTS, name)]

    def report(self, name: str) -> DataFrame:
        """The rows of a report, as `core.plan.ReportRow` has them; of a comparison, as `MatchRow`."""
        if name not in self.reports():
            raise NotFoundError(f"there is no report {name} in {self}")
        return self._read(MatchRow if name.endswith(f"-{Step.VERIFY}") else ReportRow, REPORTS, name)

    def _read(self, kind: type[Any], *names: str) -> DataFrame:
        path = str(self._path(*names).toString())
        self._check(*names)
        with translated(f"{path} cannot be read"):
            known = self._spark.read.schema(schema(kind))  # Spark would look for it in the files, which is a job
            return known.option("__globPaths__", "false").parquet(path)  # a folder may be called [1]

    def _check(self, *names: str) -> FileList | None:
        """Raise an error if files of a plan or a report are not as they were written."""
        cure = _NEW_PLAN if names == (PLAN,) else "its rows are lost"
        return check_written(self._spark, self._files, self._path(*names), cure)

    def _has(self, *names: str) -> bool:
        with translated(f"{self} cannot be read"):
            return bool(self._files.exists(self._path(*names, MARK)))

    # Writing

    @contextmanager
    def new_plan(self, at: datetime, instead_of: str | None = None) -> Iterator[str]:
        """Where to write a plan; it is there when all that is done with it has gone well, instead of the one named."""
        self._refuse_another(instead_of)
        with self._unfinished(at) as path:
            yield path
            self._refuse_another(instead_of)  # somebody may have been quicker
            self._finish(path, PLAN)

    def _refuse_another(self, but: str | None = None) -> None:
        """Raise an error where a plan is there, but for the one named."""
        if self.has_plan() and (but is None or but != self._plan_there()):
            raise RefusedError(f"there is a plan in {self} already: a new one needs a folder of its own")

    def _plan_there(self) -> str:
        return str(self.head("plan")["plan"])

    @contextmanager
    def new_report(self, step: Step, at: datetime) -> Iterator[NewReport]:
        """Where to write a report; it has its name when all that is done with it has gone well."""
        with self._unfinished(at) as path:
            self._check_room(path)
            report = NewReport(path)
            yield report
            name = self._free_name(step, at)
            self._finish(path, REPORTS, name)
            report.name = name

    def _check_room(self, path: str) -> None:
        """Write a file and delete it: a full disk is an error before the work begins that the report is about."""
        probe = self._jvm.org.apache.hadoop.fs.Path(f"{path}-probe")
        with translated(f"{self} cannot be written to"):
            write_text(self._files, probe, " " * _PROBE)
            self._files.delete(probe, False)

    def _free_name(self, step: Step, at: datetime) -> str:
        taken = set(self._list(REPORTS))
        while (name := f"{snapshot_name(at)}-{step.replace(' ', '-')}") in taken:
            at += timedelta(milliseconds=1)
        return name

    @contextmanager
    def _unfinished(self, at: datetime) -> Iterator[str]:
        """A folder that goes away, however this ends."""
        with translated(f"{self} cannot be written to"):
            self._throw_away_abandoned(at - ABANDONED_AFTER)
            path = self._path(UNFINISHED, f"{snapshot_name(at)}-{uuid.uuid4().hex[:8]}")
            if not self._files.mkdirs(path):
                raise OSError("no folder can be made there")
        try:
            # One below: Spark would refuse a folder that is there.
            yield str(self._jvm.org.apache.hadoop.fs.Path(path, "rows").toString())
        finally:
            with suppress(Py4JError, OSError):
                self._files.delete(path, True)

    def _finish(self, path: str, *names: str) -> None:
        here, there = self._jvm.org.apache.hadoop.fs.Path(path), self._path(*names)
        with translated(f"what was written could not be moved to {there.toString()}"):
            self._files.delete(self._path(*names, MARK), False)  # first, for the rest may go in any order
            self._files.delete(there, True)
            self._files.mkdirs(there.getParent())
            if not self._files.rename(here, there):
                raise OSError("it was not renamed")
            mark_written(self._spark, self._files, there)

    def _throw_away_abandoned(self, before: datetime) -> None:
        for name in self._list(UNFINISHED):
            if match := _LEFT.fullmatch(name):  # whatever is not named as ours is not ours
                with suppress(ValueError):
                    if snapshot_time(match[1]) < before:
                        self._files.delete(self._path(UNFINISHED, name), True)

    # Files

    def _list(self, name: str) -> list[str]:
        folder = self._path(name)
        with translated(f"{self} cannot be read"):
            found = self._files.listStatus(folder) if self._files.exists(folder) else ()
            return [each.getPath().getName() for each in found]

    def _path(self, *names: str) -> Any:
        path = self._root
        for name in names:
            path = self._jvm.org.apache.hadoop.fs.Path(path, name)
        return path
