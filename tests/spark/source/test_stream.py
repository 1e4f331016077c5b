"""`spark.readStream.format("zkgroups")`: the contents of batches, starting positions, and requests to the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl
from pyspark.sql import DataFrame, SparkSession

from tests.lasting import lasting_client
from zkgroups import Registry
from zkgroups.exceptions import InvalidOptionError, NotConnectedError, RefusedError, SparkJobError, ZkgroupsException
from zkgroups.spark.errors import translated
from zkgroups.spark.stream import StreamReader
from zkgroups.storage.snapshot_folder import decode_position
from zkgroups.tables.source_options import SourceOptions
from zkgroups.testing import Op, TcpProxy, ZooKeeperServer, fresh_chroot
from zkgroups.zookeeper.zookeeper_source import ensemble_position

from ..conftest import Read, plant

pytestmark = pytest.mark.zookeeper

Commits = dict[str, int]
"""Collects commits by group, topic and partition."""

TREE = {f"{group}/offsets/{topic}/{number}": b"7" for group in ("g", "h") for topic in "ab" for number in range(10)}


SLOW_WORKER = "Python worker failed to connect back"
"""Spark waits ten seconds for a new Python process, and has no setting for more. A busy machine may take longer."""


class Follower:
    """A stream with a checkpoint, which is restarted for each batch."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self.batches: list[int] = []

    def look(self, zookeeper: str, *, fail: bool = False, **options: Any) -> Commits:
        """Return the commits since the last call; the callback may fail after reading."""
        given = {"zookeeper": zookeeper, "parallelism": "2", "timeout": "20"} | options
        stream = self._spark.readStream.format("zkgroups").options(**given).load()
        found: Commits = {}

        def take(rows: DataFrame, batch: int) -> None:
            self.batches.append(batch)
            read = rows.select("group", "topic", "partition", "offset").collect()
            batch_of_them = {f"{row.group}/{row.topic}/{row.partition}": row.offset for row in read}
            assert len(batch_of_them) == len(read)
            found.update(batch_of_them)
            assert not fail, "as asked"

        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(self._checkpoint))
        while True:
            try:
                with translated("it failed"):
                    query = writer.trigger(availableNow=True).start()
                    query.awaitTermination()
            except SparkJobError as error:
                if SLOW_WORKER not in str(error):
                    raise
            else:
                return found


@pytest.fixture
def follower(spark: SparkSession, tmp_path: Path) -> Follower:
    return Follower(spark, tmp_path / "checkpoint")


def commit(client: Any, *paths: str, offset: int) -> None:
    for path in paths:
        client.set(f"/consumers/{path.replace('/', '/offsets/', 1)}", str(offset).encode())


def test_the_first_batch_has_all_offsets_and_later_ones_new_commits(
    follower: Follower, proxy: TcpProxy, zookeeper_hosts: str, raw: Any, read: Read
) -> None:
    hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
    plant(raw, TREE | {"g/offsets/a/lost": b"7", "g/offsets/b/3": b"nonsense"})

    def reads() -> int:
        kinds = proxy.requests_by_type
        return kinds[Op.MULTI_READ] + kinds[Op.GET_DATA]

    read(zookeeper=hosts, parallelism=2).collect()
    once = reads()
    found = follower.look(hosts)
    assert len(found) == 41
    assert (found["h/b/9"], found["g/b/3"], found["g/a/None"]) == (7, None, None)
    assert reads() == 2 * once

    commit(raw, "g/a/1", "h/b/2", offset=8)
    assert follower.look(hosts) == {"g/a/1": 8, "h/b/2": 8}
    assert reads() == 3 * once
    raw.delete("/consumers/g/offsets/a/2")
    assert follower.look(hosts) == {}
    assert follower.batches == [0, 1, 2]


def test_a_failed_batch_is_repeated_with_current_offsets(follower: Follower, zookeeper_hosts: str, raw: Any) -> None:
    plant(raw, TREE)
    follower.look(zookeeper_hosts)
    commit(raw, "g/a/1", "h/b/2", offset=8)
    with pytest.raises(ZkgroupsException, match="as asked"):
        follower.look(zookeeper_hosts, fail=True)
    commit(raw, "h/b/2", "h/b/3", offset=9)
    found = follower.look(zookeeper_hosts)
    assert found == {"g/a/1": 8, "h/b/2": 9, "h/b/3": 9}
    assert follower.batches[:3] == [0, 1, 1]


def test_a_stream_starts_at_the_given_position(follower: Follower, zookeeper_hosts: str, raw: Any) -> None:
    plant(raw, TREE)
    start = hex(raw.set("/consumers/g/offsets/a/4", b"8").mzxid - 1)
    assert follower.look(zookeeper_hosts, startingZxid=start) == {"g/a/4": 8}
    commit(raw, "g/a/5", offset=9)
    assert follower.look(zookeeper_hosts, startingZxid=start) == {"g/a/5": 9}


