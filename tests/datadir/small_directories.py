"""Data directories of real servers: small ones with all of their states, and clients that write concurrently."""

from __future__ import annotations

import random
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from tests.lasting import lasting_client
from zkgroups import Registry
from zkgroups.core.znodes.paths import Part
from zkgroups.core.znodes.values import ForbiddenNode
from zkgroups.datadir.data_dir import DataDir
from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import ZooKeeperServer, missing
from zkgroups.zookeeper.reading import tree_walk
from zkgroups.zookeeper.reading.tree_walk import PartDirectory
from zkgroups.zookeeper.requests.bulk_read import Block
from zkgroups.zookeeper.requests.node import Node

Tree = dict[tuple[PartDirectory, str], Node | ForbiddenNode]


def tree_in_files(folder: Path, zxid: int | None = None, *, chroot: str = "") -> Tree:
    """Read all nodes of all groups from the files."""
    data = DataDir(str(folder), chroot=chroot)
    return tree_of(data.groups(data.state(zxid), set(Part)).blocks())


def tree_on_server(hosts: str) -> Tree:
    """Read all nodes of all groups from the server."""
    with Registry.connect(hosts) as registry:
        groups, context = registry.groups(), registry._context
        found = tree_of(tree_walk.registrations(context, groups))
        for part in (Part.OWNERS, Part.OFFSETS):
            found |= tree_of(tree_walk.leaves(context, groups, part))
        return found


def tree_of(blocks: Iterable[Block[PartDirectory]]) -> Tree:
    """Index by place and name, without duplicates."""
    found: Tree = {}
    for place, name, node in tree_walk.nodes(blocks):
        assert (place, name) not in found
        found[place, name] = node
    return found


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


# Load


GROUPS, TOPICS, PARTITIONS = 20, 4, 15
UNDER_WAY = 50
SESSION = 100.0


def plant(client: Any, root: str) -> None:
    """Create a tree large enough to change while the server writes it."""
    client.ensure_path(root)
    for group in range(GROUPS):
        made = client.transaction()
        made.create(f"{root}/g{group}")
        for part in ("ids", "owners", "offsets"):
            made.create(f"{root}/g{group}/{part}")
        for topic in range(TOPICS):
            made.create(f"{root}/g{group}/owners/t{topic}")
            made.create(f"{root}/g{group}/offsets/t{topic}")
            for partition in range(PARTITIONS):
                made.create(f"{root}/g{group}/offsets/t{topic}/{partition}", b"%d" % partition)
        made.commit()


class Writer:
    """Run one client after the other, each with random writes and a clean or unclean end."""

    def __init__(self, hosts: str, root: str, number: int) -> None:
        self._hosts, self._root = hosts, root
        self._random = random.Random(number)
        self._name = f"member{number}"
        self._waiting: deque[Any] = deque()
        self.written = 0
        self.over = threading.Event()

    def run(self) -> None:
        """Write until the server is killed."""
        with suppress(Exception):
            while not self.over.is_set():
                client = KazooClient(self._hosts, timeout=SESSION)
                connected = client.start_async()
                try:
                    while not (connected.wait(0.1) or self.over.is_set()):
                        pass
                    self._session(client, self._random.randint(50, 400))
                finally:
                    client.stop()
                    client.close()

    def _session(self, client: Any, requests: int) -> None:
        for _ in range(requests):
            self._waiting.append(self._one(client))
            if len(self._waiting) > UNDER_WAY:
                self._answered()
        while self._waiting:
            self._answered()

    def _answered(self) -> None:
        """Return whether the client is connected; after a kill of the server none is."""
        answer = self._waiting.popleft()
        while not (answer.wait(0.1) or self.over.is_set()):
            pass
        if self.over.is_set():
            self._waiting.clear()
            raise InterruptedError
        with suppress(KazooException):
            answer.get()
            self.written += 1

    def _one(self, client: Any) -> Any:
        group = f"{self._root}/g{self._random.randrange(GROUPS)}"
        topic, partition = self._random.randrange(TOPICS + 1), self._random.randrange(PARTITIONS + 5)
        at = f"t{topic}/{partition}"
        data = b"%d" % self._random.randrange(10 ** self._random.randrange(1, 12))
        what = self._random.choice(self._kinds())
        return what(client, group, at, data)

    def _kinds(self) -> list[Callable[..., Any]]:
        others = [self._make, self._delete, self._claim, self._release, self._join, self._several, self._protect]
        return [self._commit] * 8 + others

    def _commit(self, client: Any, group: str, at: str, data: bytes) -> Any:
        return client.set_async(f"{group}/offsets/{at}", data)

    def _make(self, client: Any, group: str, at: str, data: bytes) -> Any:
        client.create_async(f"{group}/offsets/{at.partition('/')[0]}", b"")
        return client.create_async(f"{group}/offsets/{at}", data)

    def _delete(self, client: Any, group: str, at: str, _data: bytes) -> Any:
        return client.delete_async(f"{group}/offsets/{at}")

    def _claim(self, client: Any, group: str, at: str, _data: bytes) -> Any:
        return client.create_async(f"{group}/owners/{at}", self._name.encode(), ephemeral=True)

    def _release(self, client: Any, group: str, at: str, _data: bytes) -> Any:
        return client.delete_async(f"{group}/owners/{at}")

    def _join(self, client: Any, group: str, _at: str, data: bytes) -> Any:
        client.create_async(f"{group}/ids/{self._name}", b"{}", ephemeral=True)
        return client.set_async(f"{group}/ids/{self._name}", data)

    def _several(self, client: Any, group: str, at: str, data: bytes) -> Any:
        """Fails as a whole if another instance owns the partition."""
        made = client.transaction()
        made.set_data(f"{group}/offsets/{at}", data)
        made.create(f"{group}/owners/{at}", self._name.encode(), ephemeral=True)
        made.delete(f"{group}/owners/{at}")
        made.create(f"{group}/owners/{at}", self._name.encode(), ephemeral=True)
        return made.commit_async()

    def _protect(self, client: Any, group: str, at: str, _data: bytes) -> Any:
        acl = self._random.choice([OPEN_ACL_UNSAFE, [make_digest_acl("ops", "secret", all=True), *OPEN_ACL_UNSAFE]])
        return client.set_acls_async(f"{group}/offsets/{at}", acl)


@contextmanager
def under_load(server: ZooKeeperServer, root: str = "/consumers", *, writers: int = 4) -> Iterator[list[Writer]]:
    """Run writers during the block, at the end of which the server must have been killed."""
    client = KazooClient(server.address, timeout=SESSION)
    client.start()
    plant(client, root)
    client.stop()
    client.close()
    several = [Writer(server.address, root, number) for number in range(writers)]
    threads = [threading.Thread(target=writer.run) for writer in several]
    for thread in threads:
        thread.start()
    try:
        yield several
    finally:
        for writer in several:
            writer.over.set()
        for thread in threads:
            thread.join()
