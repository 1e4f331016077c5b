"""`zkgroups doctor`: find problems in groups, and repair problems where this cannot harm any client."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from zkgroups import Checkup, Finding, Registry, Severity
from zkgroups.core.doctor.all_checks import LOG_CHECKS, run_status_checks, worst_first
from zkgroups.core.doctor.findings import CheckCode
from zkgroups.core.doctor.offset_checks import GroupVerdicts
from zkgroups.core.health import Status
from zkgroups.core.znodes.paths import GroupPaths
from zkgroups.exceptions import GroupNotFoundError, NoPermissionError, ZkgroupsException

from .shared.arguments import chosen_groups, execute_option, matching_option, maybe_groups_argument
from .shared.connect import connected_with_topics
from .shared.errors import Tally, sentence
from .shared.global_options import Command
from .shared.messages import counted, say
from .shared.options import ExitCode, Format, Options
from .shared.output import Column, Output, Row, Table
from .shared.parameter_types import Duration, usage_error

if TYPE_CHECKING:
    from zkgroups.serve.picture.values import GroupPicture

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


_SEVERITIES: Final = [severity.value for severity in Severity]
_NEVER: Final = "never"
_OF_LOGS: Final = frozenset(check.code for check in LOG_CHECKS)
_STATUSES: Final = {CheckCode.UNOWNED_PARTITION: Status.UNOWNED, CheckCode.BLOCKED_PARTITION: Status.BLOCKED}
_MOST_ALIKE: Final = 3
"""So many findings of one kind have lines of their own in a table."""


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@click.option(
    "--severity",
    type=click.Choice(_SEVERITIES),
    default=Severity.INFO.value,
    help="Only findings of this severity, and worse ones.",
)
@click.option(
    "--ignore",
    type=click.Choice([code.value for code in CheckCode]),
    metavar="CHECK",
    multiple=True,
    help="Leave out the findings of this check. May be repeated.",
)
@click.option(
    "--fail-on",
    type=click.Choice([*_SEVERITIES, _NEVER]),
    default="warning",
    show_default=True,
    help="The lowest severity for exit code 10.",
)
@click.option("--repair", is_flag=True, help="Show the possible repairs, and why other findings cannot be repaired.")
@execute_option
@click.option(
    "--stale-after",
    type=Duration(needs_unit=True),
    default="90d",
    show_default=True,
    help="Report offsets without a commit for this long.",
)
@click.pass_obj
def doctor(
    options: Options,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    severity: str,
    ignore: tuple[str, ...],
    fail_on: str,
    repair: bool,
    execute: bool,
    stale_after: float,
) -> None:
    """Find problems in the named groups, or in all groups. Show the severity, the node and the problem of each.

    The worst findings come first. In a table, many findings of one check are one line with their number: errors and
    warnings of one group, and findings of severity info or abandoned-partition of all groups. All other formats, and
    -o wide, show each finding. With -o wide, FIX shows the command to run, or another remedy. The last line, and
    left_out in JSON, count the findings that are not shown, also those that --severity and --ignore leave out.

    With -b, brokers that do not register their topics in ZooKeeper, as in KRaft mode, are asked for partitions. The
    offsets are also compared with the logs of the brokers (past-end and before-start), and the statuses
    of `zkgroups status` become findings (stopped-partition and abandoned-partition). If brokers do not answer, the
    command shows all other findings, and ends with exit code 9.

    The exit code is 10 for any shown error or warning. --fail-on changes that.

    --repair shows which findings can be repaired without harm to any client; --repair --execute repairs them. These
    are empty directories of groups and of deleted topics, registrations without a session, owner nodes with neither a
    session nor a registered instance, and whitespace around an offset. Each repair first checks that nothing has
    changed. All other findings need your decision.

    Ages of offsets count from the time of this machine, or from the last commit if that is later.

    \b
    Example:
      zkgroups -z zk1:2181/kafka doctor
      zkgroups -z zk1:2181/kafka doctor billing invoices -o wide
      zkgroups -z zk1:2181/kafka doctor --groups 'bill.*' --stale-after 30d -o json
      zkgroups -z zk1:2181/kafka -b kafka1:9092 doctor --ignore open-acl --fail-on error
      zkgroups -z zk1:2181/kafka doctor --repair
      zkgroups -z zk1:2181/kafka doctor --repair --execute
    """
    if execute and not repair:
        raise usage_error("--execute needs --repair")
    run = _Run(Severity(severity), ignore, repair=repair, execute=execute)
    with connected_with_topics(options, writes=execute) as registry:
        groups = chosen_groups(registry, names, matching) if names or matching else registry.groups()
        checkups = counted(options, registry.check(groups, stale_after=stale_after), "groups checked")
        if options.bootstrap_server is not None:
            run.sweep(options, registry, groups, stale_after)
        findings = [*run.findings(checkups, must_exist=names), *run.log_findings()]
        _write(Output(options), run, (run.row(registry, finding) for finding in worst_first(findings)))
        has_topics = not groups or options.bootstrap_server is not None or _has_topics(registry)
    if not has_topics:
        say(options, "Subscriptions were not compared with topics: ZooKeeper has none. Give the brokers with -b.")
    if run.summary:
        say(options, run.summary)
    run.finish(None if fail_on == _NEVER else Severity(fail_on))


def _has_topics(registry: Registry) -> bool:
    with suppress(NoPermissionError):  # the findings have it
        return bool(registry.topics())
    return True


def _write(output: Output, run: _Run, rows: Iterable[Row]) -> None:
    totals = {"left_out": run.left_out}
    if run.repair:
        (output.write_done if run.execute else output.write)(REPAIRS, rows, totals)
    else:
        output.write(FINDINGS, _folded(rows, run) if output.format is Format.TABLE else rows, totals)


def _folded(rows: Iterable[Row], run: _Run) -> Iterator[Row]:
    """Replace many findings of one check by the first of them, with the number of the others."""
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        is_of_all = row["severity"] == Severity.INFO or row["code"] == CheckCode.ABANDONED_PARTITION
        of_group = () if is_of_all else (row["group"],)
        kinds.setdefault((row["severity"], row["code"], *of_group), []).append(row)
    for alike in kinds.values():
        if len(alike) <= _MOST_ALIKE:
            yield from alike
        else:
            run.left_out += len(alike) - 1
            yield dict(alike[0]) | {"what": f"{alike[0]['what']} (and {len(alike) - 1} more: add -o wide)"}


class _Run:
    """Repairs findings if asked to, and counts the results."""

    def __init__(self, lowest: Severity, ignored: Collection[str], *, repair: bool, execute: bool) -> None:
        self.left_out = 0
        self._groups: Mapping[str, GroupPicture] = {}
        self._lowest, self._ignored = lowest, ignored
        self.repair = repair
        self.execute = execute
        self._reading = Tally()
        self._repairing = Tally()
        self._left: Counter[Severity] = Counter()
        self._repairable = 0
        self._repaired = 0

    def findings(self, checkups: Iterable[Checkup], *, must_exist: Collection[str]) -> Iterator[Finding]:
        """Yield the findings that are shown. Report missing groups and forbidden nodes."""
        for checkup in checkups:
            with self._reading.attempt():
                if not checkup.exists and checkup.group in must_exist:
                    raise GroupNotFoundError(checkup.group)
                shown = self._shown([self._as_severe_as_status(each) for each in checkup.findings])
                yield from shown
                if forbidden := [each.path for each in shown if each.code is CheckCode.NO_PERMISSION]:
                    raise NoPermissionError(forbidden[0])

    def sweep(self, options: Options, registry: Registry, groups: Sequence[str], stale_after: float) -> None:
        """Compare the offsets with the logs. The checks of the znodes report groups that cannot be read."""
        from zkgroups.core.health import Limits
        from zkgroups.serve.picture.build_group import Rules
        from zkgroups.serve.sweeper import ClusterState

        from .serve.status import sweep_groups

        state = ClusterState(Rules(Limits(stale_ms=int(stale_after * 1000))))
        sweep_groups(options, registry, groups, state, self._reading, "offsets were not compared with the logs")
        self._groups = state.groups

    def log_findings(self) -> list[Finding]:
        """Return the findings about the logs, and those that follow from the statuses of groups."""
        found: list[Finding] = []
        for group in self._groups.values():
            found += (each for each in group.findings if each.code in _OF_LOGS)
            verdicts = tuple((each.at, each.verdict) for each in group.partitions)
            found += run_status_checks(GroupVerdicts(group.name, group.living, verdicts))
        return self._shown(found)

    def _as_severe_as_status(self, finding: Finding) -> Finding:
        """Make it an error if its partitions have a status that is one, e.g. because nobody owns them for long."""
        group, status = self._groups.get(finding.group), _STATUSES.get(finding.code)
        if group is None or status is None:
            return finding
        paths = GroupPaths(group.name)
        found = (
            each.verdict.severity
            for each in group.partitions
            if each.verdict.status is status and f"{finding.path}/".startswith(f"{paths.owned_topic(each.at.topic)}/")
        )
        return replace(finding, severity=Severity.ERROR) if Severity.ERROR in found else finding

    def _shown(self, findings: Collection[Finding]) -> list[Finding]:
        """Return the findings that are shown, and count the others."""
        shown = [
            each for each in findings if each.severity.is_at_least(self._lowest) and each.code not in self._ignored
        ]
        self.left_out += len(findings) - len(shown)
        return shown

    def row(self, registry: Registry, finding: Finding) -> Row:
        """Return the row of a finding, after its repair if requested."""
        repaired, note = self._repair_finding(registry, finding) if self.repair else (None, None)
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

    def _repair_finding(self, registry: Registry, finding: Finding) -> tuple[bool, str]:
        """Return whether the finding was repaired, and the text for REPAIR."""
        if finding.repair is None:
            return False, f"not repaired: {finding.not_repaired}"
        self._repairable += 1
        if not self.execute:
            return False, f"would {finding.repair.does}"
        note = f"done: {finding.repair.does}"
        repaired = False
        with self._repairing.attempt():
            try:
                registry.repair(finding)
                repaired = True
            except ZkgroupsException as error:
                note = f"failed: {sentence(error)}"
                raise
        return repaired, note

    @property
    def summary(self) -> str:
        """The numbers of findings and repairs, and of the findings that are not shown, as a few sentences."""
        return " ".join(filter(None, [self._counts, f"Left out: {self.left_out}." if self.left_out else ""]))

    @property
    def _counts(self) -> str:
        total = self._left.total()
        counts = ", ".join(f"{severity.value}: {self._left[severity]}" for severity in Severity if self._left[severity])
        if self.execute:
            return f"Repaired: {self._repaired}. {f'Left: {total} ({counts}).' if total else 'No findings are left.'}"
        nothing = "No problems found." if self._reading.all_done else ""
        found = f"Findings: {total} ({counts})." if total else nothing
        if self._repairable:
            return f"{found} Nothing was changed: add --execute to repair {self._repairable} of them."
        return found

    def finish(self, fail_on: Severity | None) -> None:
        """End the command with the right exit code: errors come before remaining findings."""
        self._reading.finish()
        self._repairing.finish()
        if fail_on is not None and any(severity.is_at_least(fail_on) for severity in self._left):
            raise click.exceptions.Exit(ExitCode.FINDINGS)
