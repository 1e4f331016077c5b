"""Snapshots and audits of the offsets of other systems, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl

import zkgroups
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.audit.audit import AuditResult
from zkgroups.audit.local_audit import read_commits, run_audit
from zkgroups.core.selection import Selection
from zkgroups.core.tables import Table
from zkgroups.exceptions import InvalidOptionError, RefusedError
from zkgroups.snapshots.local_snapshot import take_snapshot
from zkgroups.snapshots.local_verify import verify
from zkgroups.snapshots.snapshot import survey
from zkgroups.tables.source_options import SourceOptions
from zkgroups.tables.table_reader import read_batches
from zkgroups.testing import ZooKeeperServer

from ..core.layouts.written import WRITERS, Tree, storm_of_one_topic, trident_batch
from ..lasting import lasting_client

pytestmark = pytest.mark.zookeeper

STORM = "storm:/kafkastorm"
ORDERS = {TopicPartition("orders", number): 50 + number for number in range(3)}
REFUNDS = {TopicPartition("refunds", 7): 1}
HIDDEN = [make_digest_acl("alice", "secret", all=True)]
MEMBER = b'{"version":1,"subscription":{"orders":1},"pattern":"static"}'

Put = Callable[..., None]


@pytest.fixture
def put(zookeeper_hosts: str) -> Iterator[Put]:
    """Write nodes as another client."""
    with lasting_client(zookeeper_hosts) as client:
        yield partial(_put, client)


def _put(client: Any, tree: Tree, **options: Any) -> None:
    for path, data in tree.items():
        if client.exists(path):
            client.set(path, data)
        else:
            client.create(path, data, makepath=True, **options)


def numbers(rows: Any) -> dict[tuple[str, str, int], int]:
    """The offsets of a table, without its problems."""
    return {
        (row["group"], row["topic"], row["partition"]): row["offset"]
        for row in rows.to_pylist()
        if row["problem"] is None
    }


def of(group: str, offsets: dict[TopicPartition, int]) -> dict[tuple[str, str, int], int]:
    return {(group, at.topic, at.partition): offset for at, offset in offsets.items()}


# Snapshots


@pytest.mark.parametrize("text", WRITERS)
def test_a_snapshot_has_the_offsets_that_the_registry_reads(
    text: str, put: Put, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    for group in ("a", "b"):
        put(WRITERS[text](group, ORDERS) | WRITERS[text]("other", REFUNDS))
    source = SourceOptions(zookeeper=zookeeper_hosts, layout=text, groups="a|b", topics="orders")
    assert survey(source).offsets == 6
    taken = take_snapshot(str(tmp_path), source)
    assert (taken.groups, taken.offsets, taken.owners, taken.members, taken.problems) == (2, 6, 0, 0, 0)
    rows = zkgroups.read_snapshot(str(tmp_path)).to_pylist()
    assert {row["layout"] for row in rows} == {text}
    expected = [each for each in registry.offsets(["a", "b"], layout=text) if isinstance(each, CommittedOffset)]
    columns = ("group", "topic", "partition", "offset", "zxid", "committed_at")
    assert sorted(tuple(row[name] for name in columns) for row in rows) == [
        (each.group, each.at.topic, each.at.partition, each.offset, each.zxid, each.committed_at) for each in expected
    ]
    assert [each.findings for each in verify(str(tmp_path))] == [()]


def test_a_node_that_cannot_be_read_has_a_row_with_its_problem(put: Put, zookeeper_hosts: str, tmp_path: Path) -> None:
    put(storm_of_one_topic("spout", ORDERS) | {"/kafkastorm/spout/partition_8": b"{}"})
    put({"/kafkastorm/spout/partition_9": b"x"}, acl=HIDDEN)
    put({"/kafkastorm/hidden": b""}, acl=HIDDEN)
    taken = take_snapshot(str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts, layout=STORM))
    assert (taken.groups, taken.offsets, taken.problems, taken.forbidden) == (2, 6, 3, 2)
    rows = [row for row in zkgroups.read_snapshot(str(tmp_path)).to_pylist() if row["problem"] is not None]
    assert sorted((row["group"], row["partition"], row["raw"], row["zxid"] is None) for row in rows) == [
        ("hidden", None, None, True),
        ("spout", 8, b"{}", False),
        ("spout", 9, None, True),
    ]
    found = survey(SourceOptions(zookeeper=zookeeper_hosts, layout=STORM))
    assert (found.groups, found.topics, found.offsets, found.forbidden) == (2, 1, 6, 2)


def test_offsets_of_kafka_1_1_0_have_the_members_of_their_groups(
    put: Put, zookeeper_hosts: str, tmp_path: Path
) -> None:
    put(WRITERS["kafka-1.1.0"]("both", ORDERS) | WRITERS["legacy"]("both", REFUNDS) | WRITERS["legacy"]("old", REFUNDS))
    for group in ("both", "old"):
        put({f"/consumers/{group}/ids/anna": MEMBER}, ephemeral=True)
    source = SourceOptions(zookeeper=zookeeper_hosts, layout="kafka-1.1.0")
    found = survey(source)
    assert (found.groups, found.offsets, found.members) == (1, 3, 1)
    take_snapshot(str(tmp_path), source)
    assert numbers(zkgroups.read_snapshot(str(tmp_path))) == of("both", ORDERS)
    members = zkgroups.read_snapshot(str(tmp_path), table="members").to_pylist()
    assert [(row["group"], row["instance"]) for row in members] == [("both", "anna")]


def test_snapshots_of_several_layouts_in_one_destination_are_kept_apart(
    put: Put, zookeeper_hosts: str, tmp_path: Path
) -> None:
    put(WRITERS["legacy"]("a", ORDERS) | WRITERS[STORM]("a", REFUNDS))
    for layout in ("legacy", STORM):
        take_snapshot(str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts, layout=layout))
    of_storm = zkgroups.read_snapshot(str(tmp_path), cluster=f"{zookeeper_hosts} {STORM}")
    assert numbers(of_storm) == of("a", REFUNDS)
    assert numbers(zkgroups.read_snapshot(str(tmp_path), cluster=zookeeper_hosts)) == of("a", ORDERS)
    layout = "/x/{group}/{topic}/{partition}"
    named = SourceOptions(zookeeper=zookeeper_hosts, cluster="prod", layout=f"{layout} --stored last")
    assert named.shown_cluster == f"prod {layout}"


def test_a_layout_travels_through_the_options_of_spark() -> None:
    text = "/x/{group}/{topic}/{partition} --stored last --value json:at"
    source = SourceOptions(zookeeper="zk1:2181", layout=text)
    assert SourceOptions.parse(source.as_text()) == source
    with pytest.raises(InvalidOptionError, match=r"layout.*storm:/PATH"):
        SourceOptions.parse({"zookeeper": "zk1:2181", "layout": "heron:/x"})


# Data directories

SOME = "a|b b|old"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The files of a server, and the rows that it has returned, by layout."""
    folder = tmp_path_factory.mktemp("layouts") / "data"
    with ZooKeeperServer(data_dir=folder) as server:
        with lasting_client(server.address) as client:
            for write in WRITERS.values():
                for group in ("a", "b b"):
                    _put(client, write(group, ORDERS) | write("other", REFUNDS))
            _put(client, {"/kafkastorm/a/partition_9": b"{}", "/consumers/a/offset/orders/1": b"x"})
            _put(client, {"/consumers/old/ids/ben": MEMBER})
            _put(client, {"/consumers/a/ids/anna": MEMBER, "/consumers/a/owners/orders/0": b"anna-0"})
        found = {}
        for text in WRITERS:
            source = SourceOptions(zookeeper=server.address, cluster="it", layout=text, groups=SOME)
            found[text] = {table: rows_of(replace(source, table=table)) for table in Table}
            found[text]["survey"] = survey(source)
    return {"folder": str(folder), "found": found}


