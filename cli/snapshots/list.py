"""`zkgroups snapshots list`: which snapshots there are, and how much is in each."""

from __future__ import annotations

import dataclasses
from typing import Final

import click

from zkgroups.core.znodes.values import utc

from ..shared.input_files import Place
from ..shared.messages import say
from ..shared.options import Command, Options
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
        Column("BYTES", "size", right=True),
        Column("ZXID", "zxid", right=True, show=hex),
    ),
)


@click.command("list", cls=Command)
@click.argument("destination", metavar="DEST", type=Place())
@spark_options
@click.pass_obj
def list_(options: Options, /, destination: str, master: str | None, settings: dict[str, str]) -> None:
    """List the snapshots in DEST, oldest first, with what is in each.

    ZXID is of those that came out of ZooKeeper's own files, which are as old as that transaction. All of it is what
    they say of themselves; `snapshots verify` looks whether it is so. Of those that an earlier version
    has written the rows are counted, and it is not known how many groups there were.

    \b
    Example:
      zkgroups snapshots list /data/groups
      zkgroups snapshots list /data/groups -o json
    """
    with spark_installed():
        from zkgroups.spark.snapshots.listing import listing
    say(options, f"Starting Spark to list the snapshots in {destination}.")
    with SparkOptions(master, settings).session(options) as session:
        found = listing(session, destination)
    if not found:
        say(options, f"There are no snapshots in {destination}.")
    times = {each.name: utc(int(each.time.timestamp() * 1000)) for each in found}
    Output(options).write(_SNAPSHOTS, [dataclasses.asdict(each) | {"time": times[each.name]} for each in found])
