"""A loopback TCP proxy in front of a ZooKeeper server, which breaks the link at an exact point.

    with TcpProxy(server.address) as proxy:
        client = KazooClient(proxy.address)
        client.start()
        fault = proxy.cut_before_reply()
        client.create("/x")  # raises ConnectionLoss, and /x exists

It reads ZooKeeper's frames, so "the third request" is exactly that. Counted are ordinary requests, those with a
positive xid: not pings, not what a client sends to set up its connection. What cannot be read as frames (TLS, a
four-letter word) is passed on as it comes: such connections can be cut, delayed and dropped, not counted.

Everything happens on one thread with an event loop. The methods run there, too, and return when it is done: what they
ask for holds for every frame that is passed on afterwards.
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

# More than a storm of members that all connect at once.
_BACKLOG = 1024

T = TypeVar("T")


class TcpProxy:
    """The way to one server, `target` being its `host:port`; the faults hold until `heal`.

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
        """`host:port`, for the client instead of the server's."""
        return f"{HOST}:{self._port}"

    @property
    def connections(self) -> int:
        """How many connections clients have made, refused ones included."""
        return self._connections

    @property
    def requests(self) -> int:
        """How many ordinary requests came from clients."""
        return self._faults.requests

    @property
    def replies(self) -> int:
        """How many replies to ordinary requests came from the server."""
        return self._faults.replies

    @property
    def requests_by_type(self) -> Counter[int]:
        """How many ordinary requests came, by their type: `proxy.requests_by_type[Op.CREATE]`."""
        return Counter(dict(self._faults.by_type))

    def cut_before_request(self, n: int = 1) -> Fault:
        """Cut the connection instead of passing on the n-th request from now; those before it are answered first."""
        return self._call(lambda: self._faults.arm(Moment.BEFORE_REQUEST, n))

    def cut_before_reply(self, n: int = 1) -> Fault:
        """Cut the connection instead of passing on the reply to the n-th request from now: it was carried out."""
        return self._call(lambda: self._faults.arm(Moment.BEFORE_REPLY, n))

    def cut_after_reply(self, n: int = 1) -> Fault:
        """Cut the connection right after the reply to the n-th request from now."""
        return self._call(lambda: self._faults.arm(Moment.AFTER_REPLY, n))

    def cut(self) -> None:
        """Cut every connection now; clients may connect again."""
        self._call(self._cut_all)

    def refuse(self) -> None:
        """Turn new connections away; those that are open stay."""
        self._set("refusing", True)

    def accept(self) -> None:
        """Let new connections in again."""
        self._set("refusing", False)

    def delay(self, seconds: float, *, direction: Direction | None = None) -> None:
        """Make requests, replies or both late by so much; 0 ends it."""
        self._call(lambda: self._faults.delays.update(dict.fromkeys(_directions(direction), seconds)))

    def drop(self, *, direction: Direction | None = None) -> None:
        """Let requests, replies or both vanish while connections stay open, as a broken network does."""
        self._call(lambda: self._faults.dropping.update(_directions(direction)))

    def hold(self) -> None:
        """Hold everything back, including new connections and the end of old ones, like a network failure. `heal` ends
        it."""
        self._set("holding", True)

    def swallow_watch_events(self) -> None:
        """Pass on everything except the news that a watched node has changed."""
        self._set("swallowing_watch_events", True)

    def heal(self) -> None:
        """Take all of it back, armed faults included; connections that lost something are cut."""
        self._call(self._heal)

    def start(self) -> Self:
        """Begin to listen."""
        started: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), name="zkgroups-proxy")
        self._thread.daemon = True
        self._thread.start()
        started.result()
        return self

    def close(self) -> None:
        """Cut everything and end the thread; a second call does nothing."""
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
        # `server.close` forgets, and leaves open, what it has accepted a moment before: so it comes last, when nobody
        # is let in any more and nothing runs but this.
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
        """Run it on the thread of the proxy, so that it comes between two frames, and wait for it."""
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
