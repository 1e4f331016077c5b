"""The stream of one client. It notices the end of the connection even while nobody reads from it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

_READ_AHEAD: Final = 1 << 18
_BACKLOG: Final = 1024
_HANDSHAKE_TIMEOUT: Final = 15.0


class _Reader(asyncio.StreamReader):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_READ_AHEAD, loop=loop)
        self.ended = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.ended.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.ended.set()


@dataclass(frozen=True, slots=True)
class ClientStream:
    """A connection that a client has opened. `ended` is set when the client has closed it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ended: asyncio.Event

    @property
    def peer(self) -> str:
        """The host of the client."""
        found = self.writer.get_extra_info("peername")
        return str(found[0]) if found else "unknown"

    @property
    def local(self) -> str:
        """The address of this machine to which the client has connected."""
        found = self.writer.get_extra_info("sockname")
        return str(found[0]) if found else ""


Accept = Callable[[ClientStream], Awaitable[None]]


async def listen(host: str, port: int, tls: ssl.SSLContext | None, accept: Accept) -> asyncio.Server:
    """Listen for clients. Raise OSError if the port is in use."""
    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.StreamReaderProtocol:
        reader = _Reader(loop)

        async def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.set_write_buffer_limits(high=_READ_AHEAD)
            with contextlib.suppress(asyncio.CancelledError):  # asyncio 3.11 would log it
                await accept(ClientStream(reader, writer, reader.ended))

        return asyncio.StreamReaderProtocol(reader, connected, loop=loop)

    handshake = None if tls is None else _HANDSHAKE_TIMEOUT
    return await loop.create_server(protocol, host, port, ssl=tls, backlog=_BACKLOG, ssl_handshake_timeout=handshake)
