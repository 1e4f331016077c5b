"""Record commits with Spark, as Parquet on any file system.

    run_audit(spark, "/data/audit", "zk1:2181/kafka", every=10.0)
    read_audit(spark, "/data/audit").where("offset < before").show()

See `zkgroups/audit/journal.py` for the files, and `zkgroups/audit/audit.py` for the steps and the guarantees.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..audit.audit import AuditResult, AuditStep, Batch, Ledger, Recording, check_interval
from ..audit.journal import COMMITS as COMMITS_FOLDER
from ..audit.journal import Journal
from ..audit.recorded_commits import LastCommits, standing
from ..core.layouts.legacy import LEGACY
from ..core.selection import check_expression
from ..core.table_columns import COMMITS, KEY, READ, STANDING, TableColumn
from ..exceptions import InvalidOptionError, RefusedError, SparkStoppedError
from ..storage.files import join
from ..tables.parquet_files import arrow_errors, read_parquet
from ..tables.source_options import MAX_PARALLELISM, HistoryOptions, SourceOptions
from ..zookeeper.registry import Registry
from .data_source import NAME, read_shares, register, spark_schema, strict_reader
from .errors import translated
from .files import HadoopFiles, check_shared, write_and_list
from .pyspark_internals import active_session, driver_interpreter, is_stopped, map_in_arrow
from .session import stoppable
from .snapshots import session_beside


def journal_of(spark: SparkSession, destination: str) -> Journal:
    """Return the journal of a folder on any file system of Spark."""
    return Journal(HadoopFiles(spark, destination), destination)


def _commits(spark: SparkSession, journal: Journal, columns: Sequence[TableColumn] = COMMITS) -> DataFrame:
    """Return all commits, after a check that their files are there."""
    files = [file for piece in journal.pieces() for file in journal.files_of(COMMITS_FOLDER, piece.name)]
    if not files:
        return spark.createDataFrame([], spark_schema(columns))
    with translated(f"{journal} cannot be read"):  # with a schema, because inferring one needs a job
        return strict_reader(spark).schema(spark_schema(columns)).parquet(*files)


class SparkLedger(Ledger):
    """Reads the offsets of a batch in Spark's tasks. They write files, because a batch may have millions of rows."""

    def __init__(self, spark: SparkSession, destination: str, source: SourceOptions, stop: threading.Event) -> None:
        super().__init__(journal_of(spark, destination), source, stop)
        self._spark = spark

    def read(self, _registry: Registry, source: SourceOptions, batch: Batch) -> Iterator[Any]:
        failure = f"batch {batch.number} could not be written to {self.journal}"
        with self.journal.staging(datetime.now(UTC)) as path:
            with translated(failure), active_session(self._spark):
                rows = read_shares(self._spark, replace(source, starting_zxid=batch.after), always=batch.were_forbidden)
                write_and_list(rows.select(*READ), path)
            files = self.journal.file_system
            with arrow_errors(failure):
                for name in files.lengths(path):
                    yield from read_parquet(files, join(path, name)).to_batches()


# The commits of an audit together with those in the transaction logs of its ZooKeeper, each of them once.


_SAME: Final = ("group", "topic", "partition", "zxid", "committed_at")
"""The columns that two rows of one commit share. A ZooKeeper that was wiped uses the numbers of transactions again."""


def with_logs(commits: DataFrame, logs: HistoryOptions) -> DataFrame:
    """Return the recorded commits, and all commits in the logs. A commit that is in both is taken from the logs."""
    spark = commits.sparkSession
    register(spark)
    with active_session(spark):
        logged = spark.read.format(NAME).options(**logs.as_text()).load().where("event != 'deleted'")
    same = reduce(and_, (f.col(f"recorded.{name}").eqNullSafe(f.col(f"logged.{name}")) for name in _SAME))
    only_recorded = commits.alias("recorded").join(logged.alias("logged"), same, "left_anti")
    shared = logged.select(*(name for name in commits.columns if name in logged.columns))
    return only_recorded.unionByName(shared.withColumn("layout", f.lit(LEGACY.text)), allowMissingColumns=True)


# The commits of an audit as a table, and the offsets that were committed at a time.


def read_audit(spark: SparkSession, destination: str, *, logs: HistoryOptions | None = None) -> DataFrame:
    """Return every recorded commit of an audit.

    The columns are group, topic, partition, `before` (the previous offset in the audit), `offset` (null if malformed),
    `commit_count`, `committed_at`, `zxid`, `layout`, `log_start`, `log_end`, `problem` (why it is malformed), `read_at`
    and `batch`.

    With `logs`, the result also has every commit in the transaction logs of the same ZooKeeper, each commit once. They
    fill the audit where it missed commits between two reads. `read_at` and `batch` are null for a commit from the logs.
    Unless `logs` says which groups and topics, they are those of the audit. Raise RefusedError for another layout.
    """
    journal = journal_of(spark, destination)
    journal.check_exists()
    commits = _commits(spark, journal)
    return commits if logs is None else with_logs(commits, _selected(logs, journal))


