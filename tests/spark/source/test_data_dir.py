"""The files of a server: the option `dataDir`, and the tables of a history. Each task reads a part of the logs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.datadir.small_directories import named
from zkgroups.core.history.events import Commit, OwnerChange
from zkgroups.core.session_lifetime import session_hex
from zkgroups.core.times import from_ms
from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.history import HistoryReader, LogGap
from zkgroups.exceptions import DamagedDataError, NotFoundError
from zkgroups.snapshots.layout import listing
from zkgroups.spark import SourceOptions, read_snapshot, survey, take_snapshot
from zkgroups.spark.errors import translated
from zkgroups.spark.snapshots import Layout
from zkgroups.testing import ZooKeeperServer

from ...lasting import lasting_client
from ..conftest import plant
from .conftest import Rows

pytestmark = pytest.mark.zookeeper

MANY = 1000
"""More tasks than logs: each task reads one log."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a server that was killed, with many small logs of commits, claims and releases."""
    folder = tmp_path_factory.mktemp("history") / "data"
    groups = [f"g{number}" for number in range(12)]
    server = ZooKeeperServer(data_dir=folder, jvm_options=("-Dzookeeper.snapCount=40", "-Dzookeeper.preAllocSize=64"))
    with server:
        with lasting_client(server.address) as client:
            plant(client, {f"{group}/offsets/t{topic}/0": b"0" for group in groups for topic in range(4)})
            plant(client, {f"{group}/owners/t1": b"" for group in groups})
            plant(client, {f"{group}/ids/me": b"{}" for group in groups}, ephemeral=True)
            for number in range(1, 181):
                path = f"/consumers/{groups[number % 12]}"
                change = client.transaction()
                for topic in range(4):
                    change.set_data(f"{path}/offsets/t{topic}/0", b"%d" % (number % 50))
                if number // 12 % 2:
                    change.delete(f"{path}/owners/t1/0")
                else:
                    change.create(f"{path}/owners/t1/0", b"me-0", ephemeral=True)
                change.commit()
        server.kill()
    return folder


def history(spark: SparkSession, table: str, data: Path, **options: Any) -> Rows:
    read = spark.read.format("zkgroups").options(table=table, dataDir=str(data), cluster="it", **options).load()
    return sorted((row.asDict() for row in read.collect()), key=lambda row: (row["zxid"], repr(row)))


def commit_row(commit: Commit) -> dict[str, Any]:
    instance, owner = commit.instance, commit.owner
    return {
        "cluster": "it",
        "group": commit.group,
        "topic": commit.topic,
        "partition": commit.partition,
        "event": commit.action.value,
        "before": commit.before,
        "offset": commit.offset,
        "commit_count": commit.version if commit.version >= 0 else None,
        "committed_at": naive(commit.time_ms),
        "zxid": commit.zxid,
        "session": session_hex(commit.session),
        "instance": instance.id if instance else None,
        "host": None,
        "dialect": instance.dialect.value if instance and instance.dialect else None,
        "owner": owner.id if owner else None,
        "owner_session": session_hex(owner.session) if owner and owner.session else None,
        "owned": commit.is_of_owner,
        "registered": instance is not None,
        "went_back": commit.went_back,
        "gap": False,
        "problem": commit.problem,
    }


def owner_row(change: OwnerChange) -> dict[str, Any]:
    holder, by = change.holder, change.instance
    return {
        "cluster": "it",
        "group": change.group,
        "topic": change.topic,
        "partition": change.partition,
        "event": change.action.value,
        "owner": change.owner.id,
        "owner_session": session_hex(change.owner.session or 0),
        "claimed_at": naive(change.owner.claimed_ms),
        "claimed_zxid": change.owner.claimed_zxid,
        "changed_at": naive(change.time_ms),
        "zxid": change.zxid,
        "session": session_hex(change.session),
        "instance": holder.id if holder else None,
        "host": None,
        "dialect": holder.dialect.value if holder and holder.dialect else None,
        "by": by.id if by else None,
    }


def naive(ms: int) -> Any:
    """Return a time as Spark collects it, in its own time zone."""
    found = from_ms(ms)
    assert found is not None
    return found.astimezone().replace(tzinfo=None)


def events(data: Path) -> Iterator[Commit | OwnerChange]:
    """All events of one reader."""
    for item in HistoryReader(DataDir(str(data))).items():
        assert not isinstance(item, LogGap)
        if isinstance(item, Commit | OwnerChange):
            yield item


def test_the_tables_have_the_events_that_one_process_reads(spark: SparkSession, data: Path) -> None:
    found = list(events(data))
    commits = [commit_row(event) for event in found if isinstance(event, Commit)]
    owners = [owner_row(event) for event in found if isinstance(event, OwnerChange)]
    of_spark = history(spark, "commits", data, parallelism=3)
    assert of_spark == sorted(commits, key=lambda row: (row["zxid"], repr(row)))
    of_spark = history(spark, "ownership", data, parallelism=3)
    assert of_spark == sorted(owners, key=lambda row: (row["zxid"], repr(row)))
    assert len(commits) > 700
    assert len(owners) > 150
    each_log = spark.read.format("zkgroups").options(table="commits", dataDir=str(data), parallelism=MANY).load()
    assert each_log.rdd.getNumPartitions() == len(list((data / "version-2").glob("log.*"))) > 5


