"""Snapshots, audits and plans in an S3 store, where a rename is a copy: a killed run leaves nothing partial."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.testing import ZooKeeperServer

from ...seeds import seed
from .store import Store

ROOT = Path(__file__).parent.parent.parent.parent
KILLS = int(os.environ.get("ZKGROUPS_SOAK_KILLS", "120"))
"""The number of kills. An undisturbed run makes about 100 writes."""


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.zookeeper
@pytest.mark.timeout(0)
def test_a_run_that_is_killed_after_any_write_leaves_nothing_partial(tmp_path: Path) -> None:
    with ZooKeeperServer() as server, Store(tmp_path) as store:
        with Registry.connect(server.address) as registry:
            for name in ("billing", "invoices"):
                offsets = {TopicPartition("orders", partition): partition for partition in range(5)}
                registry.group(name).offsets.set_many(offsets)
        command = [sys.executable, "-m", "tests.spark.object_store.killed_runs", store.address, server.address]
        done = subprocess.run([*command, str(KILLS), str(seed())], cwd=ROOT)
        assert done.returncode == 0
