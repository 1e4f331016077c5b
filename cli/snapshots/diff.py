"""`zkgroups snapshots diff`: compare the offsets of two snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

import click

from zkgroups.core.offsets.changes import (
    CHANGE_FILTERS,
    STALLED,
    UNCHANGED_HELD,
    SnapshotChange,
    SummaryLevel,
    count_column,
)
from zkgroups.core.times import utc
from zkgroups.exceptions import RefusedError

from ..offsets.from_parquet import cluster_address, opened_snapshots, warn_if_in_future
from ..shared.command_classes import Command
from ..shared.engine_options import (
    EngineOptions,
    arrow_installed,
    cluster_option,
    engine_option,
    selection_options,
    spark_options,
)
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FolderUri
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Table
from ..shared.parameter_types import SnapshotChoice

_CLUSTER: Final = Column("CLUSTER", "cluster", wide=True)
_NAMES: Final = (
    Column("GROUP", "group"),
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
)
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


@click.command(cls=Command)
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
    with arrow_installed("snapshots"):
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
