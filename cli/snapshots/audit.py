"""`zkgroups audit`: record every commit as Parquet."""

from __future__ import annotations

import dataclasses
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups.core.times import utc

from ..shared.command_classes import Command
from ..shared.connect import for_workers
from ..shared.durations import seconds_option
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FilePath, FolderUri
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Table
from ..shared.progress import ShowText, status_line
from ..shared.signals import SignalEvent, raise_recorded, recorded_signals
from ..shared.spark_options import SparkOptions, spark_installed, writing_options

if TYPE_CHECKING:
    from zkgroups.spark import AuditStep, HistoryOptions, SourceOptions

_AUDITED: Final = Table(
    "audits",
    key="destination",
    columns=(
        Column("BATCHES", "batches", right=True),
        Column("COMMITS", "commits", right=True),
        Column("PROBLEMS", "problems", right=True),
        Column("FORBIDDEN", "forbidden", right=True),
        Column("DESTINATION", "destination"),
    ),
)
_COMMITS: Final = Table(
    "commits",
    key="group",
    columns=(
        Column("COMMITTED", "committed_at"),
        Column("GROUP", "group"),
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
        Column("BEFORE", "before", right=True),
        Column("OFFSET", "offset", right=True),
        Column("ZXID", "zxid", right=True, show=hex),
        Column("COUNT", "commit_count", right=True, wide=True),
        Column("READ", "read_at", wide=True),
        Column("BATCH", "batch", right=True, wide=True),
        Column("PROBLEM", "problem", wide=True),
    ),
)


@click.command(cls=Command)
@click.argument("destination", metavar="DEST", type=FolderUri())
@click.option("--groups", metavar="REGEX", help="Only groups whose whole name matches.")
@click.option("--topics", metavar="REGEX", help="Only topics whose whole name matches.")
@seconds_option("--every", default=10.0, help="The interval between two reads of all offsets.")
@click.option("--once", is_flag=True, help="Record the commits since the last run, then exit. For cron.")
@click.option(
    "--start-over",
    is_flag=True,
    help="Continue although ZooKeeper was replaced or wiped: record all of its offsets. --show still prints the "
    "earlier commits, but `offsets reset --from-audit` does not use them.",
)
@click.option("--show", is_flag=True, help="Print the recorded commits, and exit.")
@click.option(
    "--from-data-dir",
    "data_dir",
    metavar="DIR",
    type=FilePath(path_type=Path),
    help="With --show: also print the commits in the logs in a ZooKeeper server's dataDir.",
)
@click.option(
    "--data-log-dir",
    metavar="DIR",
    type=FilePath(path_type=Path),
    help="With --from-data-dir: the server's dataLogDir, if its logs are elsewhere.",
)
@click.option("--chroot", metavar="PATH", help="With --from-data-dir: the chroot of the groups, e.g. /kafka.")
@click.option(
    "--parallelism", type=click.IntRange(1, 1024), help="The number of tasks that read; one per core by default."
)
@writing_options
@click.pass_obj
def audit(
    options: Options,
    /,
    destination: str,
    every: float,
    once: bool,
    show: bool,
    master: str | None,
    settings: dict[str, str],
    data_dir: Path | None,
    data_log_dir: Path | None,
    chroot: str | None,
    **chosen: Any,
) -> None:
    """Record every commit as Parquet: the previous and the new offset, the time and the transaction.

    The command reads all offsets every ten seconds, and records changed ones. The first run records all of them. If a
    partition has several commits within ten seconds, only the last is recorded. COUNT in `--show -o wide` is the number
    of commits since the node was created, so it shows how many were missed. Deletions are not recorded.

    DEST is a folder or any other location that Spark can write to. It contains the audit of one ZooKeeper cluster. Give
    the same --groups and --topics in each run. After any interruption, the next run continues where the last one
    stopped. Without a connection to ZooKeeper it retries, unless --once is given.

    If nodes are forbidden, the command reports how many, and --once exits with code 9. The last commit of such a node
    is recorded once the node can be read. If ZooKeeper was replaced or wiped, the command refuses to continue. After
    ZooKeeper was restored from its own backup, use a new DEST: the command may not detect the restore, and would then
    miss commits.

    --show --from-data-dir also prints all commits in the transaction logs of the ZooKeeper server, each commit once. So
    it prints the commits that the audit has missed, and those that are older than the logs. READ and BATCH are empty
    for a commit from the logs.

    \b
    Example:
      zkgroups -z zk1:2181/kafka audit /data/audit
      zkgroups -z zk1:2181/kafka audit /data/audit --once
      zkgroups audit /data/audit --show --groups billing -o csv
      zkgroups audit /data/audit --show --from-data-dir /var/lib/zookeeper --chroot /kafka
    """
    with spark_installed():
        from zkgroups import spark
    own = SparkOptions(master, settings)
    if show:
        logs = None if data_dir is None else _logs(data_dir, data_log_dir, chroot)
        _show(options, destination, own, groups=chosen["groups"], topics=chosen["topics"], logs=logs)
        return
    if data_dir is not None:
        raise click.UsageError("--from-data-dir needs --show", click.get_current_context())
    own.check_writes_to(destination)
    source = spark.SourceOptions(**for_workers(options), **chosen)
    with source.connect() as registry:
        registry.require_root()  # fails fast: starting Spark takes seconds
    say(options, f"Starting Spark to record the commits of {source.shown_cluster} in {destination}.")
    _audit(options, destination, source, own, every=every, once=once)


