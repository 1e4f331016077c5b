"""Snapshots: everything that is registered at one moment, as Parquet, written by Spark and seen whole or not at all.

    taken = zkgroups.spark.take_snapshot(spark, "/data/groups", "zk1:2181/kafka")
    zkgroups.spark.read_snapshot(spark, "/data/groups").where("problem is not null").show()

`layout.py` says where the files are, and when they count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ...core.znodes.paths import Part
from ...exceptions import InvalidOptionError, NotFoundError, SparkStoppedError
from ...zookeeper.reading import tree_walk
from ..errors import translated
from ..source import data_dir_reader
from ..source.data_source import NAME, active, register
from ..source.options import MAX_PARALLELISM, SourceOptions
from ..source.selection import Selection
from ..source.tables import Table
from ..spark_thread import at_once, interruptible
from ..storage.completeness import whole
from ..storage.writing import check_shared, write
from .layout import IN_ORDER, Layout, Unfinished
from .summary import Contents, Summary, columns_of, digest

_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 is deprecated, and takes twice as long
    "spark.sql.adaptive.enabled": "false",  # there is nothing to adapt in writing down what comes
}


Counts = Mapping[str, Any]
"""What was counted while a table was written."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that was taken: its name, what is in it, and where it is.

    `problems` are the rows that say what is wrong with a node; `denied` are those of them whose node may not be read,
    so that what is there is not in the snapshot.
    """

    name: str
    destination: str
    groups: int
    offsets: int
    owners: int
    members: int
    problems: int
    denied: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Survey:
    """What a snapshot would read."""

    groups: int
    topics: int
    offsets: int
    owners: int
    members: int
    denied: int


STEPS: Final = 2
"""Writing the tables, and moving them into place."""


def take_snapshot(
    spark: SparkSession,
    destination: str,
    source: SourceOptions | str,
    *,
    told: Callable[[str], None] = lambda _step: None,
) -> Snapshot:
    """Take a snapshot of the groups that the source names, or of all if it is only the address of a ZooKeeper.

    The destination may be any folder that Spark's driver and workers see (`spark/storage/writing.py`). `told` is
    called with each of
    the `STEPS` as it begins.
    """
    if spark.sparkContext._jsc is None:
        raise SparkStoppedError("no snapshot can be taken: this Spark was stopped")
    source, groups = _seen(_whole(source))  # an error of ours, and at once, not one out of a job
    return interruptible(spark, lambda step: _take(spark, destination, source, groups, step), told)


def _seen(source: SourceOptions) -> tuple[SourceOptions, int]:
    """How many groups there are; of files all tables are of one state, which has been looked through."""
    if source.files is None:
        with source.connect() as registry:
            return source, len(_chosen(registry.groups(), source))
    state = data_dir_reader.found(source.files, source.zxid)
    seen = data_dir_reader.count(source, state)
    return replace(source, zxid=state.zxid, parallelism=source.parallelism or 1), seen.groups


def _take(
    spark: SparkSession, destination: str, source: SourceOptions, groups: int, told: Callable[[str], None]
) -> Snapshot:
    began = time.monotonic()
    check_shared(spark, destination)
    cores = min(spark.sparkContext.defaultParallelism, MAX_PARALLELISM)
    source = replace(source, parallelism=source.parallelism or cores)
    own = session_beside(spark)
    layout = Layout(own, destination)
    unfinished = layout.begin(datetime.now(UTC))
    try:
        told("writing")
        written = _write_all(own, source, unfinished)
        unfinished.summarize(_summary(source, groups, written, unfinished))
        told("moving into place")
        unfinished.finish()
    except BaseException:
        unfinished.discard()
        raise
    return Snapshot(
        name=unfinished.name,
        destination=str(layout),
        groups=groups,
        offsets=written[Table.OFFSETS]["rows"],
        owners=written[Table.OWNERS]["rows"],
        members=written[Table.MEMBERS]["rows"],
        problems=sum(counts["problems"] for counts in written.values()),
        denied=sum(counts["denied"] for counts in written.values()),
        seconds=time.monotonic() - began,
    )


def session_beside(spark: SparkSession) -> SparkSession:
    """A session over the same context: the caller's settings and sources stay as they are."""
    own = spark.newSession()
    for setting, value in _SETTINGS.items():
        own.conf.set(setting, value)
    # Else 200, each with some milliseconds of its own, however little there is to count.
    own.conf.set("spark.sql.shuffle.partitions", str(2 * spark.sparkContext.defaultParallelism))
    register(own)
    return own


