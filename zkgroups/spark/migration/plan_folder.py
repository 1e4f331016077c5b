"""The folder of a plan and its reports.

    DEST/plan/                      the plan, with its format in `_VERSION`
    DEST/reports/<time>-<step>/     a report of each run

Both appear completely or not at all: see `storage/atomic_folder.py`. A plan is never overwritten, because its reports
and fences refer to it, unless the caller names the plan to replace. Such a plan must never have been applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, Row

from ...core.migration.plan_rows import PLAN_VERSION, MatchRow, MigrationStep, PlanRow, ReportRow
from ...exceptions import DamagedFileError, NotFoundError, RefusedError
from ..errors import translated
from ..storage.atomic_folder import AtomicFolder
from ..storage.timestamps import TIMESTAMP, timestamp_text
from .arrow_rows import schema

PLAN: Final = "plan"
REPORTS: Final = "reports"
_VERSION: Final = "_VERSION"

_PROBE: Final = 64 * 1024
"""In bytes, about the size of a small report with all of its files."""

_NEW_PLAN: Final = "make a new plan in another folder"
_REPORT: Final = re.compile(f"{TIMESTAMP}-[a-z-]+")


@dataclass(slots=True)
class NewReport:
    """The path to write a report to, and its final name, once it is complete."""

    path: str
    name: str = ""


class PlanFolder(AtomicFolder):
    """One plan and its reports."""

    # Reading

    def has_plan(self) -> bool:
        """Return whether the folder has a complete plan."""
        return self.is_complete(PLAN)

    def plan(self) -> DataFrame:
        """Return the rows of the plan; the columns are the fields of `PlanRow`."""
        if not self.has_plan():
            raise NotFoundError(f"no plan in {self}: run `zkgroups migrate plan` first")
        self._check_version()
        return self._read(PlanRow, PLAN)

    def _check_version(self) -> None:
        """Raise RefusedError if the plan has another format."""
        with translated(f"the plan in {self} cannot be read"):
            found = self.read_text(PLAN, _VERSION).strip() if self.exists(PLAN, _VERSION) else "1"
        if found != str(PLAN_VERSION):
            raise RefusedError(
                f"the plan in {self} has format {found}, but this version of zkgroups reads format {PLAN_VERSION}: "
                f"{_NEW_PLAN}"
            )

    def head(self, *columns: str) -> Row:
        """Return columns of any row of the plan."""
        with translated(f"the plan in {self} cannot be read"):
            row = self.plan().select(*columns).first()
        if row is None:
            raise self.without_rows()
        return row

    def check_rows(self, found: int) -> None:
        """Raise DamagedFileError if the plan was written with another number of rows, or has none."""
        listed = self.check_files(PLAN, cure=_NEW_PLAN)
        if not found:
            raise self.without_rows()
        if listed is not None and found != listed.rows:
            raise DamagedFileError(
                f"the plan in {self} was written with {listed.rows} rows, but has {found} now: {_NEW_PLAN}"
            )

    def without_rows(self) -> DamagedFileError:
        """Return the error for a complete plan without rows, although every plan has some."""
        return DamagedFileError(f"the rows of the plan in {self} are missing: {_NEW_PLAN}")

    def reports(self) -> list[str]:
        """Return the names of the complete reports, oldest first."""
        names = sorted(name for name in self.children(REPORTS) if _REPORT.fullmatch(name))
        return [name for name in names if self.is_complete(REPORTS, name)]

    def report(self, name: str) -> DataFrame:
        """Return the rows of a report; the columns are the fields of `ReportRow`, or of `MatchRow` after `verify`."""
        if name not in self.reports():
            raise NotFoundError(f"no report {name} in {self}")
        return self._read(MatchRow if name.endswith(f"-{MigrationStep.VERIFY}") else ReportRow, REPORTS, name)

    def _read(self, kind: type[Any], *names: str) -> DataFrame:
        return self.read_folders([names], schema(kind), _NEW_PLAN if names == (PLAN,) else "its rows are lost")

    # Writing

    @contextmanager
    def new_plan(self, at: datetime, instead_of: str | None = None) -> Iterator[str]:
        """Yield the path to write a plan to, and publish it at the end of the block.

        Raise RefusedError if another plan than `instead_of` exists.
        """
        self._check_no_plan(instead_of)
        with self.staging(at) as path:
            yield path
            with translated(f"{self} cannot be written to"):
                self.write_staged(str(PLAN_VERSION), path, _VERSION)
            self._check_no_plan(instead_of)  # another run may have been faster
            self._publish(path, PLAN)

    def _check_no_plan(self, instead_of: str | None) -> None:
        if self.has_plan() and (instead_of is None or instead_of != str(self.head("plan")["plan"])):
            raise RefusedError(f"{self} already has a plan: use another folder for a new one")

    @contextmanager
    def new_report(self, step: MigrationStep, at: datetime) -> Iterator[NewReport]:
        """Yield the path to write a report to, and publish it at the end of the block."""
        with self.staging(at) as path:
            with translated(f"{self} cannot be written to"):
                self.check_space(path, _PROBE)
            report = NewReport(path)
            yield report
            name = self._free_name(step, at)
            self._publish(path, REPORTS, name)
            report.name = name

    def _free_name(self, step: MigrationStep, at: datetime) -> str:
        taken = set(self.children(REPORTS))
        while (name := f"{timestamp_text(at)}-{step.replace(' ', '-')}") in taken:
            at += timedelta(milliseconds=1)
        return name

    def _publish(self, path: str, *names: str) -> None:
        with translated(f"the files could not be moved to {self.path(*names)}"):
            self.publish(path, *names)
