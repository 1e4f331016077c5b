"""The folder of a plan and its reports.

    DEST/plan/                      the plan, with its format in `_VERSION`, and in `_CONSTANTS.json` the values that
                                    are the same in all rows
    DEST/reports/<time>-<step>/     a report of each run

Both appear completely or not at all: see `zkgroups/storage/atomic_folder.py`. A plan is not overwritten, because its
reports and the marks of its groups refer to it. A caller may allow to replace a plan that was never applied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from ..core.migration.plan_rows import OF_THE_PLAN, PLAN_VERSION, READABLE_VERSIONS, MatchRow, MigrationStep, ReportRow
from ..exceptions import DamagedFileError, NotFoundError, RefusedError
from ..input_errors import ZkgroupsException
from ..storage.atomic_folder import AtomicFolder, publishing
from ..storage.files import TIMESTAMP, timestamp_text

PLAN: Final = "plan"
REPORTS: Final = "reports"
_VERSION: Final = "_VERSION"
_CONSTANTS: Final = "_CONSTANTS.json"

_PROBE: Final = 64 * 1024
"""In bytes: about the size of a small report with all of its files."""

_NEW_PLAN: Final = "make a new plan in another folder"
_LOST: Final = "restore it from a backup"
_REPORT: Final = re.compile(f"{TIMESTAMP}-[a-z-]+")


@dataclass(slots=True)
class NewReport:
    """The path to write a report to, and its final name, once it is complete."""

    path: str
    name: str = ""


class PlanFolder(AtomicFolder):
    """One plan and its reports."""

    def has_plan(self) -> bool:
        """Return whether the folder has a complete plan."""
        return self.is_complete(PLAN)

    def plan(self) -> str:
        """Check the files of the plan, and return their folder. It has the columns of `PlanRow`."""
        if not self.has_plan():
            raise NotFoundError(f"no plan in {self}: run `zkgroups migrate plan` first")
        self._check_version()
        self.check_files(PLAN, cure=_NEW_PLAN)
        return self.path(PLAN)

    def _check_version(self) -> None:
        """Raise RefusedError if the plan has another format."""
        with self.translated(f"the plan in {self} cannot be read"):
            found = self.read_text(PLAN, _VERSION).strip() if self.exists(PLAN, _VERSION) else "1"
        if found not in map(str, READABLE_VERSIONS):
            readable = " and ".join(map(str, READABLE_VERSIONS))
            raise RefusedError(
                f"the plan in {self} has format {found}, but this version of zkgroups reads formats {readable}: "
                f"{_NEW_PLAN}"
            )

    def check_rows(self, found: int) -> None:
        """Raise DamagedFileError if the plan was written with another number of rows, or has none."""
        listed = self.check_files(PLAN, cure=_NEW_PLAN)
        if not found:
            raise self.without_rows()
        if listed is not None and found != listed.rows:
            raise DamagedFileError(
                f"the plan in {self} was written with {listed.rows} rows, but has {found} now: {_NEW_PLAN}"
            )

    def constants(self) -> dict[str, Any] | None:
        """Return the values that are the same in all rows of the plan, or None if an earlier version has written it.

        With Spark, reading them from a row takes a job.
        """
        if not self.exists(PLAN, _CONSTANTS):
            return None
        with self.translated(f"the plan in {self} cannot be read"):
            text = self.read_text(PLAN, _CONSTANTS)
        try:
            return {name: json.loads(text)[name] for name in OF_THE_PLAN}
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise DamagedFileError(f"{self.path(PLAN, _CONSTANTS)} is damaged ({error!r}): {_NEW_PLAN}") from error

    def plan_files(self) -> int:
        """Return the number of data files of the plan. All rows of a target are in one file.

        They are consecutive, except in some plans of earlier versions, which have one file.
        """
        return len(self.file_lengths(PLAN))

    def without_rows(self) -> DamagedFileError:
        """Return the error for a plan without rows. Every undamaged plan has some."""
        return DamagedFileError(f"the rows of the plan in {self} are missing: {_NEW_PLAN}")

    def reports(self) -> list[str]:
        """Return the names of the complete reports, oldest first."""
        names = sorted(name for name in self.children(REPORTS) if _REPORT.fullmatch(name))
        return [name for name in names if self.is_complete(REPORTS, name)]

    def report(self, name: str | None = None) -> tuple[str, type[Any]]:
        """Check the files of a report, the latest if none is named. Return their folder and the class of its rows."""
        names = self.reports()
        if name is None:
            if not names:
                raise NotFoundError(f"no report in {self}: run `zkgroups migrate apply` first")
            name = names[-1]
        if name not in names:
            raise NotFoundError(
                f"no report {name} in {self}: " + (f"the latest is {names[-1]}" if names else "run a step first")
            )
        self.check_files(REPORTS, name, cure=_LOST)
        return self.path(REPORTS, name), MatchRow if name.endswith(f"-{MigrationStep.VERIFY}") else ReportRow

    def write_constants(self, staged: str, constants: Mapping[str, Any]) -> None:
        """Write the values that are the same in all rows of a plan to its staged folder."""
        text = json.dumps({name: constants[name] for name in OF_THE_PLAN})
        with self.translated(f"{self} cannot be written to"):
            self.write_staged(text, staged, _CONSTANTS)

    @contextmanager
    def new_plan(self, at: datetime, may_replace: Callable[[], bool] = lambda: False) -> Iterator[str]:
        """Yield the path to write a plan to, and publish it at the end of the block.

        Raise RefusedError if a plan exists that may not be replaced.
        """
        self._check_no_plan(may_replace)
        try:
            with self.staging(at) as path:
                yield path
                with self.translated(f"{self} cannot be written to"):
                    self.write_staged(str(PLAN_VERSION), path, _VERSION)
                with publishing(self):
                    self._check_no_plan(may_replace)  # another run may have been faster
                    self._publish(path, PLAN)
        except BaseException:
            with suppress(ZkgroupsException):
                if not self.has_plan():
                    self.delete_unused()
            raise

    def _check_no_plan(self, may_replace: Callable[[], bool]) -> None:
        if self.has_plan() and not may_replace():
            raise RefusedError(f"{self} already has a plan: use another folder for a new one")

    @contextmanager
    def new_report(self, step: MigrationStep, at: datetime) -> Iterator[NewReport]:
        """Yield the path to write a report to, and publish it at the end of the block."""
        with self.staging(at) as path:
            with self.translated(f"{self} cannot be written to"):
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
        with self.translated(f"the files could not be moved to {self.path(*names)}"):
            self.publish(path, *names)
