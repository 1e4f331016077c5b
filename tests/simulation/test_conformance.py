"""The simulated ZooKeeper answers as real servers do: the same random histories of requests on both.

Compared are all answers, errors, stats, numbers of transactions and watch events, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from random import Random
from threading import Event
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, RolledBackError, RuntimeInconsistency
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import make_acl, make_digest_acl

from tests.conftest import OLDEST
from tests.seeds import seeds
from tests.waiting import eventually
from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import ZooKeeperServer, missing
from zkgroups.testing.zookeeper_server import default_release
from zkgroups.zookeeper.requests.multiread import Kind, MultiRead, operations, records
from zkgroups.zookeeper.requests.watches import RecursiveWatchRequest

from .world import HOSTS, World

pytestmark = pytest.mark.zookeeper

HISTORIES, STEPS = 25, 60
NAMES = ("", "/a", "/b", "/a/x", "/b/y", "/missing/z")
NEWEST = "3.9.5"

Step = tuple[Any, ...]


RELEASES = {default_release() or NEWEST: default_release(), OLDEST: OLDEST}


@pytest.fixture(scope="module", params=RELEASES)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A server that nobody else uses, so that the numbers of its transactions are known."""
    try:
        with ZooKeeperServer(release=RELEASES[request.param]) as started:
            yield started.address, tuple(map(int, request.param.split(".")))
    except MissingDependencyError as error:
        missing("zookeeper", str(error))


def history(root: str, random: Random, release: tuple[int, ...]) -> list[Step]:
    """Draw requests of two clients below a node of their own.

    In releases before 3.9, a recursive watch and another watch of one client at one path disturb each other.
    """
    draws: list[tuple[int, Callable[[], Step]]] = [
        (8, lambda: ("create", path(), data(), random.random() < 0.4, False)),
        (1, lambda: ("create", f"{root}/a/s", data(), random.random() < 0.4, True)),
        (4, lambda: ("delete", path(), version())),
        (5, lambda: ("set", path(), data(), version())),
        (4, lambda: ("get", path(), random.random() < 0.5)),
        (4, lambda: ("exists", path(), random.random() < 0.5)),
        (4, lambda: ("children", path(), random.random() < 0.5, random.random() < 0.5)),
        (5, lambda: ("multi", [operation() for _ in range(random.randint(1, 4))])),
        (1, lambda: ("sync", path())),
        (1, lambda: ("set_acls", path(), random.choice(("open", "alice", "read", "none")))),
        (1, lambda: ("get_acls", path())),
        (1, lambda: ("expire",)),
        (1, lambda: ("restart session",)),
    ]
    if release >= (3, 6):
        draws.append((4, lambda: ("multi read", [path() for _ in range(3)])))
    if release >= (3, 9):
        draws.append((1, lambda: ("watch tree", path())))

    def path() -> str:
        return root + random.choice(NAMES)

    def data() -> bytes | None:
        return random.choice((None, b"", b"1", b"two"))

    def version() -> int:
        return random.choice((-1, -1, 0, 1, 2))

    def operation() -> Step:
        return random.choice(
            (
                lambda: ("create", path(), data() or b"", random.random() < 0.4),
                lambda: ("delete", path(), version()),
                lambda: ("set_data", path(), data() or b"", version()),
                lambda: ("check", path(), version()),
            )
        )()

    weights, choices = zip(*draws, strict=True)
    start: list[Step] = [(0, "create", path, b"", False, False) for path in (root, f"{root}/a")]
    drawn = [(random.randint(0, 1), *random.choices(choices, weights)[0]()) for _ in range(STEPS)]
    return start + drawn


