"""Failure 19: ZooKeeper is restored from a backup between two snapshots, and during an audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.restoring import restorable
from zkgroups import Registry, TopicPartition
from zkgroups.audit.recorded_commits import read_commits
from zkgroups.snapshots.local_snapshot import ArrowLayout

from ..spark.commands import command_on

pytestmark = pytest.mark.zookeeper


def test_failure_19_a_snapshot_and_an_audit_report_that_zookeeper_was_restored(tmp_path: Path) -> None:
    def commit(offset: int) -> None:
        with Registry.connect(server.address) as registry:
            registry.group("billing").offsets.set(TopicPartition("orders", 0), offset)

    snapshots, audit = tmp_path / "snapshots", tmp_path / "audit"
    with restorable(tmp_path) as server, command_on(None, server.address) as zkgroups:
        commit(7)
        server.back_up()
        commit(9)
        assert zkgroups("snapshot", snapshots, "-q", "--engine", "local").err == ""
        once = ("audit", audit, "--once", "-q", "-o", "csv", "--no-headers", "--engine", "local")
        assert zkgroups(*once).out == f"1,1,0,0,file:{audit}\n"
        server.restore()
        [name] = ArrowLayout.at(str(snapshots)).snapshots()
        ended = zkgroups("snapshot", snapshots, "-q", "--engine", "local")
        words = f"{server.address} was restored from a backup, wiped or replaced since snapshot {name}: offsets may"
        assert ended.code == 0
        assert ended.err.startswith(f"zkgroups: {words} have gone back; compare"), ended.err
        refused = zkgroups(*once)
        assert (refused.code, refused.out) == (4, "")
        assert f"the audit in file:{audit} has read {server.address} up to transaction 0x" in refused.err
        assert zkgroups(*once, "--start-over").code == 0
        assert [(row["before"], row["offset"]) for row in read_commits(str(audit)).to_pylist()] == [(None, 9), (9, 7)]
        assert zkgroups("snapshot", snapshots, "-q", "--engine", "local").err == "", "it follows the restored state"
