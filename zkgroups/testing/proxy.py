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
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Literal, Self, TypeVar

from .local_server import HOST

# ZooKeeper's frames, as far as a proxy reads them: a length of four bytes, then the content.
#
# The first frame of a connection is the connect request, or its answer. Every later one starts with an xid, and a
# request continues with its type. A negative xid marks a special request: see `Xid`.


# Above any jute.maxbuffer in use. A larger "length" is a TLS handshake or a four-letter word.
_LONGEST = 1 << 28
_CHUNK = 1 << 16


class Xid(IntEnum):
    """The special xids. All others count the requests of a client."""

    WATCH_EVENT = -1
    PING = -2
    AUTH = -4
    SET_WATCHES = -8


class Op(IntEnum):
    """The types of requests, with ZooKeeper's names."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    MULTI_READ = 22
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SASL = 102
    CLOSE_SESSION = -11


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame with its length. `xid` and `op` (the type of a request) are None if it has none."""

    data: bytes
    xid: int | None = None
    op: int | None = None

    @property
    def ordinary(self) -> bool:
        """True if the xid numbers a request or its reply, and is not a special one."""
        return self.xid is not None and self.xid > 0


async def read_frames(reader: asyncio.StreamReader) -> AsyncIterator[Frame]:
    """Yield all frames until the connection ends. Other bytes are passed on unread, without an xid."""
    parse: Callable[[bytes], Frame] = Frame
    while head := await _exactly(reader, 4):
        length = int.from_bytes(head)
        if length > _LONGEST:
            yield Frame(head)
            break
        if (body := await _exactly(reader, length)) is None:
            return
        yield parse(head + body)
        parse = _parse
    async for chunk in read_chunks(reader):
        yield chunk


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[Frame]:
    """Yield the bytes of another protocol as they arrive."""
    while chunk := await _some(reader):
        yield Frame(chunk)


def _parse(data: bytes) -> Frame:
    xid = int.from_bytes(data[4:8], signed=True) if len(data) >= 8 else None
    op = int.from_bytes(data[8:12], signed=True) if len(data) >= 12 else None
    return Frame(data, xid, op)


async def _exactly(reader: asyncio.StreamReader, count: int) -> bytes | None:
    try:
        return await reader.readexactly(count)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def _some(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_CHUNK)
    except ConnectionError:
        return b""


# The rules of a proxy: what to do with each frame. No sockets here.
#
# A fault counts requests over all connections, from the moment it is armed. A fault on a reply waits for the reply to
# the counted request, so replies to earlier requests do not matter. Later requests of the client are held back, so
# that the counted request is the last one the server receives.


Direction = Literal["requests", "replies"]
DIRECTIONS: tuple[Direction, ...] = ("requests", "replies")


class Verdict(Enum):
    """What happens to a frame, from harmless to severe."""

    PASS = auto()
    PASS_AS_LAST = auto()  # no later request may follow it
    PASS_AND_CUT = auto()
    IGNORE = auto()  # drop it; the connection stays usable
    LOSE = auto()  # drop it; requests and replies no longer match from here on
    CUT = auto()  # once the requests before it are answered


class Moment(Enum):
    """When an armed fault cuts the connection."""

    BEFORE_REQUEST = auto()
    BEFORE_REPLY = auto()
    AFTER_REPLY = auto()


class Fault:
    """A fault that cuts one connection once, at the n-th request that it counts."""

    def __init__(self, moment: Moment, n: int) -> None:
        if n < 1:
            raise ValueError(f"requests are counted from 1, not {n}")
        self._moment = moment
        self._remaining = n
        self._awaited: tuple[Hashable, int] | None = None
        self._fired = threading.Event()

    @property
    def fired(self) -> bool:
        """True once its frame has come. The cut follows at once."""
        return self._fired.is_set()

    def wait(self, timeout: float = 10.0) -> bool:
        """Wait until it has fired. Return False after `timeout` seconds."""
        return self._fired.wait(timeout)

    def _on_request(self, link: Hashable, xid: int) -> Verdict:
        if self._remaining == 0:
            return Verdict.PASS
        self._remaining -= 1
        if self._remaining > 0:
            return Verdict.PASS
        if self._moment is Moment.BEFORE_REQUEST:
            self._fired.set()
            return Verdict.CUT
        self._awaited = (link, xid)
        return Verdict.PASS_AS_LAST

    def _on_reply(self, link: Hashable, xid: int) -> Verdict:
        if self._awaited != (link, xid):
            return Verdict.PASS
        self._awaited = None
        self._fired.set()
        return Verdict.CUT if self._moment is Moment.BEFORE_REPLY else Verdict.PASS_AND_CUT

    def _on_closed(self, link: Hashable) -> None:
        if self._awaited is not None and self._awaited[0] == link:
            # The reply will never come, so count the next request instead.
            self._awaited = None
            self._remaining = 1


