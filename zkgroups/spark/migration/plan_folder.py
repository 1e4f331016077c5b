"""The folder of a plan and its reports. Each plan or report appears as a whole, or not at all.

    DEST/_unfinished/<time>-<random>/     written here first; readers ignore it
    DEST/plan/part-*.parquet
    DEST/plan/_VERSION                    the format of the rows
    DEST/plan/_SUCCESS                    lists the files: see `storage/completeness.py`
    DEST/reports/<time>-<step>/part-*.parquet
    DEST/reports/<time>-<step>/_SUCCESS

A folder is moved into place and then gets its `_SUCCESS`; readers ignore folders without it. If a run is killed in
between, the next plan replaces that folder. An existing plan is never replaced, because its reports and marks refer to
it, unless the caller names it and nothing was written by it. Folders in `_unfinished` are deleted after a week.

Times are UTC with milliseconds, in a form that sorts, as in `snapshots/layout.py`.
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

from ...core.migration.plan_rows import PLAN_VERSION, MatchRow, MigrationStep, PlanRow, ReportRow
from ...exceptions import DamagedFileError, NotFoundError, RefusedError
from ..errors import translated
from ..snapshots.layout import ABANDONED_AFTER, MARK, UNFINISHED, snapshot_name, snapshot_time
from ..storage.completeness import Written, check_written, mark_written
from ..storage.files import java, reached, read_text, write_text
from .arrow_rows import schema

PLAN: Final = "plan"
REPORTS: Final = "reports"
_VERSION: Final = "_VERSION"

_PROBE: Final = 64 * 1024
"""In bytes, about the size of a small report."""

_NEW_PLAN: Final = "make a new plan in another folder"
_TIME: Final = r"([0-9]{8}T[0-9]{6}\.[0-9]{3}Z)"
_REPORT: Final = re.compile(f"{_TIME}-[a-z-]+")
_UNFINISHED_NAME: Final = re.compile(f"{_TIME}-[0-9a-f]{{8}}")


@dataclass(slots=True)
class NewReport:
    """The path where a report is written, and its final name."""

    path: str
    name: str = ""


class PlanFolder:
    """The folder of one plan, on any file system that Spark can write to."""

    def __init__(self, spark: SparkSession, destination: str) -> None:
        self._spark = spark
        self._jvm: Any = java(spark)
        self._files, self._root = reached(spark, destination)

    def __str__(self) -> str:
        return str(self._root.toString())

    # Reading

    def has_plan(self) -> bool:
        """Return whether the folder has a plan."""
        return self._has(PLAN)

    def plan(self) -> DataFrame:
        """Return the rows of the plan, with the columns of `PlanRow`."""
        if not self.has_plan():
            raise NotFoundError(f"{self} has no plan")
        self._check_version()
        return self._read(PlanRow, PLAN)

    def _check_version(self) -> None:
        """Raise an error if the plan has another format."""
        path = self._path(PLAN, _VERSION)
        with translated(f"{self} cannot be read"):
            text = read_text(self._spark, self._files, path).strip() if self._files.exists(path) else "1"
        if text != str(PLAN_VERSION):
            raise RefusedError(
                f"the plan in {self} has format {text}, but this version of zkgroups reads format {PLAN_VERSION}: "
                f"{_NEW_PLAN}"
            )

    def head(self, *columns: str) -> Row:
        """Return these columns of any row of the plan."""
        with translated(f"the plan in {self} cannot be read"):
            row = self.plan().select(*columns).first()
        if row is None:
            raise self.without_rows()
        return row

    def check_rows(self, found: int) -> None:
        """Raise an error if the plan was written with another number of rows, or has none."""
        written = self._check(PLAN)
        if not found:
            raise self.without_rows()
        if written is not None and found != written.rows:
            raise DamagedFileError(
                f"the plan in {self} was written with {written.rows} rows, but has {found} now: {_NEW_PLAN}"
            )

    def without_rows(self) -> DamagedFileError:
        """Return the error for a complete plan without rows, although every plan has some."""
        return DamagedFileError(f"the rows of the plan in {self} are missing: {_NEW_PLAN}")

    def reports(self) -> list[str]:
        """Return the names of the reports, oldest first. Each is a time and a step."""
        names = sorted(name for name in self._list(REPORTS) if _REPORT.fullmatch(name))
        return [name for name in names if self._has(REPORTS, name)]

    def report(self, name: str) -> DataFrame:
        """Return the rows of a report, with the columns of `ReportRow`; of a comparison, of `MatchRow`."""
        if name not in self.reports():
            raise NotFoundError(f"{self} has no report {name}")
        return self._read(MatchRow if name.endswith(f"-{MigrationStep.VERIFY}") else ReportRow, REPORTS, name)

    def _read(self, kind: type[Any], *names: str) -> DataFrame:
        path = str(self._path(*names).toString())
        self._check(*names)
        with translated(f"{path} cannot be read"):
            known = self._spark.read.schema(schema(kind))  # otherwise Spark runs a job to infer it
            return known.option("__globPaths__", "false").parquet(path)  # a folder may have a name like [1]

    def _check(self, *names: str) -> Written | None:
        """Raise an error if files of a plan or a report have changed since they were written."""
        cure = _NEW_PLAN if names == (PLAN,) else "the rows of the report are lost"
        return check_written(self._spark, self._files, self._path(*names), cure)

    def _has(self, *names: str) -> bool:
        with translated(f"{self} cannot be read"):
            return bool(self._files.exists(self._path(*names, MARK)))

    # Writing

    @contextmanager
    def new_plan(self, at: datetime, instead_of: str | None = None) -> Iterator[str]:
        """Yield the path for a new plan, and move it into place if the block succeeds.

        It may replace the plan `instead_of`.
        """
        self._refuse_another(instead_of)
        with self._unfinished(at) as path:
            yield path
            with translated(f"{self} cannot be written to"):
                write_text(self._files, self._child(path, _VERSION), str(PLAN_VERSION))
            self._refuse_another(instead_of)  # another run may have been faster
            self._finish(path, PLAN)

    def _refuse_another(self, but: str | None = None) -> None:
        """Raise an error if the folder has another plan than the one named."""
        if self.has_plan() and (but is None or but != self._plan_id()):
            raise RefusedError(f"{self} already has a plan: make the new plan in another folder")

    def _plan_id(self) -> str:
        return str(self.head("plan")["plan"])

    @contextmanager
    def new_report(self, step: MigrationStep, at: datetime) -> Iterator[NewReport]:
        """Yield the path for a report, and move it into place if the block succeeds."""
        with self._unfinished(at) as path:
            self._check_room(path)
            report = NewReport(path)
            yield report
            name = self._free_name(step, at)
            self._finish(path, REPORTS, name)
            report.name = name

    def _check_room(self, path: str) -> None:
        """Write a file and delete it, to detect a full disk before the step begins."""
        probe = self._child(f"{path}-probe")
        with translated(f"{self} cannot be written to"):
            write_text(self._files, probe, " " * _PROBE)
            self._files.delete(probe, False)

    def _free_name(self, step: MigrationStep, at: datetime) -> str:
        taken = set(self._list(REPORTS))
        while (name := f"{snapshot_name(at)}-{step.replace(' ', '-')}") in taken:
            at += timedelta(milliseconds=1)
        return name

    @contextmanager
    def _unfinished(self, at: datetime) -> Iterator[str]:
        """Yield the path for a temporary folder, which is deleted at the end."""
        with translated(f"{self} cannot be written to"):
            self._delete_abandoned(at - ABANDONED_AFTER)
            path = self._path(UNFINISHED, f"{snapshot_name(at)}-{uuid.uuid4().hex[:8]}")
            if not self._files.mkdirs(path):
                raise OSError("the folder could not be created")
        try:
            # A folder below it, because Spark refuses to write to an existing folder.
            yield str(self._child(path, "rows").toString())
        finally:
            with suppress(Py4JError, OSError):
                self._files.delete(path, True)

    def _finish(self, path: str, *names: str) -> None:
        here, there = self._child(path), self._path(*names)
        with translated(f"the rows could not be moved to {there.toString()}"):
            self._files.delete(self._path(*names, MARK), False)  # first, because the rest is deleted in any order
            self._files.delete(there, True)
            self._files.mkdirs(there.getParent())
            if not self._files.rename(here, there):
                raise OSError("the folder could not be renamed")
            mark_written(self._spark, self._files, there)

    def _delete_abandoned(self, before: datetime) -> None:
        for name in self._list(UNFINISHED):
            if match := _UNFINISHED_NAME.fullmatch(name):  # ignore files of other programs
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
        return self._child(self._root, *names)

    def _child(self, path: Any, *names: str) -> Any:
        path = self._jvm.org.apache.hadoop.fs.Path(path) if isinstance(path, str) else path
        for name in names:
            path = self._jvm.org.apache.hadoop.fs.Path(path, name)
        return path
