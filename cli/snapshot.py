"""`zkgroups snapshot`: every offset, owner and member of one moment, as Parquet."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import click

from .codes import ExitCode
from .connect import for_workers
from .options import Command, Options
from .output import Column, Output, Table
from .spark import SparkOptions, spark_installed, spark_options, steps_shown
from .talk import say

if TYPE_CHECKING:
    from zkgroups.spark import SourceOptions

_COUNTS: Final = (
    Column("GROUPS", "groups", right=True),
    Column("OFFSETS", "offsets", right=True),
    Column("OWNERS", "owners", right=True),
    Column("MEMBERS", "members", right=True),
)
_TAKEN: Final = Table(
    "snapshots",
    key="name",
    columns=(
        Column("SNAPSHOT", "name"),
        *_COUNTS,
        Column("PROBLEMS", "problems", right=True),
        Column("DENIED", "denied", right=True),
        Column("SECONDS", "seconds", right=True, show="{:.1f}".format),
        Column("DESTINATION", "destination"),
    ),
)
_SURVEY: Final = Table(
    "surveys",
    key="zookeeper",
    columns=(
        Column("ZOOKEEPER", "zookeeper"),
        *_COUNTS[:1],
        Column("TOPICS", "topics", right=True),
        *_COUNTS[1:],
        Column("DENIED", "denied", right=True),
    ),
)


@click.command(cls=Command)
@click.argument("destination", metavar="DEST")
@click.option("--groups", metavar="REGEX", help="Only groups whose whole name matches.")
@click.option("--topics", metavar="REGEX", help="Only topics whose whole name matches.")
@click.option("--cluster", metavar="NAME", help="What the column `cluster` says; the address of ZooKeeper by default.")
@click.option("--parallelism", type=click.IntRange(1, 1024), help="How many tasks read; one for each core by default.")
@spark_options
@click.option("--dry-run", is_flag=True, help="Only say what would be read, and how much. Spark is not started.")
@click.pass_obj
def snapshot(
    options: Options, /, destination: str, master: str | None, settings: dict[str, str], dry_run: bool, **chosen: Any
) -> None:
    """Write down every offset, owner and member as Parquet, as they are read, within seconds of each other.

    DEST is a folder, or whatever else Spark can write to. Each run adds one snapshot, in
    DEST/table=offsets/snapshot=TIME beside table=owners and table=members. It is seen whole or not at all: it is there
    when its _SUCCESS is. A node that cannot be read has a row that says so; where one may not be read, the exit
    code is 9.

    \b
    Example:
      zkgroups -z zk1:2181/kafka snapshot /data/groups
      zkgroups -z zk1:2181/kafka snapshot hdfs:///data/groups --groups 'billing.*' --master yarn
      zkgroups -z zk1:2181/kafka snapshot /data/groups --dry-run
    """
    with spark_installed():
        from zkgroups import spark
    source = spark.SourceOptions(**for_workers(options), **chosen)
    own = SparkOptions(master, settings)
    if _show_survey(options, source) if dry_run else _take(options, source, destination, own):
        raise click.exceptions.Exit(ExitCode.PARTIAL)


def _show_survey(options: Options, source: SourceOptions) -> int:
    from zkgroups.spark import survey

    found = survey(source)
    row = {"zookeeper": source.shown_cluster, **dataclasses.asdict(found)}
    Output(options).write(_SURVEY, [row])
    return found.denied


def _take(options: Options, source: SourceOptions, destination: str, spark: SparkOptions) -> int:
    from zkgroups.spark.snapshot import STEPS, snapshot

    with source.connect():
        pass  # what is wrong there is known before Spark is started, which takes seconds
    say(options, f"Starting Spark to write a snapshot of {source.shown_cluster} to {destination}.")
    with spark.session(options) as session, steps_shown(options, session, STEPS) as told:
        taken = snapshot(session, destination, source, told=told)
    Output(options).write(_TAKEN, [dataclasses.asdict(taken)])
    if taken.denied:
        say(options, f"{taken.denied} nodes may not be read; the rows that say so have a problem and no raw.")
    return taken.denied
