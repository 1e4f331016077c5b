"""A TCP proxy on loopback for a ZooKeeper server. It breaks connections at an exact point.

    with TcpProxy(server.address) as proxy:
        client = KazooClient(proxy.address)
        client.start()
        fault = proxy.cut_before_reply()
        client.create("/x")  # raises ConnectionLoss, and /x exists

It reads ZooKeeper's frames and counts ordinary requests: those with a positive xid, so neither pings nor the requests
that set up a connection. Other bytes (TLS, four-letter words) are passed on unread. Such connections can be cut,
delayed and dropped, but not counted.

Everything runs on one thread with an event loop. Each method returns when its change is in force there.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self, TypeVar

from ..ports import HOST
from .faults import DIRECTIONS, Direction, Fault, Faults, Moment
from .link import Changes, Link

# Enough for many members that connect at once.
_BACKLOG = 1024

T = TypeVar("T")


class TcpProxy:
    """A proxy for one server at `target`, a `host:port`. Faults stay in force until `heal`.

    With `framed=False` it passes on any other protocol, such as that between the servers of an ensemble, and counts
    nothing. `replace` is for servers that send each other their addresses: it replaces bytes at the start of each
    connection by other bytes of the same length.
    """

    def __init__(self, target: str, *, framed: bool = True, replace: tuple[bytes, bytes] | None = None) -> None:
        self._framed = framed
        self._replace = replace
        host, _, port = target.rpartition(":")
        self._target = (host.strip("[]"), int(port))
        self._faults = Faults()
        self._links: dict[Link, asyncio.Task[None]] = {}
        self._connections = 0
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address of the proxy, for clients: `host:port`."""
        return f"{HOST}:{self._port}"

    @property
    def connections(self) -> int:
        """The number of connections from clients, including refused ones."""
        return self._connections

    @property
    def requests(self) -> int:
        """The number of ordinary requests from clients."""
        return self._faults.requests

    @property
    def replies(self) -> int:
        """The number of replies to ordinary requests."""
        return self._faults.replies

    @property
    def requests_by_type(self) -> Counter[int]:
        """The number of ordinary requests by type: `proxy.requests_by_type[Op.CREATE]`."""
        return Counter(dict(self._faults.by_type))

    def cut_before_request(self, n: int = 1) -> Fault:
        """Cut the connection instead of passing on the n-th request from now; those before it are answered first."""
        return self._call(lambda: self._faults.arm(Moment.BEFORE_REQUEST, n))

    def cut_before_reply(self, n: int = 1) -> Fault:
        """Cut the connection instead of passing on the reply to the n-th request from now."""
        return self._call(lambda: self._faults.arm(Moment.BEFORE_REPLY, n))

    def cut_after_reply(self, n: int = 1) -> Fault:
        """Cut the connection right after the reply to the n-th request from now."""
        return self._call(lambda: self._faults.arm(Moment.AFTER_REPLY, n))

    def cut(self) -> None:
        """Cut all connections now. Clients can reconnect."""
        self._call(self._cut_all)

    def refuse(self) -> None:
        """Refuse new connections. Open connections stay."""
        self._set("refusing", True)

    def accept(self) -> None:
        """Accept new connections again."""
        self._set("refusing", False)

    def delay(self, seconds: float, *, direction: Direction | None = None) -> None:
        """Delay requests, replies or both by this many seconds; 0 ends the delay."""
        self._call(lambda: self._faults.delays.update(dict.fromkeys(_directions(direction), seconds)))

    def drop(self, *, direction: Direction | None = None) -> None:
        """Drop requests, replies or both while connections stay open, like a broken network."""
        self._call(lambda: self._faults.dropping.update(_directions(direction)))

    def hold(self) -> None:
        """Hold everything back, including new connections and the end of old ones, like a network failure. `heal` ends
        it."""
        self._set("holding", True)

    def swallow_watch_events(self) -> None:
        """Pass on everything except watch events."""
        self._set("swallowing_watch_events", True)

    def heal(self) -> None:
        """Remove all faults. Cut connections that have lost frames."""
        self._call(self._heal)

    def start(self) -> Self:
        """Start a thread that forwards connections. Return when the proxy is listening."""
        started: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), name="zkgroups-proxy")
        self._thread.daemon = True
        self._thread.start()
        started.result()
        return self

    def close(self) -> None:
        """Cut all connections and end the thread. A second call does nothing."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
            self._thread = None

    async def _run(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._changes = Changes()
        try:
            server = await asyncio.start_server(self._serve, HOST, 0, backlog=_BACKLOG)
        except BaseException as error:
            started.set_exception(error)
            return
        self._port: int = server.sockets[0].getsockname()[1]
        started.set_result(None)
        await self._closing.wait()
        # `server.close` leaves open a connection accepted just before it. So it comes last, when no connection is
        # accepted any more.
        self._loop.remove_reader(server.sockets[0].fileno())
        self._cut_all()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*others, return_exceptions=True)
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        link = Link(writer, self._faults, self._changes, framed=self._framed, replace=self._replace)
        if self._faults.refusing or self._closing.is_set():
            link.cut()
            return
        task = asyncio.current_task()
        assert task is not None
        self._links[link] = task
        try:
            await link.run(reader, *self._target)
        finally:
            del self._links[link]

    def _cut_all(self) -> None:
        for link in self._links:
            link.cut()

    def _heal(self) -> None:
        self._faults.clear()
        for link in self._links:
            link.heal()

    def _set(self, rule: str, value: bool) -> None:
        self._call(lambda: setattr(self._faults, rule, value))

    def _call(self, function: Callable[[], T]) -> T:
        """Run a function on the thread of the proxy, between two frames, and wait for it."""
        if self._thread is None:
            raise RuntimeError("start the proxy first")

        async def run() -> T:
            result = function()
            self._changes.announce()
            return result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _directions(direction: Direction | None) -> tuple[Direction, ...]:
    return DIRECTIONS if direction is None else (direction,)
