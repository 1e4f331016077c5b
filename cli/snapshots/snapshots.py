"""`zkgroups snapshots`: list, compare, verify, plot and prune snapshots."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups.core.offsets.changes import (
    CHANGE_FILTERS,
    STALLED,
    UNCHANGED_HELD,
    SnapshotChange,
    SummaryLevel,
    count_column,
)
from zkgroups.core.times import from_ms, utc
from zkgroups.exceptions import RefusedError
from zkgroups.snapshots.layout import listing
from zkgroups.storage.files import LocalFiles, parse_timestamp
from zkgroups.storage.snapshot_folder import SnapshotFolder

from ..offsets.from_parquet import cluster_address, opened_snapshots, warn_if_in_future
from ..shared.arguments import ChosenPartitions, execute_option, group_argument, topics_option
from ..shared.engine_options import (
    EngineOptions,
    at_option,
    cluster_option,
    engine_option,
    installed,
    selection_options,
    spark_options,
)
from ..shared.errors import Tally
from ..shared.global_options import Group
from ..shared.messages import counted, say
from ..shared.options import ExitCode, Options
from ..shared.output import GROUP_AT, Column, Output, Row, Table
from ..shared.parameter_types import Duration, FilePath, FolderUri, SnapshotChoice, Time, usage_error

if TYPE_CHECKING:
    from zkgroups.snapshots.verify import VerifiedSnapshot


@click.group(cls=Group)
def snapshots() -> None:
    """List, compare, verify, plot and prune snapshots.

    DEST is the folder that `zkgroups snapshot` writes to.

    \b
    Example:
      zkgroups snapshots list /data/groups
      zkgroups snapshots diff /data/groups previous latest
      zkgroups snapshots plot /data/groups billing billing.svg
    """


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


@snapshots.command("list")
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


@snapshots.command()
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


@snapshots.command()
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


_CLUSTER: Final = Column("CLUSTER", "cluster", wide=True)
_NAMES: Final = (*GROUP_AT,)
_MOVED_BY: Final = (
    Column("DELTA", "delta", right=True, show="{:+d}".format),
    Column("RATE", "rate", right=True, show="{:.1f}".format),
)
_LAG: Final = (
    Column("LAG", "lag", right=True),
    Column("LAG-DELTA", "lag_delta", right=True, show="{:+d}".format),
)
_COMMITTED: Final = Column("COMMITTED", "committed_at")


def _yes_or_no(holds: bool) -> str:
    return "yes" if holds else "no"


def _table(by: SummaryLevel) -> Table:
    names = (_CLUSTER, *_NAMES[: list(SummaryLevel).index(by) + 1])
    if by is SummaryLevel.PARTITION:
        details = (
            Column("STATE", "state", styles={"went-back": "red", "unreadable": "red"}),
            Column("BEFORE", "before", right=True),
            Column("AFTER", "after", right=True),
            *_MOVED_BY,
            Column("COMMITS", "commits", right=True, wide=True),
            Column("RECREATED", "recreated", wide=True, show=_yes_or_no),
            Column("HELD", "held", show=_yes_or_no),
            Column("STALLED", STALLED, show=_yes_or_no),
            *_LAG,
        )
        return Table("partitions", key="group", columns=(*names, *details, _COMMITTED))
    counts = [Column(state.upper(), count_column(state), right=True) for state in SnapshotChange]
    counts[2:2] = (Column(name.upper(), count_column(name), right=True) for name in (UNCHANGED_HELD, STALLED))
    all_of_them = Column("PARTITIONS", "partitions", right=True)
    recreated = Column("RECREATED", "recreated", right=True, wide=True)
    sums = (*_MOVED_BY, *_LAG)
    return Table(f"{by}s", key="group", columns=(*names, all_of_them, *counts, recreated, *sums, _COMMITTED))


def _states(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[str, ...]:
    words = () if text is None else tuple(text.split(","))
    for word in words:
        if word not in CHANGE_FILTERS:
            raise click.BadParameter(f"{word!r} is not one of {', '.join(CHANGE_FILTERS)}")
    return words


@snapshots.command()
@click.argument("destination", metavar="DEST", type=FolderUri())
@click.argument("before", metavar="[A]", default="previous", type=SnapshotChoice())
@click.argument("after", metavar="[B]", default="latest", type=SnapshotChoice())
@click.option(
    "--by",
    type=click.Choice([by.value for by in SummaryLevel]),
    default="group",
    help="One row per group (default), topic or partition.",
)
@click.option(
    "--only", metavar="STATE,...", callback=_states, help="Show only rows with a partition in one of these states."
)
@click.option(
    "--fail-on",
    metavar="STATE,...",
    callback=_states,
    help="Exit with code 10 if any partition is in one of these states.",
)
@selection_options
@cluster_option
@engine_option()
@spark_options
@click.pass_obj
def diff(
    options: Options,
    /,
    destination: str,
    before: str,
    after: str,
    by: str,
    only: tuple[str, ...],
    fail_on: tuple[str, ...],
    cluster: str | None,
    **chosen: Any,
) -> None:
    """Compare the offsets of snapshot A (default: previous) and snapshot B (default: latest).

    A and B are names, latest, previous, or times. A time selects the latest snapshot started at or before it; without a
    zone it is UTC.

    \b
    moved           the offset in B is higher than in A
    unchanged       the offset is the same in A and B
    unchanged-held  the offset is unchanged, and an instance owns the partition, in A or in B
    stalled         the offset is unchanged, although it was behind the log end in A and in B
    went-back       the offset in B is lower than in A
    new             the offset is only in B
    gone            the offset is only in A
    unreadable      the node is malformed or forbidden, in A or in B

    The column UNCHANGED includes the offsets of UNCHANGED-HELD and STALLED. Only snapshots that were taken with -b have
    log ends. Without them, STALLED, LAG (in B) and LAG-DELTA are unknown, and an unchanged offset does not show whether
    the group is idle or stuck.

    RATE is in messages per second between the last commits in A and B. RECREATED nodes were deleted and created again.

    \b
    Example:
      zkgroups snapshots diff /data/groups
      zkgroups snapshots diff /data/groups 2026-01-31T22:00:00 latest --only gone,went-back --by partition
      zkgroups snapshots diff /data/groups --groups 'billing.*' --fail-on went-back,gone
      zkgroups snapshots diff /data/groups --by partition --only stalled --fail-on stalled
    """
    with installed("snapshots"):
        from zkgroups.snapshots import diff as history
    with opened_snapshots(options, EngineOptions.of(chosen), destination, "compare") as layout:
        two = layout.choose_pair(before, after, cluster=cluster, address=cluster_address(options))
        if STALLED in {*only, *fail_on} and two.without_log_ends:
            raise RefusedError(
                f"{two.without_log_ends[0]} has no log ends, so `{STALLED}` is unknown: take snapshots with -b"
            )
        warn_if_in_future(two.after.name)
        say(options, f"From snapshot {two.before.name} to {two.after.name} of {two.after.cluster or 'no cluster'}:")
        rows = history.diff(layout, two, by=SummaryLevel(by), **chosen)
        found: Counter[str] = Counter(history.totals(rows) if only else {})
        each = history.iterate(history.with_states(rows, only) if only else rows)
        Output(options).write(_table(SummaryLevel(by)), map(_shown, each if only else _counted(each, found)))
        known = [state for state in CHANGE_FILTERS if state != STALLED or not two.without_log_ends]
    say(options, f"Offsets: {', '.join(f'{found[state]} {state}' for state in known)}.")
    if any(found[state] for state in fail_on):
        raise click.exceptions.Exit(ExitCode.FINDINGS)


def _counted(rows: Iterable[dict[str, Any]], found: Counter[str]) -> Iterator[dict[str, Any]]:
    """Count the states of the rows while yielding them."""
    for row in rows:
        if "state" in row:
            found[row["state"]] += 1
            found[UNCHANGED_HELD] += row["state"] == SnapshotChange.UNCHANGED and row["held"]
            found[STALLED] += row[STALLED] or 0
        else:
            found.update({state: row[count_column(state)] or 0 for state in CHANGE_FILTERS})
        yield row


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: utc(round(value.timestamp() * 1000)) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def _picture(_ctx: click.Context, _param: click.Parameter, file: Path) -> Path:
    """Check the file name before Spark starts."""
    if file.suffix.lower() not in {".svg", ".png"}:
        raise click.BadParameter(f"{file} must end in .svg or .png")
    if not file.absolute().parent.is_dir():
        raise click.BadParameter(f"the folder {file.parent} does not exist")
    return file


def _time(_ctx: click.Context, _param: click.Parameter, ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)


@snapshots.command()
@click.argument("destination", metavar="DEST", type=FolderUri())
@group_argument
@click.argument("file", metavar="OUT.svg|OUT.png", type=FilePath(path_type=Path), callback=_picture)
@topics_option
@click.option(
    "--by",
    type=click.Choice(["topic", "partition"]),
    help="Draw one line for each topic, or for each partition. By default for each partition, if these are few or "
    "belong to one topic.",
)
@click.option(
    "--since",
    type=Time(),
    callback=_time,
    help="Only snapshots at or after this time, such as 2026-01-31T12:00, yesterday, or 2h (ago).",
)
@click.option("--until", type=Time(), callback=_time, help="Only snapshots until this time.")
@cluster_option
@spark_options
@click.pass_obj
def plot(
    options: Options,
    /,
    destination: str,
    group: str,
    file: Path,
    by: str | None,
    topics: ChosenPartitions | None,
    **chosen: Any,
) -> None:
    """Plot a group's offsets, messages read per second, and commits per second; and its lag, if it is known.

    The command reads all snapshots in DEST. The picture suits light and dark backgrounds. If there are many lines, the
    plot shows only unusual ones: offsets that went back, and offsets that moved unlike the rest. A shaded area shows
    the range of all other lines. A gap means that the value is unknown: an offset is missing, or went back. A rate is
    computed from two snapshots and the times of their reads. `snapshots diff` shows rates between commits. Snapshots
    that were taken with -b have the lag.

    \b
    Example:
      zkgroups snapshots plot /data/groups billing billing.svg
      zkgroups snapshots plot /data/groups billing night.png --since 2026-01-31T22:00:00 --topic orders --by partition
    """
    with installed("plot"):
        from zkgroups.snapshots.plot import check_installed, draw
        from zkgroups.snapshots.timeline import LineKind, timeline
    check_installed()
    with opened_snapshots(options, EngineOptions.of(chosen), destination) as layout:
        line = None if by is None else LineKind(by)
        found = timeline(layout, group, by=line, topics=topics, address=cluster_address(options), **chosen)
    try:
        file.write_bytes(draw(found, file.suffix.lower().removeprefix(".")))
    except OSError as error:
        raise usage_error(f"{file}: {error.strerror}") from error
    first, last = (utc(int(time * 1000)) for time in (found.times[0], found.times[-1]))
    count = len(found.lines)
    lines = f"{count} {found.by}{'' if count == 1 else 's'}"
    say(options, f"{file} shows {lines} of group {group!r} from {first} to {last}.")