class Faults:
    """All rules in force, and the counts of frames."""

    def __init__(self) -> None:
        self.requests = 0
        self.replies = 0
        self.by_type: Counter[int] = Counter()
        self.clear()

    def clear(self) -> None:
        """Remove all rules. The counts stay."""
        self.refusing = False
        self.swallowing_watch_events = False
        self.holding = False
        self.dropping: set[Direction] = set()
        self.delays: dict[Direction, float] = dict.fromkeys(DIRECTIONS, 0.0)
        self._armed: list[Fault] = []

    def arm(self, moment: Moment, n: int) -> Fault:
        """Arm a fault: count requests from now on."""
        fault = Fault(moment, n)
        self._armed.append(fault)
        return fault

    def on_request(self, link: Hashable, frame: Frame) -> Verdict:
        """Decide what happens to a frame from the client."""
        if frame.ordinary:
            self.requests += 1
            self.by_type[frame.op or 0] += 1
        return self._judge("requests", link, frame)

    def on_reply(self, link: Hashable, frame: Frame) -> Verdict:
        """Decide what happens to a frame from the server."""
        if frame.ordinary:
            self.replies += 1
        if frame.xid == Xid.WATCH_EVENT and self.swallowing_watch_events:
            return Verdict.IGNORE
        return self._judge("replies", link, frame)

    def on_closed(self, link: Hashable) -> None:
        """Forget the replies that a closed connection still owed."""
        for fault in self._armed:
            fault._on_closed(link)

    def _judge(self, direction: Direction, link: Hashable, frame: Frame) -> Verdict:
        if direction in self.dropping:
            return Verdict.LOSE
        if frame.xid is None or not frame.ordinary:
            return Verdict.PASS
        ask = Fault._on_request if direction == "requests" else Fault._on_reply
        verdicts = [ask(fault, link, frame.xid) for fault in self._armed]
        return max(verdicts, key=lambda verdict: verdict.value, default=Verdict.PASS)


# One connection through the proxy: two sockets, with a reader and a queue for each direction.
#
# The reader records the time of each frame. A frame waits in the queue for the current delay, so frames that arrive
# together are late together. The rules are applied when a frame leaves the queue.


Arrival = tuple[float, Frame]
Queue = asyncio.Queue[Arrival | None]

_LONG = 60.0
_TRIES = 100
_PAUSE = 0.05

_PASSING = (Verdict.PASS, Verdict.PASS_AS_LAST, Verdict.PASS_AND_CUT)


