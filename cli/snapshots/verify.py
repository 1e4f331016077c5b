"""`zkgroups snapshots verify`: verify the files and rows of snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from ..shared.command_classes import Command
from ..shared.engine_options import LOCAL_OR_SPARK, EngineKind, EngineOptions, arrow_installed, engine_option
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FolderUri
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from ..shared.progress import counted
from ..shared.spark_options import at_option, spark_installed, spark_options

if TYPE_CHECKING:
    from zkgroups.snapshots.verify import VerifiedSnapshot

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
@engine_option(EngineKind.SPARK, LOCAL_OR_SPARK)
@spark_options
@click.pass_obj
def verify(options: Options, /, destination: str, at: str | None, **given: Any) -> None:
    """Verify that the files and rows of the snapshots in DEST are unchanged.

    The command reads all rows. The exit code is 10 for any error: a missing, truncated, changed or additional file;
    rows that are unreadable, missing or changed; two offsets for one partition; or a missing _SUCCESS. A snapshot of
    another version or an unfinished one is of severity info and does not change the exit code.

    \b
    Example:
      zkgroups snapshots verify /data/groups
      zkgroups snapshots verify /data/groups --engine local
      zkgroups snapshots verify /data/groups --at latest -o json
    """
    totals = _Totals()
    with _verified(options, EngineOptions.of(given), destination, at) as found:
        Output(options).write(_FINDINGS, totals.rows(counted(options, found, "snapshots")))
    say(options, totals.summary)
    if totals.damaged:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


@contextmanager
def _verified(
    options: Options, engine: EngineOptions, destination: str, at: str | None
) -> Iterator[Iterator[VerifiedSnapshot]]:
    """Start the engine, and yield an iterator that verifies one snapshot after the other."""
    if engine.is_on_this_machine(destination):
        with arrow_installed("snapshots"):
            from zkgroups.snapshots.local_verify import verify as verify_here
        yield verify_here(destination, at)
        return
    with spark_installed():
        from zkgroups.spark.snapshots.verify import verify as verify_with_spark
    say(options, f"Starting Spark to read the snapshots in {destination}.")
    with engine.spark.session(options) as session:
        yield verify_with_spark(session, destination, at)


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
