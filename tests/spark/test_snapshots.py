"""Snapshots: contents, the session of the caller, concurrent runs, and runs that fail or are stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import MapType

import zkgroups
from tests.waiting import eventually
from zkgroups.audit.journal import Journal
from zkgroups.core.offsets.changes import SummaryLevel
from zkgroups.core.table_columns import COLUMNS
from zkgroups.exceptions import (
    DamagedFileError,
    InvalidOptionError,
    NotFoundError,
    SparkJobError,
    StorageError,
    UnavailableError,
)
from zkgroups.snapshots import digest as digest_module
from zkgroups.snapshots.diff import KEY, diff
from zkgroups.snapshots.layout import listing
from zkgroups.snapshots.local_snapshot import ArrowLayout
from zkgroups.snapshots.local_snapshot import take_snapshot as take_local_snapshot
from zkgroups.spark import (
    Snapshot,
    SourceOptions,
    Survey,
    Table,
    diff_snapshots,
    list_snapshots,
    offsets_at,
    read_audit,
    read_snapshot,
    run_audit,
    snapshot_names,
    survey,
    take_snapshot,
    verify_snapshots,
)
from zkgroups.spark.data_source import SCHEMAS
from zkgroups.spark.snapshots import Layout
from zkgroups.tables.arrow import arrow_schema
from zkgroups.testing import TcpProxy

from .commands import command_on
from .model import NOT_SO_LONG_AGO, Model, appeared, assert_complete, assert_is, files, left, parquet, plant, spoil

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

MODULE = sys.modules["zkgroups.spark.snapshots"]


@pytest.fixture(params=["spark", "local"])
def take(request: pytest.FixtureRequest, spark: SparkSession) -> Callable[..., Snapshot]:
    """Take a snapshot with each engine. Spark reads both."""
    return {"spark": partial(take_snapshot, spark), "local": take_local_snapshot}[request.param]


Take = Callable[..., Snapshot]


@pytest.fixture
def model(raw: Any) -> Model:
    return plant(raw, ["billing", "shipping"])


# Contents


def test_a_snapshot_equals_the_tree(
    take: Take, spark: SparkSession, zookeeper_hosts: str, raw: Any, tmp_path: Path
) -> None:
    """With malformed and forbidden nodes, in a folder with special characters."""
    folder = tmp_path / "a b=ü%20+c[1]{x}*"
    model = plant(raw, ["billing", "shipping", "зака зы"])
    spoil(model, raw)
    heard: list[tuple[str, threading.Thread]] = []
    source = SourceOptions(zookeeper=zookeeper_hosts, cluster="blue", parallelism=3)
    before = datetime.now(UTC)
    taken = take(str(folder), source, on_progress=lambda step: heard.append((step, threading.current_thread())))
    after = datetime.now(UTC)
    assert_is(model, folder, taken.name)
    assert model.counts().items() <= asdict(taken).items()
    assert model.counts()["forbidden"] == 3
    assert (taken.destination, len(left(folder))) == (f"file:{folder}", 3)
    assert heard == [(step, threading.current_thread()) for step in ("writing", "moving into place")]
    for table in Table:
        rows = parquet(folder, table, taken.name)
        assert {row["cluster"] for row in rows} == {"blue"}
        assert all(before <= row["read_at"] <= after for row in rows)
    owners, members = len(model.rows[Table.OWNERS]), len(model.rows[Table.MEMBERS])
    # The forbidden topic and instances are known by name only.
    assert survey(source) == Survey(4, 7 + 1, len(model.rows[Table.OFFSETS]) - 1, owners, members - 1, 2)
    assert read_snapshot(spark, str(folder)).count() == len(model.rows[Table.OFFSETS])


def test_a_snapshot_without_groups_has_all_columns(
    take: Take, spark: SparkSession, zookeeper_hosts: str, tmp_path: Path
) -> None:
    taken = take(str(tmp_path), zookeeper_hosts)
    assert Model().counts().items() <= asdict(taken).items()
    for table in Table:
        rows = read_snapshot(spark, str(tmp_path), table=table)
        assert rows.count() == 0
        assert rows.schema["cluster"].metadata["comment"], "the comments are in the files"
        assert "read_at" in pq.ParquetFile(files(tmp_path, table, taken.name)[0]).schema.names


def test_forbidden_nodes_are_reported_with_exit_code_9(
    spark: SparkSession, zookeeper_hosts: str, raw: Any, model: Model, tmp_path: Path
) -> None:
    spoil(model, raw)
    with command_on(spark, zookeeper_hosts) as zkgroups:
        ended = zkgroups("snapshot", tmp_path, "--engine", "spark")
        assert zkgroups("snapshot", tmp_path, "--engine", "local").code == ended.code == 9
    assert ended.err.splitlines() == [
        f"Starting Spark to write a snapshot of {zookeeper_hosts} to {tmp_path}.",
        "3 nodes are forbidden: the column `problem` names the path. Log in as a user who may read it.",
    ]
    header, line = (line.split() for line in ended.lines)
    assert " ".join(header) == "SNAPSHOT GROUPS OFFSETS OWNERS MEMBERS PROBLEMS FORBIDDEN LAG SECONDS DESTINATION"
    taken = dict(zip(header, line, strict=True))
    assert {name.lower(): int(taken[name]) for name in header[1:7]} == model.counts()
    assert taken["DESTINATION"] == f"file:{tmp_path}"
    assert_is(model, tmp_path, taken["SNAPSHOT"])


def test_times_are_stored_as_microseconds_in_utc(
    spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        taken = take_snapshot(spark, str(tmp_path), zookeeper_hosts)
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    schema = pq.ParquetFile(files(tmp_path, Table.OFFSETS, taken.name)[0]).schema
    kinds = {schema.column(at).name: schema.column(at) for at in range(len(schema))}
    assert {name: column.physical_type for name, column in kinds.items()} == {
        **dict.fromkeys(("cluster", "group", "topic", "owner", "layout", "raw", "problem"), "BYTE_ARRAY"),
        **dict.fromkeys(("partition", "commit_count"), "INT32"),
        **dict.fromkeys(("offset", "zxid", "committed_at", "created_at", "log_start", "log_end", "read_at"), "INT64"),
    }
    for name in ("committed_at", "created_at", "read_at"):
        assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(kinds[name].logical_type)
    assert kinds["group"].logical_type.type == "STRING"


# Visibility


def test_several_snapshots_coexist_and_each_can_be_read(
    spark: SparkSession, zookeeper_hosts: str, raw: Any, model: Model, tmp_path: Path
) -> None:
    destination = str(tmp_path)
    assert snapshot_names(spark, destination) == []
    with pytest.raises(NotFoundError, match=f"no snapshot in file:{tmp_path}: write one with `zkgroups snapshot`$"):
        read_snapshot(spark, destination)
    first = take_snapshot(spark, destination, zookeeper_hosts)
    raw.set("/consumers/billing/offsets/t0/1", b"99")
    second = take_snapshot(spark, destination, zookeeper_hosts)
    assert_is(model, tmp_path, first.name)
    assert snapshot_names(spark, destination) == [first.name, second.name]
    _is_as_hive_has_it(spark, tmp_path, [first.name, second.name])

    def offset(name: str | None = None) -> int:
        rows = read_snapshot(spark, destination, name).where("`group` = 'billing' and topic = 't0' and partition = 1")
        return int(rows.collect()[0].offset)

    assert (offset(first.name), offset(second.name), offset()) == (7, 99, 99)
    assert read_snapshot(spark, destination, table="members").count() == 2
    for table in Table:
        rows = read_snapshot(spark, destination, table=table)
        assert sorted(map(repr, zkgroups.read_snapshot(destination, table=table).to_pylist())) == sorted(
            repr(row) for row in rows.toArrow().to_pylist()
        )
    assert read_snapshot(spark, destination, first.name, table=Table.OWNERS).count() == 4

    (tmp_path / "table=offsets" / f"snapshot={second.name}" / "_SUCCESS").unlink()
    assert snapshot_names(spark, destination) == [first.name]
    assert offset() == 7
    for name in (second.name, NOT_SO_LONG_AGO, "yesterday", "", "../x", "a:b"):
        with pytest.raises(NotFoundError, match="no snapshot"):
            read_snapshot(spark, destination, name)
    with pytest.raises(InvalidOptionError, match="it must be one of offsets, owners, members"):
        read_snapshot(spark, destination, table="groups")


def _is_as_hive_has_it(spark: SparkSession, destination: Path, names: list[str]) -> None:
    """Other programs read the snapshots as partitions, with text names."""
    offsets = destination / "table=offsets"
    frame = spark.read.parquet(str(offsets))
    assert dict(frame.dtypes)["snapshot"] == "string"
    assert sorted(row.snapshot for row in frame.select("snapshot").distinct().collect()) == names
    table = ds.dataset(offsets, partitioning="hive").to_table()
    assert str(table.schema.field("snapshot").type) in {"string", "dictionary<values=string, indices=int32, ordered=0>"}
    assert sorted(set(table["snapshot"].to_pylist())) == names


# The caller's session


def test_the_session_of_the_caller_is_unchanged(
    spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    callers = spark.newSession()
    other = spark.newSession()
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(other._jsparkSession)
    context = spark.sparkContext
    context.setJobGroup("mine", "my jobs")
    callers.range(3).createOrReplaceTempView("numbers")

    def seen() -> dict[str, Any]:
        active = SparkSession.getActiveSession()
        assert active is not None
        return {
            "settings": dict(callers.conf.getAll),
            "views": [table.name for table in callers.catalog.listTables()],
            "sources": callers._jsparkSession.sessionState().dataSourceManager().dataSourceExists("zkgroups"),
            "active": active._jsparkSession.sessionUUID(),
            "group": context.getLocalProperty("spark.jobGroup.id"),
            "tags": context.getJobTags(),
            "python": context.pythonExec,
            "ctrl-c": signal.getsignal(signal.SIGINT),
        }

    try:
        before = seen()
        take_snapshot(callers, str(tmp_path), zookeeper_hosts)
        assert seen() == before
        assert context.statusTracker().getJobIdsForGroup("mine"), "the jobs are in the group of the caller"
    finally:
        context._jsc.clearJobGroup()


# Concurrent runs


def test_concurrent_snapshots_with_one_spark_are_all_complete(
    spark: SparkSession, model: Model, zookeeper_hosts: str, tmp_path: Path
) -> None:
    source = SourceOptions(zookeeper=zookeeper_hosts)
    with ThreadPoolExecutor(3) as threads:
        taken = list(threads.map(lambda _: take_snapshot(spark, str(tmp_path), source), range(3)))
    assert len({each.name for each in taken}) == 3
    for each in taken:
        assert_is(model, tmp_path, each.name)
    assert spark.sparkContext.pythonExec == "python3", "as it was"
    assert len(spark.sparkContext.getJobTags()) == 0


def test_the_number_of_tasks_is_limited_on_many_cores(
    spark: SparkSession, model: Model, zookeeper_hosts: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(SparkContext, "defaultParallelism", 2000)
    monkeypatch.setattr(MODULE, "MAX_PARALLELISM", 3)
    assert take_snapshot(spark, str(tmp_path), zookeeper_hosts).groups == model.groups


# Failures leave nothing


def test_losing_zookeeper_during_a_run_is_a_typed_error_and_leaves_nothing(
    model: Model, zookeeper: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    """Without Spark. In tests/spark/faults, the server is killed under Spark."""
    with TcpProxy(zookeeper.address) as proxy:

        def told(step: str) -> None:
            if step == "writing":
                proxy.refuse()
                proxy.cut()

        address = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        with pytest.raises(UnavailableError, match=f"{proxy.address}|/consumers"):
            take_local_snapshot(str(tmp_path), SourceOptions(zookeeper=address, timeout=1.0), on_progress=told)
        assert left(tmp_path) == []
        proxy.heal()
        proxy.accept()
        assert take_local_snapshot(str(tmp_path), address).groups == 2


def test_a_destination_or_a_server_that_is_no_good_is_a_typed_error(
    take: Take, zookeeper_hosts: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    for destination in ("/proc/zkgroups", "{}/file", "{}/file/below", "no-such-scheme://x/y"):
        with pytest.raises((SparkJobError, StorageError, InvalidOptionError)) as caught:
            take(destination.format(tmp_path), zookeeper_hosts)
        said = str(caught.value)
        assert "cannot be" in said or "must be the name of a folder on this machine" in said
        assert len(said.splitlines()) == 1
    with pytest.raises(UnavailableError):
        take(str(tmp_path), SourceOptions(zookeeper="127.0.0.1:1", timeout=0.5))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


class Stop(BaseException):
    """Raised by a signal handler, as the command does for SIGTERM."""


def test_a_signal_during_a_job_cancels_it_and_leaves_nothing(
    spark: SparkSession, zookeeper: Any, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    """The session stays usable: the next query gets its own result."""

    def handle(_signal: int, _frame: Any) -> None:
        raise Stop

    context = spark.sparkContext
    usual = signal.signal(signal.SIGUSR1, handle)
    with TcpProxy(zookeeper.address) as proxy:

        def told(step: str) -> None:
            if step == "writing":
                proxy.delay(0.3)
                threading.Thread(target=signal_when_tasks_run, daemon=True).start()

        def signal_when_tasks_run() -> None:
            written = "_unfinished/*/table=offsets/_temporary/0/_temporary/*/*.parquet"
            assert eventually(lambda: appeared(tmp_path, written))
            proxy.delay(3600.0)  # the job is still running when the signal arrives
            os.kill(os.getpid(), signal.SIGUSR1)

        source = SourceOptions(zookeeper=f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}", timeout=60.0)
        try:
            with pytest.raises(Stop):
                take_snapshot(spark, str(tmp_path), source, on_progress=told)
        finally:
            signal.signal(signal.SIGUSR1, usual)
    assert left(tmp_path) == []
    assert spark.range(7).count() == 7
    assert eventually(lambda: not context.statusTracker().getActiveJobsIds())
    assert left(tmp_path) == []


def test_a_failed_table_cancels_the_others(
    spark: SparkSession, model: Model, zookeeper: Any, zookeeper_hosts: str, tmp_path: Path, monkeypatch: Any
) -> None:
    usual = MODULE._write
    with TcpProxy(zookeeper.address) as proxy:

        def write(session: SparkSession, source: SourceOptions, unfinished: Any) -> dict[str, int]:
            if source.table is not Table.OWNERS:
                return usual(session, source, unfinished)
            jobs: set[int] = set()
            while len(jobs) < 2:  # a job in planning cannot be cancelled
                jobs |= set(spark.sparkContext.statusTracker().getActiveJobsIds())
            proxy.delay(3600.0)
            raise SparkJobError("of its own")

        monkeypatch.setattr(MODULE, "_write", write)
        proxy.delay(0.5)
        address = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        with pytest.raises(SparkJobError, match="of its own"):
            take_snapshot(spark, str(tmp_path), SourceOptions(zookeeper=address, timeout=3600.0))
        proxy.delay(0)
    assert list(tmp_path.glob("table=*/*")) == []


# A file system that fails without an exception, like HDFS

RELUCTANT = """
public class Reluctant extends org.apache.hadoop.fs.RawLocalFileSystem {
  public static int renames = 0;
  public static int makes = 0;
  public java.net.URI getUri() { return java.net.URI.create("reluctant:///"); }
  public String getScheme() { return "reluctant"; }
  public boolean rename(org.apache.hadoop.fs.Path from, org.apache.hadoop.fs.Path to) throws java.io.IOException {
    boolean ours = to.getName().startsWith("snapshot=");
    return (!ours || --renames >= 0) && super.rename(from, to);
  }
}
"""


@pytest.fixture
def reluctant(spark: SparkSession) -> Any:
    """A file system that fails to rename after a number of renames, and like HDFS only returns false."""
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(RELUCTANT)
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    usual = conf.getClassLoader()
    conf.setClassLoader(compiler.getClassLoader())
    conf.set("fs.reluctant.impl", "Reluctant")
    yield compiler.getClassLoader().loadClass("Reluctant").getField("renames")
    jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI.create("reluctant:///"), conf).close()  # it is cached
    conf.unset("fs.reluctant.impl")
    conf.setClassLoader(usual)


def test_a_failed_rename_is_an_error_and_leaves_nothing(
    spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path, reluctant: Any
) -> None:
    destination = f"reluctant://{tmp_path}"
    reluctant.setInt(None, 2)
    with pytest.raises(SparkJobError, match=r"could not be moved into .* was not renamed to"):
        take_snapshot(spark, destination, zookeeper_hosts)
    assert left(tmp_path) == [], "moved tables are moved back"
    assert snapshot_names(spark, destination) == []
    reluctant.setInt(None, 3)
    taken = take_snapshot(spark, destination, zookeeper_hosts)
    assert assert_complete(model, tmp_path) == snapshot_names(spark, destination) == [taken.name]


# What Arrow finds, as tables of Spark


def test_spark_returns_what_arrow_finds_on_any_file_system(
    spark: SparkSession, zookeeper_hosts: str, raw: Any, tmp_path: Path, reluctant: Any
) -> None:
    reluctant.setInt(None, 6)
    spoil(plant(raw, ["billing", "shipping"]), raw)
    destination = f"reluctant://{tmp_path}"
    taken = []
    for data in (b"5", b"6"):
        raw.set("/consumers/billing/offsets/t0/1", data)
        taken.append(take_snapshot(spark, destination, zookeeper_hosts).name)
    here, layout = ArrowLayout.at(str(tmp_path)), Layout(spark, destination)
    for by in SummaryLevel:
        [expected, found] = [diff(here, here.choose_pair(), by=by), diff_snapshots(spark, destination, by=by).toArrow()]
        assert found.column_names == expected.column_names
        order = [(name, "ascending") for name in KEY if name in found.column_names]
        assert found.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
    listed = [row.asDict() | {"time": None} for row in list_snapshots(spark, destination).orderBy("time").collect()]
    assert listed == [asdict(each) | {"time": None} for each in listing(here)]
    columns, groups = ("group", "topic", "partition", "offset", "snapshot"), ["billing"]
    rows = [sorted(map(repr, each.offsets(taken, columns, groups).to_pylist())) for each in (here, layout)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 20
    assert verify_snapshots(spark, destination).count() == 0
    for file in files(tmp_path, Table.OWNERS, taken[0]):
        file.unlink()
    [finding] = verify_snapshots(spark, destination).collect()
    assert tuple(finding)[:4] == ("error", taken[0], "owners", "missing-table")


def test_an_audit_on_another_file_system_continues(
    spark: SparkSession, zookeeper_hosts: str, raw: Any, model: Model, tmp_path: Path, reluctant: Any
) -> None:
    destination = f"reluctant://{tmp_path}/audit"
    for data in (b"7", b"8"):
        raw.set("/consumers/billing/offsets/t0/1", data)
        run_audit(spark, destination, zookeeper_hosts, once=True)
    finished = Journal.at(str(tmp_path / "audit")).finished_batch()
    assert finished is not None
    at = datetime.fromtimestamp(finished.read_ms / 1000, UTC)
    assert offsets_at(spark, destination, at, "billing").where("topic = 't0' and partition = 1").first()[3] == 8
    rows = read_audit(spark, destination).where("batch = 1").select("before", "offset").collect()
    assert list(map(tuple, rows)) == [(7, 8)]


def test_snapshots_of_other_versions_are_read_in_the_current_columns(
    spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    name = take_local_snapshot(str(tmp_path), zookeeper_hosts).name
    [file] = files(tmp_path, Table.OFFSETS, name)
    (file.parent / "_SUMMARY.json").unlink()
    whole = pq.ParquetFile(file).read().replace_schema_metadata(None)  # which has Spark's columns
    older = whole.drop_columns(["owner"]).set_column(5, "commit_count", whole["commit_count"].cast("int64"))
    pq.write_table(older.append_column("colour", pa.nulls(len(whole), "string")), file)
    rows = read_snapshot(spark, str(tmp_path)).toArrow()
    assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, zkgroups.read_snapshot(str(tmp_path)).to_pylist()))
    pq.write_table(whole.set_column(4, "offset", whole["offset"].cast("string")), file)
    with pytest.raises(DamagedFileError, match=f"snapshot {name} in .* has a column offset of type string, not int64"):
        read_snapshot(spark, str(tmp_path))


# The digest

ROWS = 150
LENGTHS = [*range(18), 31, 32, 33, 36, 39, 40, 63, 64, 65, 71, 100]


def values(field: pa.Field) -> Sequence[Any]:
    """Texts of every length that XXH64 treats in a different way, the limits of numbers, and null."""
    match str(field.type):
        case "int32":
            found: list[Any] = [0, -1, 1, 2**31 - 1, -(2**31)]
        case "int64":
            found = [0, -1, 1, 2**63 - 1, -(2**63)]
        case "string":
            found = ["é" * (length // 2) + "x" * (length % 2) for length in LENGTHS]
        case "binary":
            found = [bytes(range(200, 200 - length, -1)) for length in LENGTHS]
        case "timestamp[us, tz=UTC]":
            found = [0, 1, 1_700_000_000_000_000]
        case _:
            found = [[(f"topic-{number}", number) for number in range(count)] for count in range(4)]
    return [*found, None] if field.nullable else found


def every_value(table: Table) -> pa.Table:
    columns = {}
    for place, field in enumerate(arrow_schema(COLUMNS[table])):
        each = values(field)
        columns[field.name] = pa.array([each[(place + row) % len(each)] for row in range(ROWS)], field.type)
    return pa.table(columns, arrow_schema(COLUMNS[table]))


def test_the_digest_in_a_summary_is_the_xor_of_the_hashes_of_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if all long texts are hashed by Arrow, as they are when many have the same length."""
    for table in Table:
        found = every_value(table)
        columns = [
            f.map_entries(field.name) if isinstance(field.dataType, MapType) else f.col(field.name)
            for field in SCHEMAS[table]
        ]
        rows = spark.createDataFrame(found, SCHEMAS[table])
        [[expected]] = rows.agg(f.hex(f.bit_xor(f.xxhash64(*columns)))).collect()
        with monkeypatch.context() as patched:
            patched.setattr(digest_module, "_FEW", 0)
            assert digest_module.digest(found.to_batches()) == expected
        assert digest_module.digest(found.to_batches()) == expected
        assert digest_module.digest(found.to_batches(max_chunksize=7)) == expected
        assert digest_module.digest(found.slice(0, 0).to_batches()) == "0"
