"""The offsets of other systems with Spark: the data source, snapshots, audits, and restores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl
from pyspark.sql import SparkSession

from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.audit.local_audit import run_audit as run_local_audit
from zkgroups.snapshots.local_verify import verify
from zkgroups.spark import SourceOptions, read_audit, read_snapshot, run_audit, take_snapshot

from ..core.layouts.written import WRITERS, Tree, storm_of_one_topic
from .commands import Command, command_on
from .conftest import Read

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

STORM = "storm:/kafkastorm"
SPARK_JOB = "spark:/spark/{group} --stored until"
ORDERS = {TopicPartition("orders", number): 50 + number for number in range(3)}
REFUNDS = {TopicPartition("refunds", 7): 1}


@pytest.fixture
def zkgroups(spark: SparkSession, zookeeper_hosts: str) -> Iterator[Command]:
    with command_on(spark, zookeeper_hosts) as command:
        yield command


def put(client: Any, tree: Tree, **options: Any) -> None:
    for path, data in tree.items():
        if client.exists(path):
            client.set(path, data)
        else:
            client.create(path, data, makepath=True, **options)


@pytest.mark.parametrize("text", [SPARK_JOB, "trident:/transactional"])
def test_tasks_share_the_offsets_of_a_layout_although_paths_or_nodes_hide_topics(
    read: Read, raw: Any, registry: Registry, text: str
) -> None:
    for group in ("a", "b"):
        put(raw, WRITERS[text](group, ORDERS | REFUNDS))
    rows = [row.asDict() for row in read(layout=text, parallelism=3).collect()]
    expected = [each for each in registry.offsets(layout=text) if isinstance(each, CommittedOffset)]
    assert sorted((row["group"], row["topic"], row["partition"], row["offset"], row["zxid"]) for row in rows) == [
        (each.group, each.at.topic, each.at.partition, each.offset, each.zxid) for each in expected
    ]
    assert {row["layout"] for row in rows} == {text}
    assert read("members", layout=text).isEmpty()
    newest = max(each.zxid for each in expected)
    assert read(layout=text, startingZxid=newest - 1).count() >= 1
    assert read(layout=text, startingZxid=newest).isEmpty()


def test_spark_takes_snapshots_of_a_layout_with_its_problems(
    spark: SparkSession, raw: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    put(raw, storm_of_one_topic("spout", ORDERS) | {"/kafkastorm/spout/partition_8": b"{}"})
    put(raw, {"/kafkastorm/spout/partition_9": b"x"}, acl=[make_digest_acl("alice", "secret", all=True)])
    source = SourceOptions(zookeeper=zookeeper_hosts, layout=STORM, parallelism=3)
    taken = take_snapshot(spark, str(tmp_path), source)
    assert (taken.groups, taken.offsets, taken.problems, taken.forbidden) == (1, 5, 2, 1)
    found = {row["partition"]: (row["offset"], row["layout"]) for row in read_snapshot(spark, str(tmp_path)).collect()}
    assert found == {0: (50, STORM), 1: (51, STORM), 2: (52, STORM), 8: (None, STORM), 9: (None, STORM)}
    assert [each.findings for each in verify(str(tmp_path))] == [()]


def test_each_engine_continues_an_audit_of_a_layout(
    spark: SparkSession, raw: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    source = SourceOptions(zookeeper=zookeeper_hosts, layout=STORM, parallelism=1)
    put(raw, storm_of_one_topic("spout", ORDERS))
    run_local_audit(str(tmp_path), source, once=True)
    put(raw, storm_of_one_topic("spout", dict.fromkeys(ORDERS, 70)))
    run_audit(spark, str(tmp_path), source, once=True)
    rows = read_audit(spark, str(tmp_path)).collect()
    changes = sorted((row["batch"], row["partition"], row["before"], row["offset"], row["layout"]) for row in rows)
    assert changes == [
        *((0, at.partition, None, offset, STORM) for at, offset in ORDERS.items()),
        *((1, at.partition, offset, 70, STORM) for at, offset in ORDERS.items()),
    ]


def test_offsets_of_another_system_are_restored_to_legacy_groups_only_if_their_cluster_is_named(
    zkgroups: Command, raw: Any, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    """A legacy group may have the name of a spout by chance."""
    put(raw, storm_of_one_topic("spout", ORDERS))
    destination, audit, named = tmp_path / "groups", tmp_path / "audit", f"{zookeeper_hosts} {STORM}"
    assert zkgroups("snapshot", destination, "--layout", STORM, "--engine", "local").code == 0
    assert zkgroups("audit", audit, "--layout", STORM, "--engine", "local", "--once").code == 0
    shown = zkgroups("audit", audit, "--show", "-o", "json").json["commits"]
    assert {row["layout"] for row in shown} == {STORM}
    for options in (
        ("import", "--from-snapshot", destination, "--execute"),
        ("reset", "spout", "--all-topics", "--from-audit", audit, "--by-duration", "PT0S"),
    ):
        refused = zkgroups("offsets", *options)
        assert (refused.code, f"add --cluster '{named}'" in refused.err) == (4, True), refused.err
    assert list(registry.offsets()) == []
    assert zkgroups("offsets", "export", "spout", "--from-snapshot", destination).code == 0
    done = zkgroups("offsets", "import", "--from-snapshot", destination, "--cluster", named, "--execute")
    assert done.code == 0
    found = [each for each in registry.offsets() if isinstance(each, CommittedOffset)]
    assert {each.at: each.offset for each in found} == ORDERS
