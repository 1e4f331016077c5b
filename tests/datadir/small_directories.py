"""Small data directories of real servers, with all of their states."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from zkgroups.datadir.data_dir import DataDir
from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import ZooKeeperServer, missing

from ..lasting import lasting_client
from .server_files import Tree, tree_in_files


@dataclass(frozen=True)
class Small:
    """A data directory, and the tree after each of its transactions."""

    folder: Path
    states: list[Tree]

    @property
    def last(self) -> int:
        """The last transaction."""
        return len(self.states) - 1

    @property
    def snapshots(self) -> list[Path]:
        """Oldest first."""
        return self._files("snapshot")

    @property
    def logs(self) -> list[Path]:
        """Oldest first."""
        return self._files("log")

    def _files(self, kind: str) -> list[Path]:
        return sorted((self.folder / "version-2").glob(f"{kind}.*"), key=named)

    def copy(self, folder: Path) -> Small:
        """Copy the directory, for tests that damage it."""
        shutil.copytree(self.folder, folder)
        return Small(folder, self.states)


def named(file: Path) -> int:
    """The zxid in the name of a file."""
    return int(file.name.split(".")[1], 16)


def written(data: bytes) -> int:
    """The number of bytes written to a log; zeros follow."""
    return len(data.rstrip(b"\0"))


def make(folder: Path, release: str | None, *options: str) -> Small:
    """Let a server write several snapshots, and transactions after the last of them, and kill it.

    The expected states are read from the logs, which are complete, without any snapshot.
    """
    with server_of(folder, release, "-Dzookeeper.snapCount=16", "-Dzookeeper.preAllocSize=64", *options) as server:
        _write(server)
        made = Small(folder, [])
        with lasting_client(server.address) as client:
            numbers = count(10_000)
            while not _is_enough(made):
                client.set("/consumers/g/offsets/t/0", b"%d" % next(numbers))
            server.kill()
    logs = made.copy(folder.with_name("logs"))
    for snapshot in logs.snapshots:
        snapshot.unlink()
    last = max(int.from_bytes(data[at + 24 : at + 32]) for data, at in records(logs.logs[-1]))
    return Small(folder, [tree_in_files(logs.folder, zxid) for zxid in range(last + 1)])


def server_of(folder: Path, release: str | None, *options: str) -> ZooKeeperServer:
    """Start a server."""
    try:
        return ZooKeeperServer(data_dir=folder, release=release, jvm_options=options).start()
    except MissingDependencyError as error:
        missing("zookeeper", str(error))


def _is_enough(made: Small) -> bool:
    """A directory with transactions after the last snapshot, which is intact and was taken while nothing changed."""
    if len(made.snapshots) < 3 or len(list(records(made.logs[-1]))) < 3:
        return False
    newest, zxid = made.snapshots[-1], named(made.snapshots[-1])
    if named(made.logs[-1]) != zxid + 1:
        return False
    return DataDir(str(made.folder)).state(zxid).snapshot == newest.name


def records(log: Path) -> Iterator[tuple[bytes, int]]:
    """Return where the records of a log begin."""
    data, at = log.read_bytes(), 16
    while length := int.from_bytes(data[at + 8 : at + 12]):
        yield data, at
        at += 13 + length


def zxid_of(data: bytes, at: int) -> int:
    """Return the zxid of a record."""
    return int.from_bytes(data[at + 24 : at + 32])


def _write(server: ZooKeeperServer) -> None:
    with lasting_client(server.address) as client, lasting_client(server.address) as other:
        for path in ("/consumers/g/ids", "/consumers/g/owners/t", "/consumers/g/offsets/t"):
            client.ensure_path(path)
        for partition in range(3):
            client.create(f"/consumers/g/offsets/t/{partition}", b"%d" % partition)
        other.create("/consumers/g/ids/other", b"{}", ephemeral=True)
        other.create("/consumers/g/owners/t/1", b"other", ephemeral=True)
        client.create("/consumers/g/ids/me", b"{}", ephemeral=True)
        for number in range(6):
            both = client.transaction()
            both.check("/consumers/g/ids/me", 0)
            both.set_data(f"/consumers/g/offsets/t/{number % 3}", b"%d" % (1000 + number))
            both.commit()
        other.stop()
        client.delete("/consumers/g/offsets/t/2")
        client.create("/consumers/g/offsets/t/2", b"77")