def test_groups_topics_and_the_period_are_chosen(spark: SparkSession, data: Path) -> None:
    every = history(spark, "commits", data)
    since, until = every[len(every) // 3]["zxid"], every[len(every) // 2]["zxid"]
    chosen = history(spark, "commits", data, groups="g1.?", topics="t[12]", since=hex(since), until=hex(until))
    assert chosen == [
        row
        for row in every
        if row["group"].startswith("g1") and row["topic"] in ("t1", "t2") and since <= row["zxid"] <= until
    ]
    assert len(chosen) > 10


def test_missing_transactions_are_an_error_unless_they_are_not_asked_for(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(data, tmp_path / "copy")
    logs = sorted((tmp_path / "copy" / "version-2").glob("log.*"), key=named)
    missing, after = logs[3], named(logs[4])
    missing.unlink()
    every, last = history(spark, "commits", data), named(missing) - 1
    with pytest.raises(DamagedDataError, match="transactions are missing between"), translated("it was not read"):
        history(spark, "commits", tmp_path / "copy", parallelism=MANY)
    later = history(spark, "commits", tmp_path / "copy", parallelism=MANY, since=hex(after))
    assert [row["zxid"] for row in later] == [row["zxid"] for row in every if row["zxid"] >= after]
    earlier = history(spark, "commits", tmp_path / "copy", parallelism=MANY, until=hex(last))
    assert earlier == [row for row in every if row["zxid"] <= last]


def test_logs_that_do_not_go_back_far_enough_are_an_error(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "copy")
    logs = sorted((tmp_path / "copy" / "version-2").glob("log.*"), key=named)
    for log in logs[:3]:
        log.unlink()
    every, first = history(spark, "commits", data), named(logs[3])
    left = history(spark, "commits", tmp_path / "copy", parallelism=MANY)
    assert [row["zxid"] for row in left] == [row["zxid"] for row in every if row["zxid"] >= first]
    with pytest.raises(DamagedDataError, match=f"set since to 0x{first:x} or later"), translated("it was not read"):
        history(spark, "commits", tmp_path / "copy", since=hex(first - 1))


# The option `dataDir`


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server with groups of all kinds in a chroot. The sessions of their members survive its restarts."""
    data = tmp_path_factory.mktemp("files") / "data"
    with ZooKeeperServer(data_dir=data) as server:
        with lasting_client(server.address) as client:
            client.ensure_path("/kafka")
        with lasting_client(f"{server.address}/kafka") as client:
            offsets = {
                f"{group}/offsets/{topic}/{n}": b"%d" % n for group in "abc" for topic in "tu" for n in range(12)
            }
            plant(client, offsets | {"a/offsets/t/5": b"no number", "a/offsets/u/x": b"7"})
            server.restart()
            both = {"a/owners/t/5": b"scala-0", "a/owners/b't'/1001-5": b"pykafka", "b/owners/t/1": b"scala-0"}
            registered = {"a/ids/scala": b'{"version":1,"subscription":{"t":2},"pattern":"static"}', "b/ids/x": b"["}
            plant(client, both | registered, ephemeral=True)
            plant(client, {"d/offsets/t/0": b"9"})
            yield server


def rows(spark: SparkSession, table: str, **options: Any) -> Rows:
    read = spark.read.format("zkgroups").options(table=table, cluster="it", **options).load().drop("read_at")
    return sorted((row.asDict() for row in read.collect()), key=repr)


def test_the_rows_read_from_files_equal_those_of_the_server(spark: SparkSession, server: ZooKeeperServer) -> None:
    """The files of a running server are readable, too."""
    files, some = {"dataDir": str(server.data_dir), "chroot": "/kafka"}, {"groups": "[ab]", "topics": "t"}
    for table, count in {"offsets": 74, "owners": 3, "members": 2}.items():
        of_server = rows(spark, table, zookeeper=f"{server.address}/kafka", parallelism=1)
        assert rows(spark, table, **files, parallelism=3) == of_server
        chosen = [row for row in of_server if row["group"] in "ab" and row.get("topic", "t") == "t"]
        assert rows(spark, table, **files, **some, parallelism=1) == chosen
        assert len(of_server) == count


def test_a_snapshot_from_files_has_one_consistent_state(
    spark: SparkSession, server: ZooKeeperServer, tmp_path: Path
) -> None:
    files = SourceOptions(data_dir=str(server.data_dir), chroot="/kafka")
    found = survey(files)
    assert found == survey(f"{server.address}/kafka")
    taken = take_snapshot(spark, str(tmp_path), files)
    assert (taken.groups, taken.offsets, taken.owners, taken.members, taken.forbidden) == (4, 74, 3, 2, 0)
    assert {row.cluster for row in read_snapshot(spark, str(tmp_path)).collect()} == {f"{server.data_dir}/kafka"}
    state = DataDir(str(server.data_dir)).state()
    layout = Layout(spark, str(tmp_path))
    [listed], chosen = listing(layout), layout.choose_in_cluster()
    assert listed.zxid == chosen.zxid == state.zxid


def test_unreadable_files_are_a_typed_error_and_leave_no_snapshot(
    spark: SparkSession, server: ZooKeeperServer, tmp_path: Path
) -> None:
    data, destination = tmp_path / "data", tmp_path / "destination"
    with pytest.raises(NotFoundError, match=r"the directory .* does not exist"), translated("it was not read"):
        rows(spark, "offsets", dataDir=str(data))
    (data / "version-2").mkdir(parents=True)
    (data / "version-2" / "snapshot.7").write_bytes(b"")
    with pytest.raises(DamagedDataError, match="it has no snapshot to start from"), translated("it was not read"):
        rows(spark, "offsets", dataDir=str(data))
    with pytest.raises(DamagedDataError, match="it has no snapshot to start from"):
        take_snapshot(spark, str(destination), SourceOptions(data_dir=str(data)))
    assert not destination.exists()
