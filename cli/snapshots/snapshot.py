"""`zkgroups snapshot`: write all offsets, owners and members as Parquet."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups.core.layouts.layout import Layout

from ..shared.connect import LAG_UNKNOWN, brokers_for_workers, for_workers
from ..shared.engine_options import (
    EngineOptions,
    engine_option,
    installed,
    layout_options,
    steps_shown,
    writing_options,
)
from ..shared.global_options import Command
from ..shared.messages import complain, progress, say
from ..shared.options import ExitCode, Options
from ..shared.output import Column, Output, Table
from ..shared.parameter_types import FilePath, FolderUri

if TYPE_CHECKING:
    from zkgroups.snapshots.snapshot import Snapshot
    from zkgroups.tables.source_options import SourceOptions

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
        Column("FORBIDDEN", "forbidden", right=True),
        Column("LAG", "lag", right=True),
        Column("UNKNOWN-LAGS", "unknown_lags", right=True, wide=True),
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
        Column("FORBIDDEN", "forbidden", right=True),
    ),
)


@click.command(cls=Command)
@click.argument("destination", metavar="DEST", type=FolderUri())
@click.option("--groups", metavar="REGEX", help="Only groups whose whole name matches.")
@click.option("--topics", metavar="REGEX", help="Only topics whose whole name matches.")
@click.option(
    "--cluster",
    metavar="NAME",
    help="The value of the column `cluster`; the address of ZooKeeper by default. A --layout is added to it.",
)
@click.option(
    "--parallelism", type=click.IntRange(1, 1024), help="The number of Spark tasks that read; one per core by default."
)
@click.option(
    "--from-data-dir",
    "data_dir",
    metavar="DIR",
    type=FilePath(path_type=Path),
    help="Read the files in a ZooKeeper server's dataDir instead of connecting to one. The snapshot is named after the "
    "current time, even if the files are old.",
)
@click.option(
    "--data-log-dir",
    metavar="DIR",
    type=FilePath(path_type=Path),
    help="With --from-data-dir: the server's dataLogDir, if its logs are elsewhere.",
)
@click.option("--chroot", metavar="PATH", help="With --from-data-dir: the chroot of the groups, e.g. /kafka.")
@click.option(
    "--zxid",
    metavar="ZXID",
    callback=lambda _ctx, _param, text: _zxid(text),
    help="With --from-data-dir: read the state after this transaction; the last by default.",
)
@layout_options
@engine_option()
@writing_options
@click.option("--dry-run", is_flag=True, help="Only count what would be read. Does not start Spark.")
@click.pass_obj
def snapshot(options: Options, /, destination: str, dry_run: bool, layout: Layout, **chosen: Any) -> None:
    """Write all offsets, owners and members as Parquet, read within seconds of each other.

    DEST is a folder or any other location that Spark can write to. Each run adds one snapshot as
    DEST/table=offsets/snapshot=TIME, beside table=owners and table=members. A snapshot is complete once its _SUCCESS
    exists; readers never see an incomplete one. A node that cannot be read has a row with the problem. If any node is
    forbidden, the exit code is 9.

    With -b, each offset has its log start and log end, which are read after the offset. So `snapshots list`, `diff` and
    `plot` show the lag. If no broker answers, the snapshot is taken without log ends, and the exit code is 9.

    With --layout, the command reads the offsets of another system in ZooKeeper, as the next message to read. Most of
    its groups have no owners and members. Snapshots of several layouts can share one DEST, as if of several clusters.

    If DEST is on this machine, the command starts no Spark: cron can take a snapshot every minute. Both engines write
    the same files, and can share one DEST.

    With --from-data-dir, the command reads the files of a ZooKeeper server: its latest intact snapshot, and the
    transactions after it. It reports the files that it skips. If the logs are damaged or incomplete, it writes nothing
    and exits with code 10; use --zxid to read an earlier state. If the directory has no snapshot to start from, or no
    log after it, the exit code is 3: use --data-log-dir if the logs are elsewhere. In an ensemble, read the files of
    the server with the highest zxid. The new snapshot counts as the latest in DEST, even if other snapshots have a
    later state: `snapshots list` shows the zxid of each.

    \b
    Example:
      zkgroups -z zk1:2181/kafka snapshot /data/groups
      zkgroups -z zk1:2181/kafka snapshot /data/groups -b kafka1:9092
      zkgroups -z zk1:2181/kafka snapshot hdfs:///data/groups --groups 'billing.*' --master yarn
      zkgroups -z zk1:2181/kafka snapshot /data/groups --dry-run
      zkgroups -z zk1:2181 snapshot /data/groups --layout storm:/kafkastorm
      zkgroups snapshot /data/groups --from-data-dir /backup/zookeeper --chroot /kafka
    """
    engine = EngineOptions.of(chosen)
    local = engine.is_local(destination, needs_spark="--parallelism" if chosen["parallelism"] else None)
    from zkgroups.tables.source_options import SourceOptions

    folders = {name: str(chosen.pop(name).absolute()) for name in ("data_dir", "data_log_dir") if chosen[name]}
    servers = {**for_workers(options), **brokers_for_workers(options)} if "data_dir" not in folders else {}
    address = servers | folders
    source = _with_fixed_state(options, SourceOptions(**address, **chosen, layout=layout.text))
    if dry_run:
        with installed("snapshots"):
            from zkgroups.snapshots.snapshot import survey
        _check_root(source)
        found = survey(source)
        row = {"zookeeper": source.shown_cluster, **dataclasses.asdict(found)}
        Output(options).write(_SURVEY, [row])
        is_partial = found.forbidden > 0
    else:
        with installed("snapshots" if local else "spark"):
            from zkgroups.snapshots.snapshot import STEPS
        if not local:
            engine.spark.check_writes_to(destination)
        _check_root(source)
        what_for = f"write a snapshot of {source.shown_cluster} to {destination}"
        with engine.started(options, what_for, local=local) as session:
            if session is None:
                from zkgroups.snapshots.local_snapshot import take_snapshot as take_here

                with progress(options, STEPS, lambda: 0.0) as told:
                    taken = take_here(destination, source, on_progress=told)
            else:
                from zkgroups.spark import take_snapshot

                with steps_shown(options, session, STEPS) as told:
                    taken = take_snapshot(session, destination, source, on_progress=told)
        is_partial = _show(options, source, taken)
    if is_partial:
        raise click.exceptions.Exit(ExitCode.PARTIAL)


def _with_fixed_state(options: Options, source: SourceOptions) -> SourceOptions:
    """With a data directory, fix the zxid to read, and report skipped files."""
    if source.files is None:
        return source
    state = source.files.state(source.zxid)
    for note in state.notes:
        complain(note)
    base = state.snapshot or "the logs only"
    say(options, f"Reading the state after transaction 0x{state.zxid:x}, from {base}.")
    return dataclasses.replace(source, zxid=state.zxid)


def _zxid(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is not a transaction number: use decimal, or hexadecimal with 0x"
        ) from error


def _check_root(source: SourceOptions) -> None:
    """Report a wrong address before Spark starts, which takes seconds."""
    if source.files is None:
        with source.connect() as registry:
            registry.require_root(source.layout)


def _show(options: Options, source: SourceOptions, taken: Snapshot) -> bool:
    """Print the counts and warnings. Return whether nodes are forbidden, or log ends are missing."""
    Output(options).write(_TAKEN, [dataclasses.asdict(taken)])
    if not taken.groups:
        complain("the snapshot has no groups: if they are below a chroot, add it to the address")
    if taken.restored_since:
        complain(
            f"{source.shown_cluster} was restored from a backup, wiped or replaced since snapshot "
            f"{taken.restored_since}: offsets may have gone back; compare with `zkgroups snapshots diff`"
        )
    if taken.forbidden:
        nodes = "1 node is" if taken.forbidden == 1 else f"{taken.forbidden} nodes are"
        say(options, f"{nodes} forbidden: the column `problem` names the path. Log in as a user who may read it.")
    if taken.unknown_lags:
        offsets = "1 offset" if taken.unknown_lags == 1 else f"{taken.unknown_lags} offsets"
        say(
            options,
            f"The lag of {offsets} is unknown: the partition is not on these brokers or has no leader, or the log ends "
            "before the offset.",
        )
    if taken.log_ends_problem:
        complain(f"{LAG_UNKNOWN}: {taken.log_ends_problem}")
    return taken.forbidden > 0 or taken.log_ends_problem is not None
