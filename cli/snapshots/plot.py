"""`zkgroups snapshots plot`: what became of a group, as a picture."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from zkgroups.core.time_formats import parse_time
from zkgroups.core.znodes.values import utc

from ..offsets.from_parquet import cluster_address
from ..shared.arguments import Partitions, group_argument, topics_option
from ..shared.input_files import FilePath, Place
from ..shared.messages import say
from ..shared.options import Command, Options
from ..shared.spark_options import SparkOptions, spark_installed, spark_options


def _picture(_ctx: click.Context, _param: click.Parameter, file: Path) -> Path:
    """What is wrong with the name is known before Spark is started."""
    if file.suffix.lower() not in {".svg", ".png"}:
        raise click.BadParameter(f"{file} must end in .svg or .png")
    if not file.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {file.parent}")
    return file


def _time(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
    return None if text is None else datetime.fromtimestamp(parse_time(text) / 1000, UTC)


@click.command(cls=Command)
@click.argument("destination", metavar="DEST", type=Place())
@group_argument
@click.argument("file", metavar="OUT.svg|OUT.png", type=FilePath(path_type=Path), callback=_picture)
@topics_option
@click.option(
    "--by",
    type=click.Choice(["topic", "partition"]),
    help="What a line is of: a partition by default, where they are few or of one topic.",
)
@click.option("--since", metavar="TIME", callback=_time, help="Only snapshots from then on: 2026-01-31T12:00:00.")
@click.option("--until", metavar="TIME", callback=_time, help="Only snapshots until then.")
@click.option("--cluster", metavar="NAME", help="Whose group, where there are several; that of -z by default.")
@spark_options
@click.pass_obj
def plot(
    options: Options,
    /,
    destination: str,
    group: str,
    file: Path,
    by: str | None,
    master: str | None,
    settings: dict[str, str],
    topics: Partitions | None,
    **chosen: Any,
) -> None:
    """Draw what became of a group: its offsets, messages read per second, and offsets committed per second.

    DEST is where snapshots are, all of which are looked into. The picture can be read on a light and on a dark ground.
    Of many lines, those are drawn that went back, or moved least like the rest; the others are a shade, from the lowest
    to the highest. A gap is what is not known: an offset that was not there, or how fast one was read that went back.
    Rates are from one snapshot to the next, by when its offsets were read; `snapshots diff` has those between commits.

    \b
    Example:
      zkgroups snapshots plot /data/groups billing billing.svg
      zkgroups snapshots plot /data/groups billing night.png --since 2026-01-31T22:00:00 --topic orders --by partition
    """
    with spark_installed():
        from zkgroups.spark.snapshots.plot import check_installed, draw
        from zkgroups.spark.snapshots.timeline import By, timeline
    check_installed()
    say(options, f"Starting Spark to read the snapshots in {destination}.")
    with SparkOptions(master, settings).session(options) as session:
        line = None if by is None else By(by)
        found = timeline(
            session, destination, group, by=line, topics=topics, address=cluster_address(options), **chosen
        )
    try:
        file.write_bytes(draw(found, file.suffix.lower().removeprefix(".")))
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}", click.get_current_context()) from error
    first, last = (utc(int(time * 1000)) for time in (found.times[0], found.times[-1]))
    count = len(found.lines)
    lines = f"{count} {found.by}{'' if count == 1 else 's'}"
    say(options, f"{file} shows {lines} of group {group!r} from {first} to {last}.")
