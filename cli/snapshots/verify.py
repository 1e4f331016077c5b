"""`zkgroups snapshots verify`: verify the files and rows of snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import click

from ..shared.command_classes import Command
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FolderUri
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from ..shared.progress import counted
from ..shared.spark_options import SparkOptions, at_option, spark_installed, spark_options

if TYPE_CHECKING:
    from zkgroups.spark.snapshots.verify import VerifiedSnapshot

_FINDINGS: Final = Table(
    "findings",
    key="snapshot",
    columns=(
        Column("SEVERITY", "severity", styles={"error": "red"}),
        Column("SNAPSHOT", "snapshot"),
        Column("TABLE", "table"),
        Column("FINDING", "finding"),
        Column("DETAIL", "detail"),
    ),
)


@click.command(cls=Command)
@click.argument("destination", metavar="DEST", type=FolderUri())
@at_option(default="all by default")
@spark_options
@click.pass_obj
def verify(options: Options, /, destination: str, at: str | None, master: str | None, settings: dict[str, str]) -> None:
    """Verify that the files and rows of the snapshots in DEST are unchanged.

    The command reads all rows. The exit code is 10 for any error: a missing, truncated, changed or additional file;
    rows that are unreadable, missing or changed; two offsets for one partition; or a missing _SUCCESS. A snapshot of
    another version or an unfinished one is of severity info and does not change the exit code.

    \b
    Example:
      zkgroups snapshots verify /data/groups
      zkgroups snapshots verify /data/groups --at latest -o json
    """
    with spark_installed():
        from zkgroups.spark.snapshots.verify import verify as verify_snapshots
    say(options, f"Starting Spark to read the snapshots in {destination}.")
    totals = _Totals()
    with SparkOptions(master, settings).session(options) as session:
        checks = counted(options, verify_snapshots(session, destination, at), "snapshots")
        Output(options).write(_FINDINGS, totals.rows(checks))
    say(options, totals.summary)
    if totals.damaged:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


class _Totals:
    """The number of verified snapshots, and of damaged ones; unfinished snapshots do not count."""

    def __init__(self) -> None:
        self.all = 0
        self.damaged = 0

    @property
    def summary(self) -> str:
        """The result as a sentence."""
        snapshots = "1 snapshot" if self.all == 1 else f"{self.all} snapshots"
        if not self.damaged:
            return f"{snapshots} verified: no errors."
        return f"{snapshots} verified: {self.damaged} damaged."

    def rows(self, checks: Iterable[VerifiedSnapshot]) -> Iterator[Row]:
        """Yield a row per finding, and count the snapshots."""
        for checked in checks:
            self.all += checked.is_complete or checked.has_errors
            self.damaged += checked.has_errors
            for finding in checked.findings:
                yield {
                    "severity": finding.severity.value,
                    "snapshot": finding.snapshot,
                    "table": finding.table and finding.table.value,
                    "finding": finding.finding.value,
                    "detail": finding.detail,
                }
