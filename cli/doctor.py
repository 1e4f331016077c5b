"""`zkgroups doctor`: find problems in groups, and repair problems where this cannot harm any client."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import click

from zkgroups import Checkup, Finding, Registry, Severity
from zkgroups.core.doctor.findings import CheckCode
from zkgroups.exceptions import GroupNotFoundError, NoPermissionError, ZkgroupsException

from .shared.arguments import chosen_groups, execute_option, matching_option, maybe_groups_argument
from .shared.command_classes import Command
from .shared.connect import connected
from .shared.durations import duration_option
from .shared.errors_to_exit_codes import Tally, sentence
from .shared.exit_codes import ExitCode
from .shared.messages import say
from .shared.options import Options
from .shared.output import Column, Output, Row, Table
from .shared.progress import counted

_COLUMNS: Final = (
    Column("SEVERITY", "severity", styles={"error": "red", "warning": "yellow"}),
    Column("GROUP", "group"),
    Column("CHECK", "code"),
    Column("PATH", "path"),
)
_WHAT: Final = Column("WHAT", "what")
_FIX: Final = Column("FIX", "fix", wide=True)
_REPAIR: Final = Column("REPAIR", "repair")

FINDINGS: Final = Table("findings", key="path", columns=(*_COLUMNS, _WHAT, _FIX))

REPAIRS: Final = Table("findings", key="path", columns=(*_COLUMNS, _REPAIR))
"""Findings, with the result of the repair of each."""


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@click.option("--repair", is_flag=True, help="Show the possible repairs, and why other findings cannot be repaired.")
@execute_option
@duration_option(
    "--stale-after", default="90d", show_default=True, help="Report offsets without a commit for this long"
)
@click.pass_obj
def doctor(
    options: Options,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    repair: bool,
    execute: bool,
    stale_after: int,
) -> None:
    """Find problems in the named groups, or in all groups. Show the severity, the node and the problem of each.

    The exit code is 10 for any error or warning; findings of severity info do not change it. With -o wide, FIX shows
    the command to run, or another remedy.

    --repair shows which findings can be repaired without harm to any client; --repair --execute repairs them. These
    are empty directories of groups and of deleted topics, registrations without a session, owner nodes with neither a
    session nor a registered instance, and whitespace around an offset. Each repair first checks that nothing has
    changed. All other findings need your decision.

    \b
    Example:
      zkgroups -z zk1:2181/kafka doctor
      zkgroups -z zk1:2181/kafka doctor billing invoices -o wide
      zkgroups -z zk1:2181/kafka doctor --groups 'bill.*' --stale-after 30d -o json
      zkgroups -z zk1:2181/kafka doctor --repair
      zkgroups -z zk1:2181/kafka doctor --repair --execute
    """
    if execute and not repair:
        raise click.UsageError("--execute needs --repair", click.get_current_context())
    with connected(options, writes=execute) as registry:
        chosen = chosen_groups(registry, names, matching) if names or matching else registry.groups()
        checkups = counted(options, registry.check(chosen, stale_after=stale_after), "groups checked")
        run = _Run(registry, repair=repair, execute=execute)
        output = Output(options)
        write = output.write_done if execute else output.write
        write(REPAIRS if repair else FINDINGS, run.rows(checkups, must_exist=names))
    say(options, run.summary)
    run.finish()


class _Run:
    """Repairs findings if asked to, and counts the results."""

    def __init__(self, registry: Registry, *, repair: bool, execute: bool) -> None:
        self._registry = registry
        self._repair = repair
        self._execute = execute
        self._reading = Tally()
        self._repairing = Tally()
        self._left: Counter[Severity] = Counter()
        self._repairable = 0
        self._repaired = 0

    def rows(self, checkups: Iterable[Checkup], *, must_exist: Collection[str]) -> Iterator[Row]:
        """Yield a row for each finding, after its repair if requested. Report missing groups and forbidden nodes."""
        for checkup in checkups:
            with self._reading.attempt():
                if not checkup.exists and checkup.group in must_exist:
                    raise GroupNotFoundError(checkup.group)
                yield from map(self._row, checkup.findings)
                if forbidden := [each.path for each in checkup.findings if each.code is CheckCode.NO_PERMISSION]:
                    raise NoPermissionError(forbidden[0])

    def _row(self, finding: Finding) -> Row:
        repaired, note = self._repair_finding(finding) if self._repair else (None, None)
        if repaired:
            self._repaired += 1
        else:
            self._left[finding.severity] += 1
        return {
            "severity": finding.severity.value,
            "group": finding.group,
            "code": finding.code,
            "path": finding.path,
            "what": finding.what,
            "fix": finding.fix,
            "repairable": finding.repairable,
            "repaired": repaired,
            "repair": note,
        }

    def _repair_finding(self, finding: Finding) -> tuple[bool, str]:
        """Return whether the finding was repaired, and the text for REPAIR."""
        if finding.repair is None:
            return False, f"not repaired: {finding.not_repaired}"
        self._repairable += 1
        if not self._execute:
            return False, f"would {finding.repair.does}"
        note = f"done: {finding.repair.does}"
        repaired = False
        with self._repairing.attempt():
            try:
                self._registry.repair(finding)
                repaired = True
            except ZkgroupsException as error:
                note = f"failed: {sentence(error)}"
                raise
        return repaired, note

    @property
    def summary(self) -> str:
        """The numbers of findings and repairs, as a sentence or two."""
        total = self._left.total()
        counts = ", ".join(f"{severity.value}: {self._left[severity]}" for severity in Severity if self._left[severity])
        if self._execute:
            return f"Repaired: {self._repaired}. {f'Left: {total} ({counts}).' if total else 'No findings are left.'}"
        nothing = "No problems found." if self._reading.all_done else "Findings: 0."
        found = f"Findings: {total} ({counts})." if total else nothing
        if self._repairable:
            return f"{found} Nothing was changed: add --execute to repair {self._repairable} of them."
        return found

    def finish(self) -> None:
        """End the command with the right exit code: errors come before remaining findings."""
        self._reading.finish()
        self._repairing.finish()
        if self._left[Severity.ERROR] or self._left[Severity.WARNING]:
            raise click.exceptions.Exit(ExitCode.FINDINGS)
