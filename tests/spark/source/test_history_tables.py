"""The tables of a history: Spark's tasks read parts of the logs, and together all that one process reads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.datadir.small_directories import named
from tests.datadir.writers import under_load
from tests.testing.waiting import eventually
from zkgroups.core.history.events import Commit, OwnerChange
from zkgroups.core.history_columns import HistoryTable
from zkgroups.core.times import from_ms
from zkgroups.core.znodes.session_ids import session_hex
from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.history.gaps import LogGap
from zkgroups.datadir.history.reader import HistoryReader
from zkgroups.exceptions import DamagedDataError, InvalidOptionError
from zkgroups.spark import HistoryOptions
from zkgroups.spark.errors import translated
from zkgroups.testing import ZooKeeperServer

from .rows import Rows

pytestmark = pytest.mark.zookeeper

MANY = 1000
"""More tasks than logs: each task reads one log."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a server that was killed under load, with many small logs."""
    folder = tmp_path_factory.mktemp("history") / "data"
    often = ("-Dzookeeper.snapCount=400", "-Dzookeeper.preAllocSize=512")
    server = ZooKeeperServer(data_dir=folder, jvm_options=often)
    with server, under_load(server) as writers:
        assert eventually(lambda: sum(writer.written for writer in writers) > 2000, timeout=100)
        server.kill()
    return folder


def rows(spark: SparkSession, table: str, data: Path, **options: Any) -> Rows:
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


@pytest.mark.parametrize("parallelism", [1, 3, MANY])
def test_the_tables_have_the_events_that_one_process_reads(spark: SparkSession, data: Path, parallelism: int) -> None:
    found = list(events(data))
    commits = [commit_row(event) for event in found if isinstance(event, Commit)]
    owners = [owner_row(event) for event in found if isinstance(event, OwnerChange)]
    of_spark = rows(spark, "commits", data, parallelism=parallelism)
    assert of_spark == sorted(commits, key=lambda row: (row["zxid"], repr(row)))
    of_spark = rows(spark, "ownership", data, parallelism=parallelism)
    assert of_spark == sorted(owners, key=lambda row: (row["zxid"], repr(row)))
    assert len(commits) > 1000 < 10 * len(owners)


def test_each_log_can_be_a_task(spark: SparkSession, data: Path) -> None:
    read = spark.read.format("zkgroups").options(table="commits", dataDir=str(data), parallelism=MANY).load()
    assert read.rdd.getNumPartitions() == len(list((data / "version-2").glob("log.*"))) > 5


def test_groups_topics_and_the_period_are_chosen(spark: SparkSession, data: Path) -> None:
    every = rows(spark, "commits", data)
    since, until = every[len(every) // 3]["zxid"], every[len(every) // 2]["zxid"]
    chosen = rows(spark, "commits", data, groups="g1.?", topics="t[12]", since=hex(since), until=hex(until))
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
    every, last = rows(spark, "commits", data), named(missing) - 1
    for parallelism in (1, MANY):
        with pytest.raises(DamagedDataError, match="transactions are missing between"), translated("it was not read"):
            rows(spark, "commits", tmp_path / "copy", parallelism=parallelism)
        later = rows(spark, "commits", tmp_path / "copy", parallelism=parallelism, since=hex(after))
        assert [row["zxid"] for row in later] == [row["zxid"] for row in every if row["zxid"] >= after]
        earlier = rows(spark, "commits", tmp_path / "copy", parallelism=parallelism, until=hex(last))
        assert earlier == [row for row in every if row["zxid"] <= last]


def test_logs_that_do_not_go_back_far_enough_are_an_error(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "copy")
    logs = sorted((tmp_path / "copy" / "version-2").glob("log.*"), key=named)
    for log in logs[:3]:
        log.unlink()
    every, first = rows(spark, "commits", data), named(logs[3])
    left = rows(spark, "commits", tmp_path / "copy", parallelism=MANY)
    assert [row["zxid"] for row in left] == [row["zxid"] for row in every if row["zxid"] >= first]
    with pytest.raises(DamagedDataError, match=f"set since to 0x{first:x} or later"), translated("it was not read"):
        rows(spark, "commits", tmp_path / "copy", since=hex(first - 1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "commits"}, "dataDir is not given, but commits are read from transaction logs"),
        ({"table": "commits", "dataDir": "/d", "zookeeper": "zk:1"}, "option is 'zookeeper', but no such option"),
        ({"table": "commits", "dataDir": "/d", "chroot": "kafka"}, "chroot is 'kafka', but it must be a path"),
        ({"table": "commits", "dataDir": "/d", "since": "2h"}, "since is '2h', but it must be a time like"),
        ({"table": "commits", "dataDir": "/d", "until": "7"}, "until is '7', but it must be a time like"),
        ({"table": "commits", "dataDir": "/d", "groups": "("}, "groups is '(', but it is not a regular expression"),
        ({"table": "commits", "dataDir": "/d", "parallelism": "0"}, "parallelism is 0, but it must be from 1"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        HistoryOptions.parse(options)
    assert str(caught.value).startswith(said)


def test_options_are_parsed() -> None:
    given = {"Table": "Ownership", "DATADIR": "/d", "chroot": "/kafka/", "parallelism": "7"}
    options = HistoryOptions.parse(given)
    assert options == HistoryOptions(table=HistoryTable.OWNERSHIP, data_dir="/d", chroot="/kafka/", parallelism=7)
    assert options.shown_cluster == "/d/kafka"
