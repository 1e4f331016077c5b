"""`zkgroups audit`: every commit, as it is found, as Parquet."""

from __future__ import annotations

import dataclasses
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups.core.znodes.values import utc

from ..shared.connect import for_workers
from ..shared.durations import seconds_option
from ..shared.exit_codes import ExitCode
from ..shared.input_files import Place
from ..shared.messages import say
from ..shared.options import Command, Options
from ..shared.output import Column, Output, Table
from ..shared.progress import Told, status_line
from ..shared.signals import NotedStop, noted_signals, raise_noted
from ..shared.spark_options import SparkOptions, spark_installed, writing_options

if TYPE_CHECKING:
    from zkgroups.spark import AuditStep, SourceOptions

_AUDITED: Final = Table(
    "audits",
    key="destination",
    columns=(
        Column("BATCHES", "batches", right=True),
        Column("COMMITS", "commits", right=True),
        Column("PROBLEMS", "problems", right=True),
        Column("DENIED", "denied", right=True),
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
@click.argument("destination", metavar="DEST", type=Place())
@click.option("--groups", metavar="REGEX", help="Only groups whose whole name matches.")
@click.option("--topics", metavar="REGEX", help="Only topics whose whole name matches.")
@seconds_option("--every", default=10.0, help="From one look at all offsets to the next.")
@click.option("--once", is_flag=True, help="Look once and end, for cron: what was committed since the last time.")
@click.option(
    "--begin-anew",
    is_flag=True,
    help="Go on where ZooKeeper is another, or was wiped; what was found before is then only shown.",
)
@click.option("--show", is_flag=True, help="Print the commits that are there, and do nothing else.")
@click.option("--parallelism", type=click.IntRange(1, 1024), help="How many tasks read; one for each core by default.")
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
    **chosen: Any,
) -> None:
    """Write down every commit as Parquet, as it is found: what the offset was before, what it is, when and by which
    transaction it was written.

    Every ten seconds all offsets are read at once, and those that have changed are added. The first time all of them
    are. So the last commit of each partition is always found, and of several within that time the last. COUNT in
    `-o wide` is how many there have been since the node was made: from one row of a partition to the next it tells how
    many there were. What is deleted is not noted.

    DEST is a folder, or whatever else Spark can write to, and is the audit of one ZooKeeper, and of the same groups and
    topics each time. It is ended by Ctrl-C, or in whatever way, and goes on where it was when it is begun again. While
    there is no connection to ZooKeeper it waits for one; --once does not.

    Where nodes may not be read, it says how many, and --once ends with exit code 9. The last commit of such a node is
    found once it may be read. A ZooKeeper that is another, or was wiped, is refused. But one that was put back from a
    backup of itself and has done as many transactions since cannot be told from the one that was followed: what was
    committed there meanwhile is missed until the next commit. After a backup was put back, begin with a new DEST.

    \b
    Example:
      zkgroups -z zk1:2181/kafka audit /data/audit
      zkgroups -z zk1:2181/kafka audit /data/audit --once
      zkgroups audit /data/audit --show --groups billing -o csv
    """
    with spark_installed():
        from zkgroups import spark
    own = SparkOptions(master, settings)
    if show:
        _show(options, destination, own, chosen["groups"], chosen["topics"])
        return
    own.check_writes_to(destination)
    source = spark.SourceOptions(**for_workers(options), **chosen)
    with source.connect() as registry:
        registry.require_root()  # before Spark is started, which takes seconds
    say(options, f"Starting Spark to write the commits of {source.shown_cluster} to {destination}.")
    _audit(options, destination, source, own, every=every, once=once)


def _audit(
    options: Options, destination: str, source: SourceOptions, spark: SparkOptions, *, every: float, once: bool
) -> None:
    from zkgroups.spark import run_audit

    with spark.session(options) as session, noted_signals() as noted, status_line(options) as line:
        stop = NotedStop(noted)
        done = run_audit(session, destination, source, every=every, once=once, told=_Story(options, line), stop=stop)
    Output(options).write(_AUDITED, [dataclasses.asdict(done)])
    raise_noted(noted)
    if done.denied:
        raise click.exceptions.Exit(ExitCode.PARTIAL)


class _Story:
    """Tells of each batch: on a terminal in one line, and elsewhere only of trouble and of what is no offset."""

    def __init__(self, options: Options, line: Told) -> None:
        self._options = options
        self._line = line
        self._trouble = ""
        self._commits = 0
        self._denied = 0

    def __call__(self, step: AuditStep) -> None:
        if step.trouble != self._trouble:
            self._trouble = step.trouble
            self._say(f"trouble: {step.trouble}" if step.trouble else "all is well again")
        self._commits += step.commits
        if step.problems:
            self._say(
                f"batch {step.batch}: {step.problems} of {step.commits} commits are no offsets, as `problem` says"
            )
        if not step.trouble and step.denied != self._denied:
            self._denied = step.denied
            self._say(f"batch {step.batch}: {step.denied or 'no more'} nodes may not be read")
        now = f"trouble: {step.trouble}" if step.trouble else f"batch {step.batch}: {step.commits} commits"
        self._line(f"{now}, {self._commits} since it was begun")

    def _say(self, text: str) -> None:
        say(self._options, f"{utc(time.time_ns() // 1_000_000)} {text}")


def _show(options: Options, destination: str, spark: SparkOptions, groups: str | None, topics: str | None) -> None:
    """Print what is there, oldest first."""
    from zkgroups.spark.audit.ledger import chosen_commits

    with spark.session(options) as session:
        rows = chosen_commits(session, destination, groups=groups, topics=topics)
        Output(options).write(_COMMITS, map(_shown, rows))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: utc(round(value.timestamp() * 1000)) if isinstance(value, datetime) else value
        for name, value in row.items()
    }
