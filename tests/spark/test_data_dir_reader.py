"""The option `dataDir`: rows from a server's files equal those of the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from zkgroups.datadir.data_dir import DataDir
from zkgroups.exceptions import DamagedDataError, InvalidOptionError, NotFoundError
from zkgroups.spark import SourceOptions, Table, read_snapshot, survey, take_snapshot
from zkgroups.spark.errors import translated
from zkgroups.spark.snapshots.clusters import choose_in_cluster
from zkgroups.spark.snapshots.listing import listing
from zkgroups.testing import ZooKeeperServer

from ..lasting import lasting_client
from .conftest import plant
from .source.rows import Rows

pytestmark = pytest.mark.zookeeper


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


@pytest.mark.parametrize("table", Table)
def test_the_rows_read_from_files_equal_those_of_the_server(
    spark: SparkSession, server: ZooKeeperServer, table: Table
) -> None:
    """The files of a running server are readable, too."""
    of_server = rows(spark, table, zookeeper=f"{server.address}/kafka")
    files = {"dataDir": str(server.data_dir), "chroot": "/kafka"}
    assert rows(spark, table, **files) == of_server
    assert rows(spark, table, **files, parallelism=3) == of_server
    some = {"groups": "[ab]", "topics": "t"}
    assert rows(spark, table, **files, **some) == rows(spark, table, zookeeper=f"{server.address}/kafka", **some)
    assert len(of_server) == {"offsets": 74, "owners": 3, "members": 2}[table]


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
    [listed], chosen = listing(spark, str(tmp_path)), choose_in_cluster(spark, str(tmp_path))
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "zookeeper is not given, but it must be the address of ZooKeeper"),
        ({"dataDir": "/d", "zookeeper": "zk:1"}, "dataDir is '/d', but zookeeper is set, too"),
        ({"zookeeper": "zk:1", "chroot": "/kafka"}, "chroot is '/kafka', but it needs a dataDir"),
        ({"zookeeper": "zk:1", "zxid": "7"}, "zxid is 7, but it needs a dataDir"),
        ({"zookeeper": "zk:1", "dataLogDir": "/l"}, "dataLogDir is '/l', but it needs a dataDir"),
        ({"dataDir": "/d", "chroot": "kafka"}, "chroot is 'kafka', but it must be a path"),
        ({"dataDir": "/d", "zxid": "latest"}, "zxid is 'latest', but it must be"),
    ],
    ids=str,
)
def test_incompatible_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        SourceOptions.parse(options)
    assert str(caught.value).startswith(said)


def test_a_data_directory_is_parsed_like_other_options() -> None:
    options = SourceOptions(data_dir="/d", data_log_dir="/l", chroot="/kafka/", zxid=0x1F)
    assert options.as_text() == {"dataDir": "/d", "dataLogDir": "/l", "chroot": "/kafka/", "zxid": "31"}
    assert (
        SourceOptions.parse(options.as_text()) == SourceOptions.parse(options.as_text() | {"zxid": "0x1f"}) == options
    )
    assert options.shown_cluster == "/d/kafka"
    with pytest.raises(InvalidOptionError, match="this operation needs a server"):
        options.connect()