class Gated(SequentialThreadingHandler):
    """Connects only while its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Event()
        self.gate.set()

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        self.gate.wait()
        return super().create_connection(*arguments, **options)


class Player:
    """Plays a history with two kazoo clients, and writes down what they observe."""

    def __init__(self, hosts: str, wait: Callable[[Callable[[], object]], None]) -> None:
        self._hosts, self._wait = hosts, wait
        self.transcript: list[object] = []
        self._events: tuple[list[Step], list[Step]] = ([], [])
        self._sessions: dict[int, str] = {0: ""}
        self._clients = [self._client(0), self._client(1)]
        self._zxid = 0

    def _client(self, number: int, **options: Any) -> KazooClient:
        client = KazooClient(
            self._hosts,
            timeout=60.0,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1),
            handler=Gated(),
            auth_data=[("digest", "alice:secret")] if number == 0 else None,
            **options,
        )
        client.start(60)
        self._sessions[client.client_id[0]] = f"session {len(self._sessions)}"
        return client

    def play(self, steps: list[Step]) -> list[object]:
        """Return everything that was observed."""
        self._clients[0].create("/start")
        self._zxid = self._clients[0].exists("/start").czxid
        self._clients[0].delete("/start")
        for number, name, *arguments in steps:
            self.transcript.append((number, name, *arguments))
            try:
                found = getattr(self, "_" + name.replace(" ", "_"))(number, *arguments)
            except KazooException as error:
                found = type(error).__name__
            self.transcript.append(self._plain(found))
            for client, events in zip(self._clients, self._events, strict=True):
                client.retry(client.exists, "/")  # its answer comes after all events
                called = client.handler.async_result()
                client.handler.callback_queue.put(called.set)
                called.get(timeout=60)
                # kazoo calls all watchers of one event in any order
                grouped = [sorted(same) for _, same in groupby(events, lambda event: event[1:])]
                # A server deletes the nodes of a session in any order
                self.transcript.append(sorted(grouped) if name in ("expire", "restart session") else grouped)
                events.clear()
        for client in self._clients:
            client.stop()
            client.close()
        return self.transcript

    def _watcher(self, number: int, name: str) -> Callable[[Any], None]:
        def watcher(event: Any) -> None:
            if event.type != EventType.NONE:  # kazoo itself reports the end of a session so, at any moment
                self._events[number].append((name, event.type, event.path))

        return watcher

    def _plain(self, found: Any) -> object:
        """Return an answer without what differs between any two servers: times, and the first numbers of all."""
        match found:
            case ZnodeStat():
                zxids = [zxid and zxid - self._zxid for zxid in (found.czxid, found.mzxid, found.pzxid)]
                versions = (found.version, found.cversion, found.aversion, found.dataLength, found.numChildren)
                return (*zxids, *versions, self._sessions[found.ephemeralOwner])
            case RolledBackError() | RuntimeInconsistency() | KazooException():
                return type(found).__name__
            case tuple() | list():
                return [self._plain(each) for each in found]
            case _:
                return found

    def _create(self, number: int, path: str, data: bytes | None, ephemeral: bool, sequence: bool) -> Any:
        """With the stat, on releases that can return it. kazoo writes None as no bytes; a null is another thing."""
        return self._clients[number].create(path, data or b"", ephemeral=ephemeral, sequence=sequence)

    def _delete(self, number: int, path: str, version: int) -> Any:
        return self._clients[number].delete(path, version)

    def _set(self, number: int, path: str, data: bytes | None, version: int) -> Any:
        return self._clients[number].set(path, data or b"", version)

    def _get(self, number: int, path: str, watched: bool) -> Any:
        return self._clients[number].get(path, self._watcher(number, f"get {path}") if watched else None)

    def _exists(self, number: int, path: str, watched: bool) -> Any:
        return self._clients[number].exists(path, self._watcher(number, f"exists {path}") if watched else None)

    def _children(self, number: int, path: str, watched: bool, with_stat: bool) -> Any:
        watcher = self._watcher(number, f"children {path}") if watched else None
        found = self._clients[number].get_children(path, watcher, include_data=with_stat)
        return (sorted(found[0]), found[1]) if with_stat else sorted(found)

    def _multi(self, number: int, steps: list[Step]) -> Any:
        transaction = self._clients[number].transaction()
        for name, *arguments in steps:
            if name == "create":
                transaction.create(arguments[0], arguments[1], ephemeral=arguments[2])
            else:
                getattr(transaction, name)(*arguments)
        return transaction.commit()

    def _sync(self, number: int, path: str) -> Any:
        return self._clients[number].sync(path)

    def _set_acls(self, number: int, path: str, who: str) -> Any:
        alice = make_digest_acl("alice", "secret", all=True)
        anyone = make_acl("world", "anyone", all=True)
        reader = make_acl("world", "anyone", read=True)
        acl = {"open": [anyone], "alice": [alice], "read": [alice, reader], "none": []}[who]
        return self._clients[number].set_acls(path, acl)

    def _get_acls(self, number: int, path: str) -> Any:
        found, stat = self._clients[number].get_acls(path)
        return [(each.perms, each.id.scheme, each.id.id) for each in found], stat

    def _multi_read(self, number: int, paths: list[str]) -> Any:
        answer = self._clients[number].handler.async_result()
        names = [path.lstrip("/") for path in paths]
        self._clients[number]._call(MultiRead(operations(Kind.NODE, b"", names), lambda: True), answer)
        found = []
        for record in records(answer.get(timeout=60), len(names)):
            if isinstance(record, tuple):
                data, created, written, _, _, version, session = record
                record = (data, created and created - self._zxid, written and written - self._zxid, version)
                found.append(self._sessions[session])
            found.append(record)
        return found

    def _watch_tree(self, number: int, path: str) -> Any:
        answer = self._clients[number].handler.async_result()
        self._clients[number]._call(RecursiveWatchRequest(path, lambda: True), answer)
        return answer.get(timeout=60)

    def _expire(self, number: int) -> Any:
        """End the session of a client by a second connection, which the client must not replace by a third one."""
        client, states = self._clients[number], list[str]()
        client.add_listener(lambda state: states.append(str(state)))
        before = client.client_id
        client.handler.gate.clear()
        second = self._client(1, client_id=before)
        second.stop()
        second.close()
        client.handler.gate.set()
        self._wait(lambda: KazooState.LOST in states and client.connected and client.client_id[0] != before[0])
        self._sessions[client.client_id[0]] = f"session {len(self._sessions)}"
        return states[0]

    def _restart_session(self, number: int) -> Any:
        self._clients[number].stop()
        self._clients[number].close()
        self._clients[number] = self._client(number)
        return None


@pytest.mark.parametrize("seed", seeds(HISTORIES))
def test_every_request_has_the_same_answer_and_the_same_events(server: tuple[str, tuple[int, ...]], seed: int) -> None:
    address, release = server
    steps = history(f"/history-{seed}", Random(seed), release)
    with World(seed, release=release).running() as world:  # type: ignore[arg-type]
        simulated = Player(HOSTS, world.machine.until).play(steps)
    assert Player(address, wait).play(steps) == simulated


def wait(condition: Callable[[], object]) -> None:
    assert eventually(condition)