def _write_all(spark: SparkSession, source: SourceOptions, unfinished: Unfinished) -> dict[Table, Counts]:
    """All at once: most of the time that a small table takes is no work, and passes while others have some to do."""
    calls = [partial(_write, spark, replace(source, table=table), unfinished) for table in IN_ORDER]
    return dict(zip(IN_ORDER, at_once(spark, calls), strict=True))


def _write(spark: SparkSession, source: SourceOptions, unfinished: Unfinished) -> Counts:
    """Write one table, and count its rows on the way."""
    with active(spark), translated(f"the table {source.table} could not be written"):
        rows = spark.read.format(NAME).options(**source.as_text()).load()
        problem = f.col("problem").isNotNull()
        counts = write(
            rows,
            unfinished.table(source.table),
            f.count("problem").alias("problems"),
            f.count_if(problem & f.col("raw").isNull()).alias("denied"),
            digest(rows.schema).alias("digest"),
        )
        return {**counts, "columns": columns_of(rows)}


def _summary(source: SourceOptions, groups: int, written: Mapping[Table, Counts], unfinished: Unfinished) -> Summary:
    tables = {
        table: Contents(
            rows=counts["rows"],
            problems=counts["problems"],
            digest=counts["digest"],
            files=unfinished.files(table),
            columns=counts["columns"],
        )
        for table, counts in written.items()
    }
    return Summary(source.shown_cluster, groups, tables, shares=source.parallelism or 0, zxid=source.zxid)


def snapshot_names(spark: SparkSession, destination: str) -> list[str]:
    """The names of the snapshots in a destination, oldest first: each is the time when it was begun."""
    return Layout(spark, destination).snapshots()


def read_snapshot(
    spark: SparkSession, destination: str, name: str | None = None, *, table: Table | str = Table.OFFSETS
) -> DataFrame:
    """A table of a snapshot, in the columns of this version: of the one named, or of the newest.

    Raise DamagedFileError if a file of that table is missing, or was cut. The other tables are not checked.
    """
    if table not in set(Table):
        raise InvalidOptionError("table", table, f"it must be one of {', '.join(Table)}")
    layout = Layout(spark, destination)
    found = layout.newest() if name is None else name if layout.has(name) else None
    if found is None:
        raise NotFoundError(f"there is no snapshot{f' {name}' if name else ''} in {layout}")
    return whole(spark, layout, Table(table), found)


def survey(source: SourceOptions | str) -> Survey:
    """What a snapshot of this source would read. Of a server only names are read for it, and nothing is written."""
    source = _whole(source)
    if source.files is not None:
        counts = data_dir_reader.count(source, data_dir_reader.found(source.files, source.zxid))
        return Survey(**asdict(counts), denied=0)
    selection = Selection(source.groups, source.topics)
    with source.connect() as registry:
        groups, context = _chosen(registry.groups(), source), registry.context
        offsets, owners = (
            list(tree_walk.partitions(context, groups, part, selection.has_topic))
            for part in (Part.OFFSETS, Part.OWNERS)
        )
        members = list(tree_walk.instances(context, groups))
    found = (*offsets, *owners, *members)
    return Survey(
        groups=len(groups),
        topics=len({(each.key.group, each.key.topic) for each in offsets if each.key.topic}),
        offsets=sum(len(each.names) for each in offsets),
        owners=sum(len(each.names) for each in owners),
        members=sum(len(each.names) for each in members),
        denied=sum(each.key.forbidden is not None for each in found),
    )


def _whole(source: SourceOptions | str) -> SourceOptions:
    return SourceOptions(zookeeper=source) if isinstance(source, str) else source


def _chosen(groups: list[str], source: SourceOptions) -> list[str]:
    return list(filter(Selection(source.groups, source.topics).has_group, groups))
