"""One connection through the proxy: two sockets, with a reader and a queue for each direction.

The reader records the time of each frame. A frame waits in the queue for the current delay, so frames that arrive
together are late together. The rules are applied when a frame leaves the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from .faults import Direction, Faults, Verdict
from .frames import Frame, read_chunks, read_frames

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
