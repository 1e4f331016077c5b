"""A proxy in front of one broker, which cuts a connection at a chosen request, and counts what passes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Self

from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.errors import Address

HOST = "127.0.0.1"
_SIZE = struct.Struct(">i")


class Moment(Enum):
    """When a connection is cut."""

    BEFORE = auto()
    """The request does not reach the broker."""
    AFTER = auto()
    """The broker has answered, but nothing of the answer reaches the client."""
    WITHIN = auto()
    """Half of the answer reaches the client."""


class CuttingProxy:
    """Answers metadata with its own address, so that all connections of a cluster come here."""

    def __init__(self, broker: Address) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._countdown = 0
        self._moment = Moment.BEFORE
        self._key: int | None = None
        self._meanwhile: Callable[[], None] = lambda: None
        self.passed = 0
        """The number of requests that the broker has answered."""
        self.cut = False

    @property
    def address(self) -> Address:
        assert self._server is not None
        return Address(HOST, self._server.sockets[0].getsockname()[1])

    def arm(self, request: int, moment: Moment, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Cut at this request, counted from 1, and call a function then."""
        self._countdown, self._moment, self._meanwhile = request, moment, meanwhile

    def arm_after(self, key: int, meanwhile: Callable[[], None]) -> None:
        """Cut after the next request of this kind was carried out, and after another client has done something."""
        self._key, self._meanwhile = key, meanwhile

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        writers = [writer]
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                up_reader, up_writer = await asyncio.open_connection(self._broker.host, self._broker.port)
                writers.append(up_writer)
                while await self._exchange(reader, writer, up_reader, up_writer):
                    pass
        finally:
            for each in writers:
                each.transport.abort()
            self._open.discard(task)

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> bool:
        """Pass one request and its answer. Return False if the connection is to be cut."""
        request = await _frame(reader)
        kind = codec.RequestKind.read(request)
        self._countdown -= 1
        moment = self._moment if self._countdown == 0 else None
        if kind.key == self._key:
            self._key, moment = None, Moment.AFTER
        self.cut = self.cut or moment is not None
        if moment is Moment.BEFORE:
            await asyncio.to_thread(self._meanwhile)
            return False
        up_writer.write(_SIZE.pack(len(request)) + request)
        answer = await _frame(up_reader)
        self.passed += 1
        if moment is Moment.AFTER:
            await asyncio.to_thread(self._meanwhile)
            return False
        if kind.key == codec.METADATA:
            answer = self._redirected(kind.version, answer)
        data = _SIZE.pack(len(answer)) + answer
        writer.write(data if moment is None else data[: len(data) // 2])
        await writer.drain()
        return moment is None

    def _redirected(self, version: int, answer: bytes) -> bytes:
        found = codec.decode(codec.MetadataRequest(), version, answer)
        for broker in found.brokers:
            broker.host, broker.port = self.address
        head = 5 if found.flexible_version_q(version) else 4
        return answer[:head] + bytes(found.encode())

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in [*self._open]:
            task.cancel()
        await asyncio.sleep(0.01)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return await reader.readexactly(size)
