"""`zkgroups doctor`: look for what is wrong, and repair what can be repaired without harm to anybody."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import click

from zkgroups import Checkup, Finding, Registry, Severity
from zkgroups.core.doctor.check_table import HIDDEN
from zkgroups.exceptions import GroupNotFoundError, NoPermissionError, ZkgroupsException

from .shared.arguments import chosen_groups, execute_option, matching_option, maybe_groups_argument
from .shared.command_classes import Command
from .shared.connect import connected
from .shared.durations import duration_option
from .shared.errors import Tally, sentence
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
"""The same findings, with what becomes of each."""


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@click.option("--repair", is_flag=True, help="Show what would be repaired, and why the rest would not.")
@execute_option
@duration_option("--stale-after", default="90d", show_default=True, help="An offset is stale without a commit for")
@click.pass_obj
def doctor(
    options: Options,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    repair: bool,
    execute: bool,
    stale_after: int,
) -> None:
    """Look for what is wrong in groups, or in all groups: what, how bad, where, and what to do about it.

    The exit code is 10 if there is an error or a warning. What is only worth knowing (info) leaves it at 0. With
    -o wide there is the line to type for each.

    --repair shows what can be repaired without harm to any client, and with --execute repairs it: empty directories of
    groups and of deleted topics, registrations that belong to no session, owners that belong to no session and to no
    registered instance, blanks around the number of an offset. Each repair checks again that nothing has changed. All
    else is left to you.

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
        checkups = counted(options, registry.check(chosen, stale_after=stale_after), "groups looked at")
        visit = _Visit(registry, repair=repair, execute=execute)
        output = Output(options)
        write = output.write_done if execute else output.write
        write(REPAIRS if repair else FINDINGS, visit.rows(checkups, must_exist=names))
    say(options, visit.summary)
    visit.finish()


class _Visit:
    """One run: what was found, what was done about it, and what is left."""

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
        """The findings, one by one as they are treated; what could not be read is one, and said, too."""
        for checkup in checkups:
            with self._reading.attempt():
                if not checkup.exists and checkup.group in must_exist:
                    raise GroupNotFoundError(checkup.group)
                yield from map(self._row, checkup.findings)
                if hidden := [finding.path for finding in checkup.findings if finding.code == HIDDEN]:
                    raise NoPermissionError(hidden[0])

    def _row(self, finding: Finding) -> Row:
        repaired, note = self._treat(finding) if self._repair else (None, None)
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

    def _treat(self, finding: Finding) -> tuple[bool, str]:
        """Whether it was repaired, and what is to be said of that."""
        if finding.repair is None:
            return False, f"left alone: {finding.not_repaired}"
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
        """What was found and what became of it, in a sentence or two."""
        total = self._left.total()
        counts = ", ".join(f"{severity.value}: {self._left[severity]}" for severity in Severity if self._left[severity])
        if self._execute:
            return f"Repaired: {self._repaired}. {f'Left: {total} ({counts}).' if total else 'Nothing is left.'}"
        nothing = "Nothing is wrong." if self._reading.all_done else "Findings: 0."
        found = f"Findings: {total} ({counts})." if total else nothing
        if self._repairable:
            return f"{found} Nothing was changed: --execute repairs what can be repaired ({self._repairable})."
        return found

    def finish(self) -> None:
        """End the command: what could not be read or repaired first, then what was found and is still there."""
        self._reading.finish()
        self._repairing.finish()
        if self._left[Severity.ERROR] or self._left[Severity.WARNING]:
            raise click.exceptions.Exit(ExitCode.FINDINGS)
