"""The files of a server killed under load equal its state after a restart, node by node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import ZooKeeperServer, missing

from ..testing.waiting import eventually
from .server_files import tree_in_files, tree_on_server
from .writers import under_load

pytestmark = pytest.mark.zookeeper

OFTEN = ("-Dzookeeper.snapCount=400", "-Dzookeeper.preAllocSize=512")
GZIP, SNAPPY = (f"-Dzookeeper.snapshot.compression.method={method}" for method in ("gz", "snappy"))


def started(folder: Path, release: str | None = None, *options: str) -> ZooKeeperServer:
    """A server that writes snapshots all the time."""
    try:
        return ZooKeeperServer(data_dir=folder, release=release, jvm_options=(*OFTEN, *options)).start()
    except MissingDependencyError as error:
        missing("zookeeper", str(error))


@pytest.mark.parametrize(
    ("release", "options"),
    [("3.4.14", ()), ("3.5.10", ()), (None, ()), (None, (GZIP,)), (None, (SNAPPY,))],
    ids=["3.4", "3.5", "3.9", "3.9 gzip", "3.9 snappy"],
)
def test_files_of_a_killed_server_equal_its_state_after_the_restart(
    tmp_path: Path, release: str | None, options: tuple[str, ...]
) -> None:
    with started(tmp_path / "data", release, *options) as server:
        with under_load(server) as writers:
            assert eventually(lambda: sum(writer.written for writer in writers) > 2000, timeout=100)
            # A server that is too busy to begin another snapshot leaves it out.
            assert eventually(lambda: len(snapshots(tmp_path / "data")) > 2, timeout=100)
            server.kill()
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        found = tree_in_files(tmp_path / "copy")
        server.start(timeout=60)
        assert found == tree_on_server(server.address)
    assert {place.part for place, _ in found} == {"ids", "owners", "offsets"}
    assert len(snapshots(tmp_path / "copy")) > 2


def snapshots(folder: Path) -> list[Path]:
    return list((folder / "version-2").glob("snapshot.*"))
