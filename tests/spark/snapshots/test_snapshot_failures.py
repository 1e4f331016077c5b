"""Snapshots that fail or are stopped leave nothing behind."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.lasting import lasting_client
from zkgroups.exceptions import InvalidOptionError, SparkJobError, StorageError, UnavailableError
from zkgroups.spark import SourceOptions, Table, snapshot_names, take_snapshot
from zkgroups.testing import TcpProxy, ZooKeeperServer

from ...testing.waiting import eventually
from ..model import Model, appeared, assert_complete, plant
from .conftest import Take
from .runs import MODULE, left

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]


# Failures leave nothing


@pytest.mark.parametrize("how", ["cut", "stopped"])
def test_losing_zookeeper_during_a_run_is_a_typed_error_and_leaves_nothing(
    take: Take, tmp_path: Path, how: str
) -> None:
    with ZooKeeperServer() as server, TcpProxy(server.address) as proxy:
        with lasting_client(server.address) as client:
            plant(client, ["billing"])

        def told(step: str) -> None:
            if step != "writing":
                return
            if how == "stopped":
                server.stop()
            else:
                proxy.refuse()
                proxy.cut()

        with pytest.raises(UnavailableError, match=f"{proxy.address}|/consumers"):
            take(str(tmp_path), SourceOptions(zookeeper=proxy.address, timeout=1.0), on_progress=told)
        assert left(tmp_path) == []
        server.start()
        proxy.heal()
        proxy.accept()
        taken = take(str(tmp_path), proxy.address)
        assert taken.groups == 1


def test_without_zookeeper_nothing_is_started(take: Take, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        take(str(tmp_path), SourceOptions(zookeeper="127.0.0.1:1", timeout=0.5))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("destination", ["/proc/zkgroups", "{}/file", "{}/file/below", "no-such-scheme://x/y"])
def test_an_unwritable_destination_is_a_typed_error(
    take: Take, zookeeper_hosts: str, tmp_path: Path, destination: str
) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises((SparkJobError, StorageError, InvalidOptionError)) as caught:
        take(destination.format(tmp_path), zookeeper_hosts)
    assert "cannot be" in str(caught.value) or "must be the name of a folder on this machine" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert left(tmp_path) == []


def test_moved_tables_are_moved_back_if_a_later_one_fails(
    take: Take, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    (tmp_path / "table=offsets").write_text("mine")
    with pytest.raises((SparkJobError, StorageError), match="could not be moved into"):
        take(str(tmp_path), zookeeper_hosts)
    assert left(tmp_path) == []
    (tmp_path / "table=offsets").unlink()
    taken = take(str(tmp_path), zookeeper_hosts)
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
                proxy.delay(0.3)
                threading.Thread(target=signal_when_tasks_run, daemon=True).start()

        def signal_when_tasks_run() -> None:
            written = "_unfinished/*/table=offsets/_temporary/0/_temporary/*/*.parquet"
            assert eventually(lambda: appeared(tmp_path, written), timeout=60)
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
    assert eventually(lambda: not context.statusTracker().getActiveJobsIds())
    assert left(tmp_path) == []


def test_a_progress_callback_may_stop_a_snapshot(
    take: Take, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    def told(step: str) -> None:
        if step == "writing":
            raise Stop

    with pytest.raises(Stop):
        take(str(tmp_path), zookeeper_hosts, on_progress=told)
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
