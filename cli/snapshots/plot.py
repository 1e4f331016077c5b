"""`zkgroups snapshots plot`: draw the progress of a group."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from zkgroups.core.times import from_ms, utc

from ..offsets.from_parquet import cluster_address, opened_snapshots
from ..shared.arguments import ChosenPartitions, group_argument, topics_option
from ..shared.command_classes import Command
from ..shared.engine_options import EngineOptions, arrow_installed, cluster_option, spark_options
from ..shared.input_files import FilePath, FolderUri
from ..shared.messages import say
from ..shared.options import Options
from ..shared.parameter_types import Time


def _picture(_ctx: click.Context, _param: click.Parameter, file: Path) -> Path:
    """Check the file name before Spark starts."""
    if file.suffix.lower() not in {".svg", ".png"}:
        raise click.BadParameter(f"{file} must end in .svg or .png")
    if not file.absolute().parent.is_dir():
        raise click.BadParameter(f"the folder {file.parent} does not exist")
    return file


def _time(_ctx: click.Context, _param: click.Parameter, ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)


@click.command(cls=Command)
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
    with arrow_installed("plot"):
        from zkgroups.snapshots.plot import check_installed, draw
        from zkgroups.snapshots.timeline import LineKind, timeline
    check_installed()
    with opened_snapshots(options, EngineOptions.of(chosen), destination) as layout:
        line = None if by is None else LineKind(by)
        found = timeline(layout, group, by=line, topics=topics, address=cluster_address(options), **chosen)
    try:
        file.write_bytes(draw(found, file.suffix.lower().removeprefix(".")))
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}", click.get_current_context()) from error
    first, last = (utc(int(time * 1000)) for time in (found.times[0], found.times[-1]))
    count = len(found.lines)
    lines = f"{count} {found.by}{'' if count == 1 else 's'}"
    say(options, f"{file} shows {lines} of group {group!r} from {first} to {last}.")