def _selected(logs: HistoryOptions, journal: Journal) -> HistoryOptions:
    """Select the groups and topics of the audit in the logs."""
    audit = journal.description()
    if audit.layout != LEGACY.text:
        raise RefusedError(f"the audit in {journal} has the layout {audit.layout}, which is not read from logs")
    return replace(logs, groups=logs.groups or audit.groups, topics=logs.topics or audit.topics)


def offsets_at(spark: SparkSession, destination: str, at: datetime, group: str | None = None) -> DataFrame:
    """Return the offsets committed at a time, of one group or of all: group, topic, partition, offset, committed_at.

    For each partition the result has the last recorded commit made at or before `at`. The true offset may be newer,
    because an audit does not see commits that are overwritten between two batches; it is never older. Offsets that were
    deleted before `at` are included. Partitions whose last commit is malformed are left out, and so are commits made
    before the audit started over with another ZooKeeper. Raise RefusedError for a time after the last batch.
    """
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidOptionError("at", str(at), "it must be a datetime with a time zone")
    found = last_commits(spark, journal_of(spark, destination), at, None if group is None else [group])
    return spark.createDataFrame(found.select([*KEY, "offset", "committed_at"]))


def last_commits(spark: SparkSession, journal: Journal, at: datetime, groups: Collection[str] | None) -> Any:
    """Return the offsets committed at a time, of these groups or of all, as an Arrow table."""
    journal.check_exists()
    journal.check_has_read(at)
    last = LastCommits(at, journal.description().first_batch, groups)
    with translated(f"{journal} cannot be read"), driver_interpreter(spark.sparkContext), active_session(spark):
        of_tasks = map_in_arrow(_commits(spark, journal, STANDING), last, spark_schema(STANDING)).toArrow()
    return standing(last(of_tasks.to_batches()))


def find_commits(
    spark: SparkSession,
    destination: str,
    *,
    groups: str | None = None,
    topics: str | None = None,
    logs: HistoryOptions | None = None,
) -> Iterator[dict[str, Any]]:
    """Return the commits of groups and topics whose whole names match, oldest first. See `read_audit` for `logs`."""
    commits = read_audit(spark, destination, logs=logs)
    for column, expression in (("group", groups), ("topic", topics)):
        check_expression(f"{column}s", expression)
        if expression is not None:
            names = [row[0] for row in commits.select(column).distinct().toLocalIterator()]
            matching = re.compile(expression, re.DOTALL)  # Java's regular expressions differ slightly
            commits = commits.where(f.col(column).isin([name for name in names if matching.fullmatch(name)]))
    with translated(f"the audit in {destination} cannot be read"):
        for row in commits.orderBy(*([] if logs else ["batch"]), "zxid", *KEY).toLocalIterator():
            yield row.asDict()


def run_audit(
    spark: SparkSession,
    destination: str,
    source: SourceOptions | str,
    *,
    every: float = 10.0,
    once: bool = False,
    on_progress: Callable[[AuditStep], None] | None = None,
    stop: threading.Event | None = None,
) -> AuditResult:
    """Record all current offsets as Parquet, then every commit, until `stop` is set.

    - `destination`: a folder that Spark's driver and workers can see. An interrupted audit continues there.
    - `source`: the address of ZooKeeper, or `SourceOptions` that also select groups and topics.
    - `every`: how often to look for commits, in seconds. A commit that is overwritten between two looks is not seen.
    - `once`: stop after one batch.
    - `on_progress`: called with an `AuditStep` after each batch, and after an error, on another thread.
    - `stop`: set it to stop the audit; a batch that is being recorded is interrupted, and continued by the next run.

    While ZooKeeper is unreachable it retries, unless `once` is set.
    """
    if is_stopped(spark):
        raise SparkStoppedError("cannot run an audit: this Spark session was stopped; create a new one")
    check_interval(every)
    check_shared(spark, destination)
    source = SourceOptions(zookeeper=source) if isinstance(source, str) else source
    cores = min(spark.sparkContext.defaultParallelism, MAX_PARALLELISM)
    source = replace(source, parallelism=source.parallelism or cores)
    own = session_beside(spark)

    def record(ended: threading.Event) -> AuditResult:
        ledger = SparkLedger(own, destination, source, ended)
        return Recording(ledger, source, every, once, on_progress, ended).go()

    return stoppable(spark, record, stop)
