"""Listeners, and the streams of the clients that connect to them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from .byte_stream import ByteStream

_BACKLOG: Final = 1024
_HANDSHAKE_TIMEOUT: Final = 15.0


class ClientStream(ByteStream):
    """A connection that a client has opened."""

    def __init__(self, accept: Accept) -> None:
        super().__init__()
        self._accept = accept

    @property
    def peer(self) -> str:
        """The host of the client."""
        found = self._transport.get_extra_info("peername")
        return str(found[0]) if found else "unknown"

    @property
    def local(self) -> str:
        """The address of this machine to which the client has connected."""
        found = self._transport.get_extra_info("sockname")
        return str(found[0]) if found else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._accept(self)


Accept = Callable[[ClientStream], Awaitable[None]]


async def listen(host: str, port: int, tls: ssl.SSLContext | None, accept: Accept) -> asyncio.Server:
    """Listen for clients. Raise OSError if the port is in use."""
    return await asyncio.get_running_loop().create_server(
        lambda: ClientStream(accept),
        host,
        port,
        ssl=tls,
        backlog=_BACKLOG,
        ssl_handshake_timeout=None if tls is None else _HANDSHAKE_TIMEOUT,
    )