def _audit(
    options: Options, destination: str, source: SourceOptions, spark: SparkOptions, *, every: float, once: bool
) -> None:
    from zkgroups.spark import run_audit

    with spark.session(options) as session, recorded_signals() as recorded, status_line(options) as line:
        stop = SignalEvent(recorded)
        done = run_audit(
            session,
            destination,
            source,
            every=every,
            once=once,
            on_progress=_ProgressReporter(options, line),
            stop=stop,
        )
    Output(options).write(_AUDITED, [dataclasses.asdict(done)])
    raise_recorded(recorded)
    if done.forbidden:
        raise click.exceptions.Exit(ExitCode.PARTIAL)


class _ProgressReporter:
    """Shows each batch in a status line, and prints errors, malformed offsets and forbidden nodes."""

    def __init__(self, options: Options, line: ShowText) -> None:
        self._options = options
        self._line = line
        self._trouble = ""
        self._commits = 0
        self._forbidden = 0

    def __call__(self, step: AuditStep) -> None:
        if step.trouble != self._trouble:
            self._trouble = step.trouble
            self._say(f"error: {step.trouble}; retrying" if step.trouble else "recovered")
        self._commits += step.commits
        if step.problems:
            self._say(
                f"batch {step.batch}: {step.problems} of {step.commits} commits are malformed, see the column PROBLEM"
            )
        if not step.trouble and step.forbidden != self._forbidden:
            self._forbidden = step.forbidden
            self._say(f"batch {step.batch}: {step.forbidden or 'no more'} forbidden nodes")
        now = f"error: {step.trouble}" if step.trouble else f"batch {step.batch}: {step.commits} commits"
        self._line(f"{now}, {self._commits} since the start")

    def _say(self, text: str) -> None:
        say(self._options, f"{utc(time.time_ns() // 1_000_000)} {text}")


def _logs(data_dir: Path, data_log_dir: Path | None, chroot: str | None) -> HistoryOptions:
    from zkgroups.spark import HistoryOptions, HistoryTable

    log_dir = None if data_log_dir is None else str(data_log_dir.absolute())
    return HistoryOptions(
        table=HistoryTable.COMMITS, data_dir=str(data_dir.absolute()), data_log_dir=log_dir, chroot=chroot
    )


def _show(options: Options, destination: str, spark: SparkOptions, **chosen: Any) -> None:
    """Print the recorded commits, oldest first."""
    from zkgroups.spark.audit.ledger import find_commits

    with spark.session(options) as session:
        rows = find_commits(session, destination, **chosen)
        Output(options).write(_COMMITS, map(_shown, rows))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: utc(round(value.timestamp() * 1000)) if isinstance(value, datetime) else value
        for name, value in row.items()
    }