def test_another_zookeeper_is_refused_unless_start_over_is_set(
    follower: Follower, zookeeper: Any, zookeeper_hosts: str, raw: Any
) -> None:
    """With more transactions than the stream has seen, and with groups that are as old as those of the first one."""
    with fresh_chroot(zookeeper) as other, lasting_client(other) as client:
        plant(client, {"g/offsets/a/0": b"5"})
        plant(raw, TREE)
        follower.look(zookeeper_hosts)
        with pytest.raises(RefusedError, match="was replaced or wiped: this stream has read up to zxid 0x"):
            follower.look(other)
        assert follower.look(other, startOver="true") == {"g/a/0": 5}
        commit(client, "g/a/0", offset=6)
        assert follower.look(other) == {"g/a/0": 6}


def test_a_batch_of_a_replaced_zookeeper_is_skipped_on_starting_over(
    follower: Follower, zookeeper_hosts: str, raw: Any
) -> None:
    """It was wiped: it has fewer transactions than the stream has seen."""
    plant(raw, TREE)
    with pytest.raises(ZkgroupsException, match="as asked"):
        follower.look(zookeeper_hosts, fail=True)
    with ZooKeeperServer() as server, lasting_client(server.address) as client:
        plant(client, {"g/offsets/a/0": b"5"})
        with pytest.raises(RefusedError, match="was replaced or wiped"):
            follower.look(server.address)
        assert follower.look(server.address, startOver="true") == {"g/a/0": 5}


def test_without_new_transactions_nothing_is_read() -> None:
    with ZooKeeperServer() as server:
        reader = StreamReader(SourceOptions(zookeeper=server.address))
        try:
            begin = reader.latestOffset(reader.initialOffset())
            assert reader.latestOffset(begin) == begin
            assert reader.partitions(begin, begin) == []
        finally:
            reader.stop()


def test_a_stale_server_is_refused(zookeeper_hosts: str, registry: Registry) -> None:
    reader = StreamReader(SourceOptions(zookeeper=zookeeper_hosts, parallelism=1))
    try:
        begin = reader.initialOffset()
        ahead = begin | {"zxid": ensemble_position(registry).zxid + 1000}
        with pytest.raises(RefusedError):
            reader.partitions(begin, ahead)
        [share] = reader.partitions(begin, reader.latestOffset(begin))
        object.__setattr__(share, "until", decode_position(ahead))
        with pytest.raises(NotConnectedError, match=r"a server of .* is at zxid 0x"):
            list(reader.read(share))
    finally:
        reader.stop()


def test_a_forbidden_node_has_a_row_without_zxid_in_each_batch(zookeeper_hosts: str, raw: Any) -> None:
    plant(raw, {"g/offsets/a/0": b"5", "g/offsets/a/1": b"5"})
    raw.set_acls("/consumers/g/offsets/a/0", [make_digest_acl("ops", "secret", all=True)])
    reader = StreamReader(SourceOptions(zookeeper=zookeeper_hosts, parallelism=1))
    try:
        begin = reader.latestOffset()
        raw.create("/something")
        [share] = reader.partitions(begin, reader.latestOffset(begin))
        found = [row for batch in reader.read(share) for row in batch.to_pylist()]
    finally:
        reader.stop()
    assert [(row["partition"], row["zxid"], row["raw"]) for row in found] == [(0, None, None)]
    assert found[0]["problem"].startswith("/consumers/g/offsets/a/0: ")


def test_unsupported_streams_are_refused(tmp_path: Path, follower: Follower) -> None:
    for options, words in (
        ({"table": "owners"}, "only offsets can be streamed"),
        ({"startingZxid": "yesterday"}, "it must be earliest, latest, or a transaction number"),
        ({"startingZxid": hex(2**63)}, "it must be earliest, latest, or a transaction number"),
        ({"startOver": "perhaps"}, "it must be true or false"),
    ):
        with pytest.raises(InvalidOptionError, match=words):
            StreamReader(SourceOptions.parse({"zookeeper": "127.0.0.1:1"} | options))
    with pytest.raises(InvalidOptionError, match="a data directory cannot be streamed"):
        StreamReader(SourceOptions(data_dir=str(tmp_path)))
    with pytest.raises(InvalidOptionError, match="only offsets can be streamed"):
        follower.look("127.0.0.1:1", table="members")


def test_a_batch_read_refuses_a_starting_position(read: Read) -> None:
    with pytest.raises(InvalidOptionError), translated("it failed"):
        read(startingZxid="latest").collect()
