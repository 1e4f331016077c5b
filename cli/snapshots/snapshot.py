"""`zkgroups snapshot`: every offset, owner and member of one moment, as Parquet."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..shared.connect import for_workers
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FilePath, Place
from ..shared.messages import complain, say
from ..shared.options import Command, Options
from ..shared.output import Column, Output, Table
from ..shared.spark_options import SparkOptions, spark_installed, steps_shown, writing_options

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
@click.argument("destination", metavar="DEST", type=Place())
@click.option("--groups", metavar="REGEX", help="Only groups whose whole name matches.")
@click.option("--topics", metavar="REGEX", help="Only topics whose whole name matches.")
@click.option("--cluster", metavar="NAME", help="What the column `cluster` says; the address of ZooKeeper by default.")
@click.option("--parallelism", type=click.IntRange(1, 1024), help="How many tasks read; one for each core by default.")
@click.option(
    "--from-data-dir",
    "data_dir",
    metavar="DIR",
    type=FilePath(path_type=Path),
    help="Read the files of a ZooKeeper server, its dataDir, and ask no server. The snapshot is named by the time of "
    "now, however old the files are, and so is the latest in DEST.",
)
@click.option(
    "--data-log-dir",
    metavar="DIR",
    type=FilePath(path_type=Path),
    help="With --from-data-dir: where its logs are, if not there; the server's dataLogDir.",
)
@click.option("--chroot", metavar="PATH", help="With --from-data-dir: the chroot of the groups, as /kafka.")
@click.option(
    "--zxid",
    metavar="ZXID",
    callback=lambda _ctx, _param, text: _zxid(text),
    help="With --from-data-dir: as it was after that transaction, the last by default.",
)
@writing_options
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

    With --from-data-dir it comes out of the files that a ZooKeeper server has left: its newest snapshot that is whole,
    and the transactions after it, up to the last whole one. What is passed over for that is said. Where something is
    damaged or missing in between, nothing is written and the exit code is 10; --zxid asks for what was before. Where
    nothing is there to begin from, or no log that goes with it (--data-log-dir), it is 3. Of an ensemble, take the
    member with the highest zxid. What is older than the newest state is the latest in DEST all the same: `snapshots
    list` shows the zxid.

    \b
    Example:
      zkgroups -z zk1:2181/kafka snapshot /data/groups
      zkgroups -z zk1:2181/kafka snapshot hdfs:///data/groups --groups 'billing.*' --master yarn
      zkgroups -z zk1:2181/kafka snapshot /data/groups --dry-run
      zkgroups snapshot /data/groups --from-data-dir /backup/zookeeper --chroot /kafka
    """
    with spark_installed():
        from zkgroups import spark
    folders = {name: str(chosen.pop(name).absolute()) for name in ("data_dir", "data_log_dir") if chosen[name]}
    address = folders if "data_dir" in folders else {**for_workers(options), **folders}
    source = _found(options, spark.SourceOptions(**address, **chosen))
    own = SparkOptions(master, settings)
    if not dry_run:
        own.check_writes_to(destination)
    if source.files is None:
        with source.connect() as registry:
            registry.require_root()  # before Spark is started, which takes seconds
    if _show_survey(options, source) if dry_run else _take(options, source, destination, own):
        raise click.exceptions.Exit(ExitCode.PARTIAL)


def _found(options: Options, source: SourceOptions) -> SourceOptions:
    """Of files, the state that is read, once and for all; what was passed over is said."""
    if source.files is None:
        return source
    state = source.files.state(source.zxid)
    for note in state.notes:
        complain(note)
    base = state.snapshot or "the logs alone"
    say(options, f"The state is that after transaction 0x{state.zxid:x}, made from {base}.")
    return dataclasses.replace(source, zxid=state.zxid)


def _zxid(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no number of a transaction; a hexadecimal one begins with 0x") from error


def _show_survey(options: Options, source: SourceOptions) -> int:
    from zkgroups.spark import survey

    found = survey(source)
    row = {"zookeeper": source.shown_cluster, **dataclasses.asdict(found)}
    Output(options).write(_SURVEY, [row])
    return found.denied


def _take(options: Options, source: SourceOptions, destination: str, spark: SparkOptions) -> int:
    from zkgroups.spark.snapshots.snapshot import STEPS, take_snapshot

    say(options, f"Starting Spark to write a snapshot of {source.shown_cluster} to {destination}.")
    with spark.session(options) as session, steps_shown(options, session, STEPS) as told:
        taken = take_snapshot(session, destination, source, told=told)
    Output(options).write(_TAKEN, [dataclasses.asdict(taken)])
    if not taken.groups:
        complain("there are no groups in it: if they are below a chroot, name it")
    if taken.denied:
        say(options, f"{taken.denied} nodes may not be read; the rows that say so have a problem and no raw.")
    return taken.denied