def rows_of(source: SourceOptions) -> list[dict[str, Any]]:
    batches = read_batches(source, Selection(source.groups))
    return without_times(row for batch in batches for row in batch.to_pylist())


def without_times(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(({name: row[name] for name in row if name != "read_at"} for row in rows), key=repr)


@pytest.mark.parametrize("text", WRITERS)
def test_the_rows_from_files_are_those_of_the_server(files: dict[str, Any], text: str, tmp_path: Path) -> None:
    source = SourceOptions(data_dir=files["folder"], cluster="it", layout=text, groups=SOME)
    expected = files["found"][text]
    assert len(expected["offsets"]) >= 6
    assert survey(source) == expected["survey"]
    assert take_snapshot(str(tmp_path), source).groups == expected["survey"].groups
    for table in Table:
        rows = zkgroups.read_snapshot(str(tmp_path), table=table).to_pylist()
        assert without_times(rows) == expected[table], table


# Audits


def record(destination: Path, hosts: str, layout: str, **options: Any) -> AuditResult:
    return run_audit(str(destination), SourceOptions(zookeeper=hosts, layout=layout, **options), once=True)


@pytest.mark.parametrize("text", WRITERS)
def test_every_changed_offset_is_recorded_with_the_one_before(
    text: str, put: Put, zookeeper_hosts: str, tmp_path: Path
) -> None:
    put(WRITERS[text]("a", {**ORDERS, **REFUNDS}))
    assert record(tmp_path, zookeeper_hosts, text).commits == 4
    later = {at: offset + 10 for at, offset in ORDERS.items()}
    put(WRITERS[text]("a", later | REFUNDS))
    record(tmp_path, zookeeper_hosts, text)
    rows = read_commits(str(tmp_path)).to_pylist()
    changed = {
        (row["topic"], row["partition"], row["before"], row["offset"])
        for row in rows
        if row["before"] not in (None, row["offset"])
    }
    assert changed == {(at.topic, at.partition, ORDERS[at], offset) for at, offset in later.items()}
    assert {row["layout"] for row in rows} == {text}
    assert record(tmp_path, zookeeper_hosts, text).commits == 0


def test_a_commit_of_trident_is_recorded_although_its_batch_was_written_before(
    put: Put, zookeeper_hosts: str, tmp_path: Path
) -> None:
    at, directory = TopicPartition("orders", 0), "/t/a/user/partition_0"
    put({f"{directory}/{number}": trident_batch(at, 10 * number, 10 * number + 10) for number in (6, 7)})
    put({"/t/a/coordinator/currtx": b"7"})
    record(tmp_path, zookeeper_hosts, "trident:/t")
    put({"/t/a/coordinator/currtx": b"8"})
    record(tmp_path, zookeeper_hosts, "trident:/t")
    rows = read_commits(str(tmp_path)).to_pylist()
    assert [(row["before"], row["offset"]) for row in rows] == [(None, 70), (70, 80)]


def test_an_audit_has_one_layout(put: Put, zookeeper_hosts: str, tmp_path: Path) -> None:
    put(WRITERS["legacy"]("a", ORDERS) | WRITERS["kafka-1.1.0"]("a", ORDERS))
    record(tmp_path, zookeeper_hosts, "kafka-1.1.0")
    for other, named in (("legacy", r"topics \.\*:"), (STORM, f"layout {STORM}:")):
        with pytest.raises(RefusedError, match=f"layout kafka-1.1.0, not .*{named}"):
            record(tmp_path, zookeeper_hosts, other)
    assert len(read_commits(str(tmp_path))) == 3
