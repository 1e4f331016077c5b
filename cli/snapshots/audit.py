"""`zkgroups audit`: record every commit as Parquet."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.layouts.layout import Layout
from zkgroups.core.offsets.lag import lag
from zkgroups.core.times import utc
from zkgroups.exceptions import ZkgroupsException

from ..shared.connect import LAG_UNKNOWN, brokers_for_workers, for_workers
from ..shared.engine_options import (
    AUTO_ENGINE,
    EngineOptions,
    engine_option,
    installed,
    layout_options,
    writing_options,
)
from ..shared.global_options import Command
from ..shared.messages import ShowText, say, status_line
from ..shared.options import ExitCode, Options
from ..shared.output import GROUP_AT, Column, Output, Table
from ..shared.parameter_types import Duration, FilePath, FolderUri
from ..shared.signals import SignalEvent, raise_recorded, recorded_signals

if TYPE_CHECKING:
    from zkgroups.audit.audit import AuditResult, AuditStep
    from zkgroups.spark import HistoryOptions
    from zkgroups.tables.source_options import SourceOptions

_FEW_COMMITS: Final = 200_000
"""Up to this many commits, `--show` does not start Spark."""

_NEEDED: Final = {"data_dir": "show", "data_log_dir": "data_dir", "chroot": "data_dir"}
"""Parameters that do nothing without another one."""
_ONLY_RECORDING: Final = ("every", "once", "start_over", "parallelism")
"""Parameters that do nothing with --show."""

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
        *GROUP_AT,
        Column("BEFORE", "before", right=True),
        Column("OFFSET", "offset", right=True),
        Column("LAG", "lag", right=True),
        Column("ZXID", "zxid", right=True, show=hex),
        Column("COUNT", "commit_count", right=True, wide=True),
        Column("READ", "read_at", wide=True),
        Column("BATCH", "batch", right=True, wide=True),
        Column("LAYOUT", "layout", wide=True),
        Column("LOG-START", "log_start", right=True, wide=True),
        Column("LOG-END", "log_end", right=True, wide=True),
        Column("PROBLEM", "problem", wide=True),
    ),
)


@click.command(cls=Command)
@click.argument("destination", metavar="DEST", type=FolderUri())
@click.option("--groups", metavar="REGEX", help="Only groups whose whole name matches.")
@click.option("--topics", metavar="REGEX", help="Only topics whose whole name matches.")
@click.option(
    "--every",
    type=Duration(),
    default="10s",
    show_default=True,
    help="The interval between two reads of all offsets.",
)
@click.option("--once", is_flag=True, help="Record the commits since the last run, then exit. For cron.")
@click.option(
    "--start-over",
    is_flag=True,
    help="Continue although ZooKeeper was replaced, wiped or restored: compare all of its offsets with the audit. "
    "After a replacement, --show still prints the earlier commits, but `offsets reset --from-audit` does not use them.",
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
    "--parallelism", type=click.IntRange(1, 1024), help="The number of Spark tasks that read; one per core by default."
)
@layout_options
@engine_option(f"{AUTO_ENGINE} --show also uses Spark for more than {_FEW_COMMITS:,} commits.")
@writing_options
@click.pass_obj
def audit(
    options: Options,
    /,
    destination: str,
    every: float,
    once: bool,
    show: bool,
    layout: Layout,
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
    the same --groups, --topics and --layout in each run. With --layout, it records the offsets of another system in
    ZooKeeper. After any interruption, the next run continues where the last one stopped. Without a connection to
    ZooKeeper it retries, unless --once is given.

    With -b, each commit has the log start and log end of its partition, which are read after the offset. --show then
    shows the lag that it left. If no broker answers, --once exits with code 9.

    If DEST is on this machine, the command starts no Spark: cron can run --once every minute. Each engine continues an
    audit of the other.

    If nodes are forbidden, the command reports how many, and --once exits with code 9. The last commit of such a node
    is recorded once the node can be read. If ZooKeeper was replaced or wiped, the command refuses to continue. After
    ZooKeeper was restored from its own backup, run it once with --start-over: it may not detect the restore, and would
    then miss the offsets that went back.

    --show --from-data-dir also prints all commits in the transaction logs of the ZooKeeper server, each commit once. So
    it prints the commits that the audit has missed, too. READ and BATCH are empty for a commit from the logs.

    \b
    Example:
      zkgroups -z zk1:2181/kafka audit /data/audit
      zkgroups -z zk1:2181/kafka audit /data/audit --once
      zkgroups -z zk1:2181 audit /data/storm --layout storm:/kafkastorm
      zkgroups audit /data/audit --show --groups billing -o csv
      zkgroups audit /data/audit --show --from-data-dir /var/lib/zookeeper --chroot /kafka
    """
    _refuse_useless(click.get_current_context())
    engine = EngineOptions.of(chosen)
    if show:
        logs, selection = (data_dir, data_log_dir, chroot), {name: chosen[name] for name in ("groups", "topics")}
        with _found(options, engine, destination, data_dir=logs, **selection) as rows:
            Output(options).write(_COMMITS, map(_shown, rows))
        return
    chosen["layout"] = layout.text
    local = engine.is_local(destination, needs_spark="--parallelism" if chosen["parallelism"] else None)
    with _recorder(options, engine, destination, chosen, local=local) as record:
        with recorded_signals() as recorded, status_line(options) as line:
            reporter = _ProgressReporter(options, line)
            done = record(every=every, once=once, on_progress=reporter, stop=SignalEvent(recorded))
        Output(options).write(_AUDITED, [dataclasses.asdict(done)])
        raise_recorded(recorded)
        if done.forbidden or done.log_ends_problem:
            raise click.exceptions.Exit(ExitCode.PARTIAL)


