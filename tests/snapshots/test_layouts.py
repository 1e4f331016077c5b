"""Snapshots and audits of the offsets of other systems, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl

import zkgroups
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.audit.audit import AuditResult, run_audit
from zkgroups.audit.recorded_commits import read_commits
from zkgroups.exceptions import RefusedError
from zkgroups.snapshots.local_snapshot import ArrowLayout, take_snapshot
from zkgroups.snapshots.snapshot import survey
from zkgroups.snapshots.verify import verify
from zkgroups.tables.source_options import SourceOptions

from ..core.layouts.written import WRITERS, Tree, storm_of_one_topic, trident_batch
from ..lasting import lasting_client
from ..spark.commands import command_on

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
    assert [each.findings for each in verify(ArrowLayout.at(str(tmp_path)))] == [()]


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


def test_offsets_of_another_system_are_restored_to_legacy_groups_only_if_their_cluster_is_named(
    put: Put, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    """A legacy group may have the name of a spout by chance."""
    put(storm_of_one_topic("spout", ORDERS))
    destination, audit, named = tmp_path / "groups", tmp_path / "audit", f"{zookeeper_hosts} {STORM}"
    with command_on(None, zookeeper_hosts) as run:
        assert run("snapshot", destination, "--layout", STORM, "--engine", "local").code == 0
        assert run("audit", audit, "--layout", STORM, "--engine", "local", "--once").code == 0
        shown = run("audit", audit, "--show", "-o", "json").json["commits"]
        assert {row["layout"] for row in shown} == {STORM}
        for options in (
            ("import", "--from-snapshot", destination, "--execute"),
            ("reset", "spout", "--all-topics", "--from-audit", audit, "--by-duration", "PT0S"),
        ):
            refused = run("offsets", *options)
            assert (refused.code, f"add --cluster '{named}'" in refused.err) == (4, True), refused.err
        assert list(registry.offsets()) == []
        assert run("offsets", "export", "spout", "--from-snapshot", destination).code == 0
        done = run("offsets", "import", "--from-snapshot", destination, "--cluster", named, "--execute")
        assert done.code == 0
    found = [each for each in registry.offsets() if isinstance(each, CommittedOffset)]
    assert {each.at: each.offset for each in found} == ORDERS