class Changes:
    """Wakes tasks that wait for a change of the rules."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def announce(self) -> None:
        """Report a change of the rules."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout: float) -> None:
        """Wait for a change, at most this long."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout)
        except TimeoutError:
            return


class Link:
    """A client's connection, and the matching connection to the server."""

    def __init__(
        self,
        client: asyncio.StreamWriter,
        faults: Faults,
        changes: Changes,
        *,
        framed: bool = True,
        replace: tuple[bytes, bytes] | None = None,
    ) -> None:
        self._client = client
        self._framed = framed
        self._replace = replace
        self._server: asyncio.StreamWriter | None = None
        self._faults = faults
        self._changes = changes
        self._is_cut = False
        self._lost_frames = False
        # A fault holds back all further requests.
        self._is_mute = False
        self._cut_when_answered = False
        self._unanswered = 0

    async def run(self, reader: asyncio.StreamReader, host: str, port: int) -> None:
        """Connect to the server, and pass on frames until a side closes the connection or it is cut."""
        await self._hold()
        try:
            answers, self._server = await self._connect(host, port)
        except OSError:
            self.cut()
        else:
            if self._is_cut:  # meanwhile
                self._server.transport.abort()
            else:
                await self._pass_on(reader, answers, self._server)
        finally:
            self._faults.on_closed(self)

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, with retries: a server of an ensemble retries if a port is closed, but not if its connection to the
        proxy ends, and it would see only that."""
        for _ in range(0 if self._framed else _TRIES):
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection(host, port)
            await self._changes.wait(_PAUSE)
        return await asyncio.open_connection(host, port)

    def cut(self) -> None:
        """Close both sides now. Frames that were not passed on are lost."""
        self._is_cut = True
        self._client.transport.abort()
        if self._server is not None:
            self._server.transport.abort()
        # Close at once, before the client reconnects and is counted. Delayed frames need not wait.
        self._faults.on_closed(self)
        self._changes.announce()

    def heal(self) -> None:
        """Resume normal operation. A connection that has lost frames is cut."""
        if self._lost_frames:
            self.cut()
        self._is_mute = False

    async def _pass_on(
        self, requests: asyncio.StreamReader, replies: asyncio.StreamReader, server: asyncio.StreamWriter
    ) -> None:
        to_server: Queue = asyncio.Queue()
        to_client: Queue = asyncio.Queue()
        read_all = read_frames if self._framed else read_chunks
        readers = [
            asyncio.create_task(_read(read_all(requests), to_server, self._replace)),
            asyncio.create_task(_read(read_all(replies), to_client)),
        ]
        writers = [
            asyncio.create_task(self._write("requests", to_server, server, self._judge_request)),
            asyncio.create_task(self._write("replies", to_client, self._client, self._judge_reply)),
        ]
        await asyncio.wait(writers, return_when=asyncio.FIRST_COMPLETED)
        self._client.close()
        server.close()
        for task in readers + writers:
            task.cancel()
        await asyncio.gather(*readers, *writers, return_exceptions=True)

    async def _write(
        self, direction: Direction, queue: Queue, writer: asyncio.StreamWriter, judge: Callable[[Frame], Verdict]
    ) -> None:
        while True:
            arrival = await queue.get()
            await self._hold()
            if arrival is None:
                return
            came, frame = arrival
            await self._delay(direction, came)
            await self._hold()
            if self._is_cut or not self._act(judge(frame), frame, writer):
                return
            try:
                await writer.drain()
            except ConnectionError:
                return

    async def _delay(self, direction: Direction, came: float) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_cut and (left := came + self._faults.delays[direction] - loop.time()) > 0:
            await self._changes.wait(left)

    async def _hold(self) -> None:
        while not self._is_cut and self._faults.holding:
            await self._changes.wait(_LONG)

    def _act(self, verdict: Verdict, frame: Frame, writer: asyncio.StreamWriter) -> bool:
        """Apply the verdict. Return True if the connection continues."""
        if verdict is Verdict.LOSE:
            self._lost_frames = True
        elif verdict in _PASSING:
            writer.write(frame.data)
        self._is_cut = self._is_cut or verdict in (Verdict.CUT, Verdict.PASS_AND_CUT)
        return not self._is_cut

    def _judge_request(self, frame: Frame) -> Verdict:
        if self._is_mute:
            return Verdict.LOSE
        verdict = self._faults.on_request(self, frame)
        self._is_mute = verdict in (Verdict.PASS_AS_LAST, Verdict.CUT)
        self._unanswered += frame.ordinary and verdict in _PASSING
        if verdict is Verdict.CUT and self._unanswered:
            self._cut_when_answered = True
            return Verdict.LOSE
        return verdict

    def _judge_reply(self, frame: Frame) -> Verdict:
        verdict = self._faults.on_reply(self, frame)
        self._unanswered -= frame.ordinary
        if self._cut_when_answered and not self._unanswered and verdict is Verdict.PASS:
            return Verdict.PASS_AND_CUT
        return verdict


async def _read(frames: AsyncIterator[Frame], queue: Queue, replace: tuple[bytes, bytes] | None = None) -> None:
    loop = asyncio.get_running_loop()
    async for frame in frames:
        if replace is not None:
            frame, replace = Frame(frame.data.replace(*replace)), None
        queue.put_nowait((loop.time(), frame))
    queue.put_nowait(None)


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