def _refuse_useless(ctx: click.Context) -> None:
    """Refuse options that would do nothing. Somebody who gives one expects an effect, e.g. the audit of that chroot."""
    names = {parameter.name: max(parameter.opts, key=len) for parameter in ctx.command.params}
    given = [name for name in names if name and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    for name in given:
        if name in _NEEDED and _NEEDED[name] not in given:
            raise click.UsageError(f"{names[name]} needs {names[_NEEDED[name]]}", ctx)
        if name in _ONLY_RECORDING and "show" in given:
            raise click.UsageError(f"{names[name]} does nothing with --show", ctx)


@contextmanager
def _recorder(
    options: Options, engine: EngineOptions, destination: str, chosen: dict[str, Any], *, local: bool
) -> Iterator[Callable[..., AuditResult]]:
    """Start the engine, and yield the function that records."""
    if not local:
        engine.spark.check_writes_to(destination)
    source = _source(options, chosen)
    what_for = f"record the commits of {source.shown_cluster} in {destination}"
    with engine.started(options, what_for, local=local) as spark:
        if spark is None:
            from zkgroups.audit.audit import run_audit as record_here

            yield partial(record_here, destination, source)
        else:
            from zkgroups.spark import run_audit

            yield partial(run_audit, spark, destination, source)


def _source(options: Options, chosen: dict[str, Any]) -> SourceOptions:
    """Return the groups to read. Report a wrong address now, because starting Spark takes seconds."""
    from zkgroups.tables.source_options import SourceOptions

    source = SourceOptions(**for_workers(options), **brokers_for_workers(options), **chosen)
    with source.connect() as registry:
        registry.require_root(source.layout)
    return source


class _ProgressReporter:
    """Shows each batch in a status line, and prints errors, malformed offsets and forbidden nodes."""

    def __init__(self, options: Options, line: ShowText) -> None:
        self._options = options
        self._line = line
        self._trouble = ""
        self._commits = 0
        self._forbidden = 0
        self._log_ends_problem: str | None = None

    def __call__(self, step: AuditStep) -> None:
        if step.trouble != self._trouble:
            self._trouble = step.trouble
            self._say(f"error: {step.trouble}; retrying" if step.trouble else "recovered")
        self._commits += step.commits
        if step.problems:
            self._say(
                f"batch {step.batch}: {step.problems} of {step.commits} commits are malformed, see the column PROBLEM"
            )
        if step.log_ends_problem != self._log_ends_problem and not step.trouble:
            self._log_ends_problem = step.log_ends_problem
            self._say(f"batch {step.batch}: {self._log_ends_text}")
        if not step.trouble and step.forbidden != self._forbidden:
            self._forbidden = step.forbidden
            self._say(f"batch {step.batch}: {step.forbidden or 'no more'} forbidden nodes")
        now = f"error: {step.trouble}" if step.trouble else f"batch {step.batch}: {step.commits} commits"
        self._line(f"{now}, {self._commits} since the start")

    @property
    def _log_ends_text(self) -> str:
        problem = self._log_ends_problem
        return "brokers answer again" if problem is None else f"{LAG_UNKNOWN}: {problem}"

    def _say(self, text: str) -> None:
        say(self._options, f"{utc(time.time_ns() // 1_000_000)} {text}")


def _logs(data_dir: Path, data_log_dir: Path | None, chroot: str | None) -> HistoryOptions:
    from zkgroups.spark import HistoryOptions, HistoryTable

    log_dir = None if data_log_dir is None else str(data_log_dir.absolute())
    return HistoryOptions(
        table=HistoryTable.COMMITS, data_dir=str(data_dir.absolute()), data_log_dir=log_dir, chroot=chroot
    )


@contextmanager
def _found(
    options: Options, engine: EngineOptions, destination: str, *, data_dir: tuple[Any, ...], **selection: str | None
) -> Iterator[Iterator[dict[str, Any]]]:
    """Start the engine, and yield the recorded commits, oldest first. Only Spark also reads logs."""
    needs_spark = "--from-data-dir" if data_dir[0] else None
    local = engine.is_local(destination, is_small=partial(_has_few_commits, destination), needs_spark=needs_spark)
    with engine.started(options, f"read the audit in {destination}", local=local) as spark:
        if spark is None:
            from zkgroups.audit.recorded_commits import find_commits as find_here

            yield find_here(destination, **selection)
        else:
            from zkgroups.spark.audit import find_commits

            logs = _logs(*data_dir) if data_dir[0] else None
            yield find_commits(spark, destination, logs=logs, **selection)


def _has_few_commits(destination: str) -> bool:
    """Return whether an audit is small. A missing or damaged one counts as small: reading it fails anyway."""
    with installed("snapshots"):
        from zkgroups.audit.recorded_commits import count_commits
    with suppress(ZkgroupsException):
        return count_commits(destination) <= _FEW_COMMITS
    return True


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    shown = {
        name: utc(round(value.timestamp() * 1000)) if isinstance(value, datetime) else value
        for name, value in row.items()
    }
    log = None if row["log_end"] is None else OffsetRange(row["log_start"], row["log_end"])
    return shown | {"lag": lag(row["offset"], log)[0]}
