"""Listeners, and the streams of the clients that connect to them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from .frame_stream import FrameStream

_BACKLOG: Final = 1024
_HANDSHAKE_TIMEOUT: Final = 15.0


class ClientStream(FrameStream):
    """A connection that a client has opened."""

    def __init__(self, accept: Accept, *, longest: int) -> None:
        super().__init__(longest=longest)
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
        self._has_tls = transport.get_extra_info("sslcontext") is not None
        self._accept(self)

    def eof_received(self) -> bool:
        super().eof_received()
        return not self._has_tls  # without TLS, requests that were received can still be answered


Accept = Callable[[ClientStream], None]


async def listen(
    host: str, port: int, tls: ssl.SSLContext | None, accept: Accept, *, longest_request: int
) -> asyncio.Server:
    """Listen for clients. Raise OSError if the port is in use."""
    return await asyncio.get_running_loop().create_server(
        lambda: ClientStream(accept, longest=longest_request),
        host,
        port,
        ssl=tls,
        backlog=_BACKLOG,
        ssl_handshake_timeout=None if tls is None else _HANDSHAKE_TIMEOUT,
    )
