"""`zkgroups snapshots list`, `prune` and `verify`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups.core.times import utc
from zkgroups.snapshots.layout import listing
from zkgroups.storage.files import LocalFiles, parse_timestamp
from zkgroups.storage.snapshot_folder import SnapshotFolder

from ..offsets.from_parquet import opened_snapshots
from ..shared.arguments import execute_option
from ..shared.command_classes import Command
from ..shared.engine_options import (
    EngineOptions,
    at_option,
    engine_option,
    spark_options,
)
from ..shared.errors import Tally
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FolderUri
from ..shared.messages import counted, say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from ..shared.parameter_types import Duration

if TYPE_CHECKING:
    from zkgroups.snapshots.verify import VerifiedSnapshot


# `zkgroups snapshots list`: the snapshots of a destination, with their counts.


_SNAPSHOTS: Final = Table(
    "snapshots",
    key="name",
    columns=(
        Column("SNAPSHOT", "name"),
        Column("TIME", "time"),
        Column("CLUSTER", "cluster"),
        Column("GROUPS", "groups", right=True),
        Column("OFFSETS", "offsets", right=True),
        Column("OWNERS", "owners", right=True),
        Column("MEMBERS", "members", right=True),
        Column("PROBLEMS", "problems", right=True),
        Column("LAG", "lag", right=True),
        Column("UNKNOWN-LAGS", "unknown_lags", right=True, wide=True),
        Column("BYTES", "size", right=True),
        Column("ZXID", "zxid", right=True, show=hex),
    ),
)


@click.command("list", cls=Command)
@click.argument("destination", metavar="DEST", type=FolderUri())
@engine_option()
@spark_options
@click.pass_obj
def list_(options: Options, /, destination: str, **given: Any) -> None:
    """List the snapshots in DEST, oldest first, with the number of groups, offsets, owners and members.

    The numbers come from the summary of each snapshot; `snapshots verify` checks them. Snapshots of earlier versions
    have no summary: their rows are counted, and the number of groups is unknown. LAG is the sum of all known lags, if
    the snapshot was taken with -b. ZXID is the last transaction in a snapshot that was read from a data directory.

    \b
    Example:
      zkgroups snapshots list /data/groups
      zkgroups snapshots list /data/groups -o json
    """
    engine = EngineOptions.of(given)
    if engine.is_local(destination):
        found = listing(SnapshotFolder(LocalFiles(), destination))  # without Arrow, whose import takes longer
    else:
        with opened_snapshots(options, engine, destination, "list the") as layout:
            found = listing(layout)
    if not found:
        say(options, f"No snapshots in {destination}. To write one: zkgroups snapshot {destination}")
    times = {each.name: utc(int(each.time.timestamp() * 1000)) for each in found}
    Output(options).write(_SNAPSHOTS, [dataclasses.asdict(each) | {"time": times[each.name]} for each in found])


# `zkgroups snapshots prune`: delete old snapshots, after a dry run.


_PRUNED: Final = Table("snapshots", key="name", columns=(Column("SNAPSHOT", "name"), Column("TIME", "time")))


@click.command(cls=Command)
@click.argument("destination", metavar="DEST", type=FolderUri())
@click.option(
    "--keep",
    "seconds",
    type=Duration(needs_unit=True),
    required=True,
    help="Delete snapshots older than this, such as 30d or P30D.",
)
@execute_option
@engine_option()
@spark_options
@click.pass_obj
def prune(options: Options, /, destination: str, seconds: float, execute: bool, **given: Any) -> None:
    """Delete old snapshots in DEST. The latest snapshot of each cluster is always kept.

    Without --execute, the command only shows what it would delete. What killed runs have left from before that time is
    deleted, too. A snapshot with a damaged summary is kept and reported. The age of a snapshot is by the time in its
    name. The command may run beside `zkgroups snapshot`, whose snapshot it does not touch.

    \b
    Example:
      zkgroups snapshots prune /data/groups --keep 30d
      zkgroups snapshots prune /data/groups --keep 30d --execute
    """
    tally = Tally()
    try:
        before = datetime.now(UTC) - timedelta(seconds=seconds)
    except OverflowError as error:
        raise click.BadParameter("it begins before the year 1", param_hint="--keep") from error
    with opened_snapshots(options, EngineOptions.of(given), destination) as layout:
        layout.check_exists()
        names = layout.outdated(before, tally.failed)
        Output(options).write_done(_PRUNED, _rows(names, tally, layout.delete_snapshot if execute else None))
    if not names:
        say(options, "Nothing to delete: no snapshot is that old, except the latest.")
    elif not execute:
        say(options, "Nothing was changed: add --execute to apply.")
    tally.finish()


def _rows(names: Iterable[str], tally: Tally, delete: Callable[[str], None] | None) -> Iterator[Row]:
    for name in names:
        with tally.attempt():
            if delete is not None:
                delete(name)
            yield {"name": name, "time": utc(int(parse_timestamp(name).timestamp() * 1000))}


# `zkgroups snapshots verify`: verify the files and rows of snapshots.


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
@engine_option()
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
      zkgroups snapshots verify /data/groups --at latest -o json
    """
    totals = _Totals()
    with opened_snapshots(options, EngineOptions.of(given), destination) as layout:
        from zkgroups.snapshots.verify import verify as verified

        Output(options).write(_FINDINGS, totals.rows(counted(options, verified(layout, at), "snapshots")))
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
