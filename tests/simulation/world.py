"""A world for one test: a machine, a ZooKeeper server in memory, and the network between them. Everything above the
socket is the real code: zkgroups, its corrections of kazoo, and kazoo with its own threads.

    with World(seed=1).running() as world:
        registry = world.connect(session_timeout=10.0)     # a registry in a process of its own
        ...
        world.machine.sleep(30)                            # half a minute passes at once
        world.cut(registry)                                # nothing arrives any more, in either direction

Faults come between two messages: see `cut`, `lose`, `World.server.expire` and `stop`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, Self

import pytest
from kazoo.handlers import threading as kazoo_threading
from kazoo.retry import KazooRetry

from zkgroups import Registry
from zkgroups.zookeeper.kazoo_compat import closing, requests
from zkgroups.zookeeper.requests import multiread
from zkgroups.zookeeper.session import lifetime

from .machine import Machine
from .zookeeper import PING, WATCH_XID, WRITES, Connection, Release, Server, Session

ADDRESS = ("10.0.0.1", 2181)
HOSTS = "10.0.0.1:2181"


class World:
    """The machine, the server and the links of one test."""

    def __init__(
        self,
        seed: int = 0,
        *,
        release: tuple[int, int, int] = (3, 9, 5),
        preemption: float = 0.1,
        latency: float = 0.002,
    ) -> None:
        self.seed = seed
        self.machine = Machine(seed, preemption=preemption)
        self.random = Random(seed + 1)
        self.server = Server(Release(release), random=Random(seed + 2))
        self.server.on_session = self._watch_session
        self.is_up = True
        self.latency = latency
        self.reply_delay = 0.0
        """Seconds by which all that the server sends is late."""
        self.late_replies: dict[str, float] = {}
        """The same for single processes."""
        self.requests = 0
        self.requests_by_kind: Counter[tuple[int, str]] = Counter()
        """By kind of request and by process."""
        self.sockets: list[Socket] = []
        self._cut: set[str] = set()
        self._old: dict[str, tuple[int, dict[str, Any]]] = {}
        self._killed: set[str] = set()
        self.deaf: set[str] = set()
        self.before_write: Callable[[str], object] = lambda _process: None
        """Called with the process when a write arrives. It may kill the process, but it must not wait."""
        self._losses: dict[str, list[str]] = {}
        self.lose_then_cut: set[str] = set()
        """Processes that are cut off when they lose a connection by `lose`."""
        self._numbers = itertools.count(1)
        self._stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Run the world. At the end all threads end."""
        state = random.getstate()
        random.seed(self.seed)
        try:
            with self.machine.installed("zkgroups", "kazoo", "concurrent"), pytest.MonkeyPatch.context() as patch:
                self._install(patch)
                yield self
        finally:
            random.setstate(state)

    def _install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(os, "urandom", self.random.randbytes)
        patch.setattr(kazoo_threading, "atexit", SimpleNamespace(register=lambda _: None, unregister=lambda _: None))
        sleep = self.machine.sleep
        patch.setattr(kazoo_threading.SequentialThreadingHandler, "sleep_func", staticmethod(sleep))
        defaults = tuple(sleep if callable(value) else value for value in KazooRetry.__init__.__defaults__)
        patch.setattr(KazooRetry.__init__, "__defaults__", defaults)
        patch.setattr(kazoo_threading, "selector_select", self.select)
        patch.setattr(kazoo_threading.utils, "create_tcp_connection", self._create_connection)
        patch.setattr(kazoo_threading.utils, "create_socket_pair", lambda _module: Pair.ends(self))
        patch.setattr(requests, "_is_woken", lambda connection: bool(connection._read_sock.inbox))
        patch.setattr(closing, "hang_up", _hang_up)
        threads: dict[str, Any] = {}
        patch.setattr(
            lifetime,
            "_THREAD",
            _PerProcess(lambda: threads.setdefault(self.machine.current_process, lifetime._Thread())),
        )
        patch.setattr(multiread, "_SERVERS", multiread._Servers())

    # Clients

    def connect(self, process: str = "", **options: Any) -> Registry:
        """Connect a registry. It counts as a process of its own: what it starts can be stalled with `machine.stall`."""
        name = process or f"process-{next(self._numbers)}"
        with self.machine.process(name):
            registry = Registry.connect(HOSTS, **options)
        registry.process = name  # type: ignore[attr-defined]
        return registry

    def connection_of(self, registry: Registry) -> Socket:
        """Return the socket of a registry."""
        found: Socket = registry.client._connection._socket
        return found

    # Faults

    def cut(self, process: str) -> None:
        """Let nothing pass between a process and the server, in either direction. Nobody notices."""
        self._cut.add(process)

    def heal(self, process: str) -> None:
        """Let messages pass again. What was sent meanwhile is lost, and both ends of these connections notice."""
        self._cut.discard(process)
        self._old.pop(process, None)
        for socket in [each for each in self.sockets if each.process == process and each.has_lost]:
            socket.drop()

    def move_to_old_server(self, process: str) -> None:
        """Let new connections of a process lead to a server that has nothing newer than now, until `heal`.

        It catches up when a client writes or calls `sync`.
        """
        self._old[process] = self.server.copy()

    def is_cut(self, process: str) -> bool:
        """Whether nothing passes."""
        return process in self._cut

    def kill(self, process: str) -> None:
        """End a process at once. The server notices that its connections are closed; its sessions live on."""
        self._killed.add(process)
        self.machine.stall(process)
        for socket in [each for each in self.sockets if each.process == process]:
            socket.close()

    def deafen(self, process: str) -> None:
        """Let no watch event reach a process from now on."""
        self.deaf.add(process)

    def lose(self, process: str, what: str) -> None:
        """Lose the connection at the next write of a process: at its "request", or at its "reply"."""
        self._losses.setdefault(process, []).append(what)

    def stop(self) -> None:
        """Stop the server. Sessions do not expire meanwhile, and all connections are lost."""
        self.is_up = False
        for socket in list(self.sockets):
            socket.drop()

    def drop(self, process: str) -> None:
        """Lose the connections of a process: both ends notice."""
        for socket in [each for each in self.sockets if each.process == process]:
            socket.drop()

    def start(self, restored: tuple[int, dict[str, Any]] | None = None) -> None:
        """Start the server again, with its data. All sessions are heard from now on. Or restore it from a copy."""
        self.is_up = True
        if restored is not None:
            self.server.zxid, self.server.nodes = restored[0], {path: node.copy() for path, node in restored[1].items()}
            self.server.sessions.clear()
        for session in self.server.sessions.values():
            session.heard = self.machine.now
            self._watch_session(session)

    def end_faults(self) -> None:
        """Let all processes that were cut off or stalled go on."""
        for process in list(self._cut):
            self.heal(process)
        for process in self.machine.stalled:
            if process not in self._killed:
                self.machine.resume(process)

    # The server's clock

    def _watch_session(self, session: Session) -> None:
        """Expire a session in time, and up to one tick later, as servers do."""

        def look() -> None:
            if not self.is_up or self.server.sessions.get(session.id) is not session:
                return
            if self.machine.now >= session.heard + session.timeout:
                self.server.expire(session)
            else:
                self._watch_session(session)

        self.machine.at(session.heard + session.timeout + self.machine.random.uniform(0, self.server.tick), look)

    def expire(self, registry: Registry) -> None:
        """Let the server end the session of a registry now, and wait until the registry has a new one."""
        session_id = registry.session_id
        assert session_id is not None
        self.server.expire(self.server.sessions[session_id])
        self.machine.until(lambda: registry.client.connected and registry.session_id not in (session_id, None))

    # Sockets

    def _create_connection(self, _module: Any, address: Any, timeout: float | None = None, **_options: Any) -> Socket:
        process = self.machine.current_process
        self.machine.sleep(self.latency)
        if self.is_cut(process):
            self.machine.sleep(timeout or 60.0)
            raise TimeoutError("timed out")
        if not self.is_up or tuple(address[:2]) != ADDRESS:
            raise ConnectionRefusedError("Connection refused")
        return Socket(self, process)

    def select(
        self, readers: Any, writers: Any, _errors: Any, timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait until one of the sockets can be read. All can always be written."""
        end = None if timeout is None else self.machine.now + timeout
        while True:
            if found := [each for each in readers if each.is_readable]:
                return found, [], []
            if writers:
                return [], list(writers), []
            waiting = _Waiting(readers)
            if not self.machine.wait(waiting, end):
                waiting.remove_all()
                return [], [], []
            waiting.remove_all()

    def deliver(self, socket: Socket, request: bytes) -> None:
        """Let a request arrive at the server."""
        if socket.is_closed or self.is_cut(socket.process) or not self.is_up:
            socket.has_lost = True
            return
        kind = int.from_bytes(request[4:8], "big", signed=True)
        if kind in WRITES and socket.connection.session is not None:
            self.before_write(socket.process)
            if socket.is_closed:
                return
        losses = self._losses.get(socket.process)
        loss = losses.pop() if losses and kind in WRITES and socket.connection.session is not None else ""
        if loss == "request":
            socket.drop()
            self._lost(socket.process)
            return
        self.requests += kind != PING
        self.requests_by_kind[kind, socket.process] += 1
        socket.mutes = loss == "reply"
        self.server.handle(socket.connection, request, self.machine.now, self.machine.now + self.machine.wall)
        if socket.mutes:
            socket.drop()
            self._lost(socket.process)

    def _lost(self, process: str) -> None:
        if process in self.lose_then_cut:
            self.cut(process)

    def settle(self, process: str) -> None:
        """End all faults of a process, also those to come."""
        self.lose_then_cut.discard(process)
        self._losses.pop(process, None)
        self.heal(process)


class _PerProcess:
    """A global object of which each simulated process has one."""

    def __init__(self, find: Callable[[], Any]) -> None:
        object.__setattr__(self, "_find", find)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)


class _Waiting(list[Any]):
    """The waiting thread of one `select`, registered with all its sockets."""

    def __init__(self, sockets: Any) -> None:
        super().__init__()
        self._sockets = sockets
        for socket in sockets:
            socket.waiting.append(self)

    def remove_all(self) -> None:
        """Forget the sockets."""
        for socket in self._sockets:
            if self in socket.waiting:
                socket.waiting.remove(self)

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


class _Readable:
    """Bytes that have arrived, and the threads that wait for them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.inbox = bytearray()
        self.waiting: list[_Waiting] = []
        self.is_closed = False

    @property
    def is_readable(self) -> bool:
        """Whether `recv` returns at once."""
        return bool(self.inbox) or self.is_closed

    def arrive(self, data: bytes) -> None:
        """Receive bytes."""
        self.inbox += data
        self.wake()

    def wake(self) -> None:
        """Let waiting threads look again."""
        for waiting in list(self.waiting):
            self.world.machine.wake(waiting)

    def recv(self, most: int) -> bytes:
        """Take bytes that have arrived."""
        if not self.inbox:
            if self.is_closed:
                return b""
            raise BlockingIOError
        found = bytes(self.inbox[:most])
        del self.inbox[:most]
        return found

    def close(self) -> None:
        """Close it."""
        self.is_closed = True
        self.wake()


class Pair(_Readable):
    """The pair of sockets by which kazoo wakes its connection thread."""

    @classmethod
    def ends(cls, world: World) -> tuple[Pair, SimpleNamespace]:
        """Return the end to read from, and the end to write to."""
        end = cls(world)

        def send(data: bytes) -> int:
            end.arrive(data)
            return len(data)

        return end, SimpleNamespace(send=send, close=lambda: None)


class Socket(_Readable):
    """A client's socket. Messages need a moment to arrive, in order."""

    def __init__(self, world: World, process: str) -> None:
        super().__init__(world)
        self.process = process
        self.connection = Connection(self._on_answer, self._on_hang_up)
        self.connection.old = world._old.get(process)
        self.has_lost = self.mutes = False
        self.received_at = world.machine.now
        self._out = bytearray()
        self._arrives = [0.0, 0.0]
        self._timeout: float | None = None
        world.sockets.append(self)

    def _later(self, direction: int, call: Callable[[], object]) -> None:
        """Call after the latency of the network. Nothing overtakes what was sent before in this direction."""
        machine = self.world.machine
        delay = self.world.late_replies.get(self.process, self.world.reply_delay) if direction else 0.0
        when = machine.now + delay + self.world.latency * machine.random.uniform(0.5, 1.5)
        self._arrives[direction] = max(self._arrives[direction], when)
        machine.at(self._arrives[direction], call)

    def send(self, data: Any) -> int:
        """Send bytes to the server."""
        if self.is_closed:
            raise BrokenPipeError("Broken pipe")
        self._out += data
        while len(self._out) >= 4 and self._out[:4] != b"srvr":
            end = 4 + int.from_bytes(self._out[:4], "big")
            if len(self._out) < end:
                break
            self._later(0, lambda request=bytes(self._out[4:end]): self.world.deliver(self, request))
            del self._out[:end]
        return len(data)

    def sendall(self, data: bytes) -> None:
        """Send all bytes."""
        if data == b"srvr":
            self._later(0, lambda: self.world.deliver(self, data))
        else:
            self.send(data)

    def _on_answer(self, data: bytes) -> None:
        is_event = int.from_bytes(data[4:8], "big", signed=True) == WATCH_XID
        if not self.mutes and not (is_event and self.process in self.world.deaf):
            self._later(1, lambda: self._receive(data))

    def _receive(self, data: bytes) -> None:
        if self.world.is_cut(self.process):
            self.has_lost = True
        elif not self.is_closed:
            self.received_at = self.world.machine.now
            self.arrive(data)

    def _on_hang_up(self) -> None:
        if not self.world.is_cut(self.process):
            self._later(1, self.drop)
        else:
            self.has_lost = True

    def recv(self, most: int) -> bytes:
        """Take bytes that have arrived. Wait for them, if the socket has a timeout."""
        if self._timeout and not self.world.select([self], [], [], self._timeout)[0]:
            raise TimeoutError("timed out")
        return super().recv(most)

    def drop(self) -> None:
        """Lose the connection: both ends notice."""
        if not self.is_closed:
            self.close()

    def close(self) -> None:
        """Close this end. The server notices unless the link is cut."""
        if self in self.world.sockets:
            self.world.sockets.remove(self)
            if not self.world.is_cut(self.process):
                self.world.server.disconnect(self.connection)
        super().close()

    def setblocking(self, _flag: bool) -> None:
        """Called by kazoo."""
        self._timeout = None

    def settimeout(self, seconds: float) -> None:
        """Let `recv` wait for `seconds`."""
        self._timeout = seconds

    def getsockname(self) -> tuple[str, int]:
        """A different one for each connection."""
        return ("10.0.0.2", self.connection.number)

    def getpeername(self) -> tuple[str, int]:
        """The server's address."""
        return ADDRESS

    def getsockopt(self, *_arguments: Any) -> bytes:
        """Return `struct tcp_info` with the time of the last data, as Linux does."""
        silent_ms = int(1000 * (self.world.machine.now - self.received_at))
        return bytes(52) + silent_ms.to_bytes(4, sys.byteorder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _hang_up(client: Any) -> None:
    socket = client._connection._socket
    if socket is not None:
        socket.drop()
