"""Snapshots: contents, atomicity and cleanup."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from kazoo.client import KazooClient
from pyspark import SparkContext
from pyspark.sql import SparkSession

from zkgroups.exceptions import (
    InvalidOptionError,
    NotFoundError,
    SparkJobError,
    UnavailableError,
)
from zkgroups.spark import SourceOptions, Survey, Table, read_snapshot, snapshot_names, survey, take_snapshot
from zkgroups.spark.snapshots.layout import IN_ORDER, Layout, UnfinishedSnapshot
from zkgroups.spark.storage.atomic_folder import ABANDONED_AFTER
from zkgroups.spark.storage.timestamps import parse_timestamp, timestamp_text
from zkgroups.testing import TcpProxy, ZooKeeperServer

from .commands import command_on
from .model import Model, appeared, assert_complete, assert_is, files, parquet, plant, spoil

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

MODULE = sys.modules["zkgroups.spark.snapshots.snapshot"]

LONG_AGO = timestamp_text(datetime.now(UTC) - ABANDONED_AFTER - timedelta(hours=1))
NOT_SO_LONG_AGO = timestamp_text(datetime.now(UTC) - ABANDONED_AFTER + timedelta(hours=1))


@pytest.fixture
def kazoo(zookeeper_hosts: str) -> Iterator[Any]:
    client = KazooClient(zookeeper_hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def model(kazoo: Any) -> Model:
    return plant(kazoo, ["billing", "shipping"])


def left(destination: Path) -> list[str]:
    """Return the folders that exist, and the contents of unfinished ones."""
    return sorted(str(path.relative_to(destination)) for path in destination.glob("*/*"))


# Contents


def test_a_snapshot_equals_the_tree(spark: SparkSession, zookeeper_hosts: str, kazoo: Any, tmp_path: Path) -> None:
    """With malformed and forbidden nodes."""
    model = plant(kazoo, ["billing", "shipping", "зака зы"])
    spoil(model, kazoo)
    heard: list[tuple[str, threading.Thread]] = []
    source = SourceOptions(zookeeper=zookeeper_hosts, cluster="blue", parallelism=3)
    before = datetime.now(UTC)
    taken = take_snapshot(
        spark, str(tmp_path), source, on_progress=lambda step: heard.append((step, threading.current_thread()))
    )
    after = datetime.now(UTC)
    assert_is(model, tmp_path, taken.name)
    assert model.counts().items() <= asdict(taken).items()
    assert model.counts()["forbidden"] == 3
    assert (taken.destination, len(left(tmp_path))) == (f"file:{tmp_path}", 3)
    assert heard == [(step, threading.current_thread()) for step in ("writing", "moving into place")]
    for table in Table:
        rows = parquet(tmp_path, table, taken.name)
        assert {row["cluster"] for row in rows} == {"blue"}
        assert all(before <= row["read_at"] <= after for row in rows)
    owners, members = len(model.rows[Table.OWNERS]), len(model.rows[Table.MEMBERS])
    # The forbidden topic and instances are known by name only.
    assert survey(source) == Survey(4, 7 + 1, len(model.rows[Table.OFFSETS]) - 1, owners, members - 1, 2)


def test_only_selected_groups_and_topics_are_in_a_snapshot(
    spark: SparkSession, zookeeper_hosts: str, kazoo: Any, tmp_path: Path
) -> None:
    model = plant(kazoo, ["billing", "bill", "shipping"])
    taken = take_snapshot(spark, str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts, groups="bil.*", topics="t1"))
    for table, rows in model.rows.items():
        model.rows[table] = [row for row in rows if row["group"] != "shipping" and row.get("topic", "t1") == "t1"]
    assert_is(model, tmp_path, taken.name)
    assert taken.groups == 2


def test_a_snapshot_without_groups_has_all_columns(spark: SparkSession, zookeeper_hosts: str, tmp_path: Path) -> None:
    taken = take_snapshot(spark, str(tmp_path), zookeeper_hosts)
    assert Model().counts().items() <= asdict(taken).items()
    for table in Table:
        assert read_snapshot(spark, str(tmp_path), table=table).count() == 0
        assert "read_at" in pq.ParquetFile(files(tmp_path, table, taken.name)[0]).schema.names


def test_forbidden_nodes_are_reported_with_exit_code_9(
    spark: SparkSession, zookeeper_hosts: str, kazoo: Any, model: Model, tmp_path: Path
) -> None:
    spoil(model, kazoo)
    with command_on(spark, zookeeper_hosts) as zkgroups:
        ended = zkgroups("snapshot", tmp_path)
    assert ended.code == 9
    assert ended.err.splitlines() == [
        f"Starting Spark to write a snapshot of {zookeeper_hosts} to {tmp_path}.",
        "3 nodes are forbidden; their rows have a problem but no raw.",
    ]
    header, line = (line.split() for line in ended.lines)
    assert " ".join(header) == "SNAPSHOT GROUPS OFFSETS OWNERS MEMBERS PROBLEMS FORBIDDEN SECONDS DESTINATION"
    taken = dict(zip(header, line, strict=True))
    assert {name.lower(): int(taken[name]) for name in header[1:7]} == model.counts()
    assert taken["DESTINATION"] == f"file:{tmp_path}"
    assert_is(model, tmp_path, taken["SNAPSHOT"])


def test_a_snapshot_without_groups_suggests_a_chroot(
    spark: SparkSession, zookeeper_hosts: str, raw: Any, tmp_path: Path
) -> None:
    raw.ensure_path("/brokers/ids")
    with command_on(spark, zookeeper_hosts) as zkgroups:
        ended = zkgroups("snapshot", tmp_path, "-q")
    assert ended.code == 0
    assert ended.err == "zkgroups: the snapshot has no groups: if they are below a chroot, add it to the address\n"


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
        **dict.fromkeys(("cluster", "group", "topic", "owner", "raw", "problem"), "BYTE_ARRAY"),
        **dict.fromkeys(("partition", "commit_count"), "INT32"),
        **dict.fromkeys(("offset", "zxid", "committed_at", "created_at", "read_at"), "INT64"),
    }
    for name in ("committed_at", "created_at", "read_at"):
        assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(kinds[name].logical_type)
    assert kinds["group"].logical_type.type == "STRING"


# Visibility


def test_several_snapshots_coexist_and_each_can_be_read(
    spark: SparkSession, zookeeper_hosts: str, kazoo: Any, model: Model, tmp_path: Path
) -> None:
    destination = str(tmp_path)
    assert snapshot_names(spark, destination) == []
    with pytest.raises(NotFoundError, match=f"no snapshot in file:{tmp_path}$"):
        read_snapshot(spark, destination)
    first = take_snapshot(spark, destination, zookeeper_hosts)
    kazoo.set("/consumers/billing/offsets/t0/1", b"99")
    second = take_snapshot(spark, destination, zookeeper_hosts)
    assert_is(model, tmp_path, first.name)
    assert snapshot_names(spark, destination) == [first.name, second.name]
    _is_as_hive_has_it(spark, tmp_path, [first.name, second.name])

    def offset(name: str | None = None) -> int:
        rows = read_snapshot(spark, destination, name).where("`group` = 'billing' and topic = 't0' and partition = 1")
        return int(rows.collect()[0].offset)

    assert (offset(first.name), offset(second.name), offset()) == (7, 99, 99)
    assert read_snapshot(spark, destination, table="members").count() == 2
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


def test_a_destination_may_contain_spaces_and_special_characters(
    spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    odd = tmp_path / "a b=ü%20+c[1]{x}*"
    taken = take_snapshot(spark, str(odd), zookeeper_hosts)
    assert_is(model, odd, taken.name)
    assert read_snapshot(spark, str(odd)).count() == len(model.rows[Table.OFFSETS])


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


# Failures leave nothing


@pytest.mark.parametrize("how", ["cut", "stopped"])
def test_losing_zookeeper_during_a_run_is_a_typed_error_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    with ZooKeeperServer() as server, TcpProxy(server.address) as proxy:
        client = KazooClient(server.address)
        client.start()
        plant(client, ["billing"])

        def told(step: str) -> None:
            if step != "writing":
                return
            if how == "stopped":
                server.stop()
            else:
                proxy.refuse()
                proxy.cut()

        with pytest.raises(UnavailableError, match=proxy.address):
            take_snapshot(spark, str(tmp_path), SourceOptions(zookeeper=proxy.address, timeout=1.0), on_progress=told)
        assert left(tmp_path) == []
        server.start()
        proxy.heal()
        proxy.accept()
        taken = take_snapshot(spark, str(tmp_path), proxy.address)
        client.stop()
        client.close()
        assert taken.groups == 1


def test_without_zookeeper_nothing_is_started(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        take_snapshot(spark, str(tmp_path), SourceOptions(zookeeper="127.0.0.1:1", timeout=0.5))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("destination", ["/proc/zkgroups", "{}/file", "{}/file/below", "no-such-scheme://x/y"])
def test_an_unwritable_destination_is_a_typed_error(
    spark: SparkSession, zookeeper_hosts: str, tmp_path: Path, destination: str
) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SparkJobError) as caught:
        take_snapshot(spark, destination.format(tmp_path), zookeeper_hosts)
    assert "cannot be" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert left(tmp_path) == []


def test_moved_tables_are_moved_back_if_a_later_one_fails(
    spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    (tmp_path / "table=offsets").write_text("mine")
    with pytest.raises(SparkJobError, match="could not be moved into"):
        take_snapshot(spark, str(tmp_path), zookeeper_hosts)
    assert left(tmp_path) == []
    (tmp_path / "table=offsets").unlink()
    taken = take_snapshot(spark, str(tmp_path), zookeeper_hosts)
    assert assert_complete(model, tmp_path) == [taken.name]


class Stop(BaseException):
    """Raised by a signal handler, as the command does for SIGTERM."""


@pytest.mark.parametrize("stop", [Stop, KeyboardInterrupt])
def test_a_signal_during_a_job_cancels_it_and_leaves_nothing(
    spark: SparkSession, zookeeper: Any, zookeeper_hosts: str, model: Model, tmp_path: Path, stop: type[BaseException]
) -> None:
    """The session stays usable: the next query gets its own result."""

    def handle(_signal: int, _frame: Any) -> None:
        raise stop

    context = spark.sparkContext
    usual = signal.signal(signal.SIGUSR1, handle)
    with TcpProxy(zookeeper.address) as proxy:

        def told(step: str) -> None:
            if step == "writing":
                proxy.delay(0.2)
                threading.Thread(target=signal_when_tasks_run, daemon=True).start()

        def signal_when_tasks_run() -> None:
            while not appeared(tmp_path, "_unfinished/*/table=offsets/_temporary/0/_temporary/*/*.parquet"):
                time.sleep(0.01)
            proxy.delay(3600.0)  # the job is still running when the signal arrives
            os.kill(os.getpid(), signal.SIGUSR1)

        source = SourceOptions(zookeeper=f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}", timeout=60.0)
        try:
            with pytest.raises(stop):
                take_snapshot(spark, str(tmp_path), source, on_progress=told)
        finally:
            signal.signal(signal.SIGUSR1, usual)
    assert left(tmp_path) == []
    assert spark.range(7).count() == 7
    while context.statusTracker().getActiveJobsIds():  # the event comes a moment after the end of a job
        time.sleep(0.01)
    assert left(tmp_path) == []


def test_a_progress_callback_may_stop_a_snapshot(
    spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    def told(step: str) -> None:
        if step == "writing":
            raise Stop

    with pytest.raises(Stop):
        take_snapshot(spark, str(tmp_path), zookeeper_hosts, on_progress=told)
    assert left(tmp_path) == []


# Killed and concurrent runs


@pytest.fixture
def layout(spark: SparkSession, tmp_path: Path) -> Layout:
    return Layout(spark, str(tmp_path))


def written(layout: Layout, destination: Path, name: str) -> UnfinishedSnapshot:
    """Write a snapshot without moving it into place."""
    unfinished = layout.begin(parse_timestamp(name))
    assert unfinished.name == name
    return filled(unfinished, name)


def filled(unfinished: UnfinishedSnapshot, name: str) -> UnfinishedSnapshot:
    """Write a file for each table."""
    for table in IN_ORDER:
        folder = Path(unfinished.table(table).removeprefix("file:"))
        folder.mkdir()
        (folder / "part-0.parquet").write_text(name)
    return unfinished


@pytest.mark.parametrize("moved", range(len(IN_ORDER) + 1))
def test_a_run_killed_while_moving_leaves_no_snapshot_and_is_deleted_after_a_week(
    spark: SparkSession, layout: Layout, tmp_path: Path, moved: int
) -> None:
    for name in (LONG_AGO, NOT_SO_LONG_AGO):
        unfinished = written(layout, tmp_path, name)
        for table in IN_ORDER[:moved]:
            unfinished._move(table)
    assert list(tmp_path.glob("table=offsets/*")) == [] or moved == len(IN_ORDER), "whoever sees offsets sees all"
    assert layout.snapshots() == []
    assert layout.latest() is None
    assert not layout.has(LONG_AGO)
    names = sorted({path.name for path in tmp_path.glob("table=*/*")})
    assert names == ([f"snapshot={LONG_AGO}", f"snapshot={NOT_SO_LONG_AGO}"] if moved else [])
    layout.begin(datetime.now(UTC)).discard()
    assert {path.name for path in tmp_path.glob("table=*/*")} <= {f"snapshot={NOT_SO_LONG_AGO}"}
    assert [path.name.partition("-")[0] for path in tmp_path.glob("_unfinished/*")] == [NOT_SO_LONG_AGO]


def test_runs_started_in_the_same_millisecond_get_different_names(layout: Layout, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    one, other = (layout.begin(now) for _ in range(2))
    assert one.name == timestamp_text(now) != other.name
    other.discard()
    one.discard()
    done = written(layout, tmp_path, timestamp_text(now))
    done.finish()
    assert layout.begin(now).name != done.name, "a finished snapshot keeps its name"


def test_concurrent_snapshots_with_one_spark_are_all_complete(
    spark: SparkSession, model: Model, zookeeper_hosts: str, tmp_path: Path
) -> None:
    source = SourceOptions(zookeeper=zookeeper_hosts)
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda _: take_snapshot(spark, str(tmp_path), source), range(4)))
    assert len({each.name for each in taken}) == 4
    for each in taken:
        assert_is(model, tmp_path, each.name)
    assert spark.sparkContext.pythonExec == "python3", "as it was"
    assert len(spark.sparkContext.getJobTags()) == 0


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


def test_the_number_of_tasks_is_limited_on_many_cores(
    spark: SparkSession, model: Model, zookeeper_hosts: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(SparkContext, "defaultParallelism", 2000)
    monkeypatch.setattr(MODULE, "MAX_PARALLELISM", 3)
    assert take_snapshot(spark, str(tmp_path), zookeeper_hosts).groups == model.groups


def test_complete_snapshots_and_foreign_files_are_never_deleted(layout: Layout, tmp_path: Path) -> None:
    finished = written(layout, tmp_path, LONG_AGO)
    finished.finish()
    others = [
        f"_unfinished/{LONG_AGO}",
        f"_unfinished/{LONG_AGO}-x",
        f"_unfinished/{LONG_AGO}-0123456g",
        "_unfinished/20209999T000000.000Z-01234567",
        "_unfinished/mine",
        f"snapshot={LONG_AGO}",
        f"table=others/snapshot={LONG_AGO}",
        "table=offsets/snapshot=20200101T000000.000Z",
        "table=owners/mine",
    ]
    for name in (*others, f"_unfinished/{LONG_AGO}-01234567"):  # left by a completed snapshot
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("mine")
    layout.begin(datetime.now(UTC)).discard()
    assert all((tmp_path / name / "file").read_text() == "mine" for name in others)
    assert not (tmp_path / f"_unfinished/{LONG_AGO}-01234567").exists()
    assert layout.snapshots() == [LONG_AGO]
    assert all((tmp_path / f"table={table}/snapshot={LONG_AGO}/part-0.parquet").exists() for table in Table)


def test_a_run_with_a_taken_name_fails_without_damage(layout: Layout, tmp_path: Path) -> None:
    first = written(layout, tmp_path, NOT_SO_LONG_AGO)
    (tmp_path / "_unfinished" / f"{NOT_SO_LONG_AGO}-01234567").mkdir()
    second = filled(UnfinishedSnapshot(layout, NOT_SO_LONG_AGO, f"{NOT_SO_LONG_AGO}-01234567"), NOT_SO_LONG_AGO)
    first.finish()
    with pytest.raises(SparkJobError, match="already exists"):
        second.finish()
    second.discard()
    assert layout.snapshots() == [NOT_SO_LONG_AGO]
    assert len(list(tmp_path.glob("table=*/*/*.parquet"))) == 3
    assert list(tmp_path.glob("_unfinished/*")) == []


def test_two_concurrent_runs_in_one_destination_succeed(
    spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: take_snapshot(spark, str(tmp_path), zookeeper_hosts), range(2)))
    assert (
        assert_complete(model, tmp_path) == snapshot_names(spark, str(tmp_path)) == sorted(each.name for each in both)
    )
    assert len({each.name for each in both}) == 2
    assert list(tmp_path.glob("_unfinished/*")) == []


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
    conf.unset("fs.reluctant.impl")
    conf.setClassLoader(usual)


def test_a_failed_rename_is_an_error_and_leaves_nothing(
    spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path, reluctant: Any
) -> None:
    destination = f"reluctant://{tmp_path}"
    for allowed in range(3):
        reluctant.setInt(None, allowed)
        with pytest.raises(SparkJobError, match=r"could not be moved into .* was not renamed to"):
            take_snapshot(spark, destination, zookeeper_hosts)
        assert left(tmp_path) == []
        assert snapshot_names(spark, destination) == []
    reluctant.setInt(None, 3)
    taken = take_snapshot(spark, destination, zookeeper_hosts)
    assert assert_complete(model, tmp_path) == snapshot_names(spark, destination) == [taken.name]
