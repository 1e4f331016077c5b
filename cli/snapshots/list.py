"""`zkgroups snapshots list`: the snapshots of a destination, with their counts."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import click

from zkgroups.core.times import utc
from zkgroups.snapshots.listing import ListedSnapshot, list_local_snapshots

from ..shared.command_classes import Command
from ..shared.engine_options import EngineKind, EngineOptions, arrow_installed, engine_option
from ..shared.input_files import FolderUri
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Table
from ..shared.spark_options import SparkOptions, spark_installed, spark_options

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
@engine_option(
    EngineKind.AUTO,
    "Where to do the work. auto uses Spark only for another file system, and with --master or --conf.",
)
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
    if engine.is_on_this_machine(destination):
        with arrow_installed("snapshots"):
            found = list_local_snapshots(destination)
    else:
        found = _listed_by_spark(options, destination, engine.spark)
    if not found:
        say(options, f"No snapshots in {destination}. To write one: zkgroups snapshot {destination}")
    times = {each.name: utc(int(each.time.timestamp() * 1000)) for each in found}
    Output(options).write(_SNAPSHOTS, [dataclasses.asdict(each) | {"time": times[each.name]} for each in found])


def _listed_by_spark(options: Options, destination: str, spark: SparkOptions) -> list[ListedSnapshot]:
    with spark_installed():
        from zkgroups.spark.snapshots.listing import listing
    say(options, f"Starting Spark to list the snapshots in {destination}.")
    with spark.session(options) as session:
        return listing(session, destination)
