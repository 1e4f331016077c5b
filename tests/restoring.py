"""A ZooKeeper server that is wiped, or restored from a backup of its data directory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lasting import lasting_client
from tests.waiting import eventually
from zkgroups.testing import ZooKeeperServer


class Restorable:
    """A server, and a backup of its data directory, which is empty at first."""

    def __init__(self, server: ZooKeeperServer, data: Path, backup: Path) -> None:
        self.server, self._data, self._backup = server, data, backup
        self._backup.mkdir()

    @property
    def address(self) -> str:
        return self.server.address

    def back_up(self) -> None:
        """Copy the data directory while the server is stopped."""
        self.server.stop()
        self._replace(self._backup, self._data)
        self.server.start()

    def restore(self) -> None:
        """Replace the data directory by the backup."""
        self.server.stop()
        self._replace(self._data, self._backup)
        self.server.start()

    def overtake(self, zxid: int) -> None:
        """Process transactions until the server has as many as before. Until then it refuses clients that know more."""
        with lasting_client(self.address) as client:
            client.ensure_path("/since")
            assert eventually(lambda: client.set("/since", b"").mzxid > zxid)

    @staticmethod
    def _replace(target: Path, source: Path) -> None:
        shutil.rmtree(target)
        shutil.copytree(source, target)


@contextmanager
def restorable(folder: Path) -> Iterator[Restorable]:
    """Start a server whose data directory can be replaced."""
    with ZooKeeperServer(data_dir=folder / "data") as server:
        yield Restorable(server, folder / "data", folder / "backup")
