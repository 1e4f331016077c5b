"""Clients that write concurrently until the server is killed."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from zkgroups.testing import ZooKeeperServer

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
        return (
            [self._commit] * 8
            + [self._make, self._delete, self._claim, self._release, self._join, self._several]
            + [self._protect]
        )

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
