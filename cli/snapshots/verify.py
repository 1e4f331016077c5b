"""`zkgroups snapshots verify`: whether snapshots are whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import click

from ..shared.exit_codes import ExitCode
from ..shared.input_files import Place
from ..shared.messages import say
from ..shared.options import Command, Options
from ..shared.output import Column, Output, Row, Table
from ..shared.progress import counted
from ..shared.spark_options import SparkOptions, checked_moment, spark_installed, spark_options

if TYPE_CHECKING:
    from zkgroups.spark.snapshots.verify import Checked

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
@click.argument("destination", metavar="DEST", type=Place())
@click.option(
    "--at",
    metavar="MOMENT",
    callback=checked_moment,
    help="Only one: its name, latest, previous, or a time, for the newest not after it. All by default.",
)
@spark_options
@click.pass_obj
def verify(options: Options, /, destination: str, at: str | None, master: str | None, settings: dict[str, str]) -> None:
    """Look whether the snapshots in DEST are whole: every file as it was written, and every row as it was.

    All of it is read. The exit code is 10 if something is wrong: a file that is missing, was cut, changed or added;
    rows that cannot be read, are not as many as they were, or not the same; two offsets of one partition; or a
    snapshot that has lost its _SUCCESS. What is only worth knowing (info) leaves it at 0: that another version has
    written it, and what has been begun and is not finished.

    \b
    Example:
      zkgroups snapshots verify /data/groups
      zkgroups snapshots verify /data/groups --at latest -o json
    """
    with spark_installed():
        from zkgroups.spark.snapshots.verify import verify as verified
    say(options, f"Starting Spark to read the snapshots in {destination}.")
    seen = _Seen()
    with SparkOptions(master, settings).session(options) as session:
        checks = counted(options, verified(session, destination, at), "snapshots")
        Output(options).write(_FINDINGS, seen.rows(checks))
    say(options, seen.summary)
    if seen.wrong:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


class _Seen:
    """How many have been looked through, and how many of them are not whole; what is under way is none of them."""

    def __init__(self) -> None:
        self.all = 0
        self.wrong = 0

    @property
    def summary(self) -> str:
        """What came of it, in a sentence."""
        snapshots = "1 snapshot" if self.all == 1 else f"{self.all} snapshots"
        if not self.wrong:
            return f"{snapshots} looked through: whole."
        return f"{snapshots} looked through: {self.wrong} not whole."

    def rows(self, checks: Iterable[Checked]) -> Iterator[Row]:
        """What was found."""
        for checked in checks:
            self.all += checked.is_there or checked.is_wrong
            self.wrong += checked.is_wrong
            for finding in checked.findings:
                yield {
                    "severity": finding.severity.value,
                    "snapshot": finding.snapshot,
                    "table": finding.table and finding.table.value,
                    "finding": finding.finding.value,
                    "detail": finding.detail,
                }
