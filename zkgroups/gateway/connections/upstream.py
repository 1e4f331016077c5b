"""The connection to a broker on behalf of one client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from ...kafka.wire.address import Address
from ..limits import Limits
from .byte_stream import ByteStream
from .frames import FrameReader

_CONNECT_TIMEOUT: Final = 10.0


class UpstreamError(Exception):
    """No connection to a broker, or a connection that ended too early."""


class Upstream:
    """Connects to a broker when the first request is sent.

    A broker closes connections that are idle for some minutes. The connection of a client is idle while the gateway
    answers all its requests. The next request for the broker opens a new connection. This is not possible if an answer
    is due, or if the client has logged in: then the client is disconnected, so that it repeats its requests and its
    login.

    - `addresses`: returns the addresses to try, one after the other. It is called for each attempt to connect.
    """

    def __init__(self, addresses: Callable[[], Sequence[Address]], tls: ssl.SSLContext | None, limits: Limits) -> None:
        self._addresses = addresses
        self._tls = tls
        self._limits = limits
        self._stream: ByteStream | None = None
        self._frames: FrameReader | None = None
        self.logged_in = False

    async def connect_if_needed(self, *, answers_due: bool) -> None:
        """Connect, unless there is a connection. Raise UpstreamError if that fails."""
        if self._stream is not None:
            if not self._stream.at_end:
                return
            if answers_due or self.logged_in:
                raise UpstreamError("the broker closed the connection")
        self.close()
        self._stream = await self._connect()
        self._frames = FrameReader(self._stream, longest=2**31 - 1, stall_timeout=self._limits.stall_timeout)

    @property
    def frames(self) -> FrameReader:
        """The frames that the broker sends."""
        if self._frames is None:
            raise UpstreamError("no connection to a broker")
        return self._frames

    async def send(self, data: bytes | memoryview) -> None:
        """Send bytes, after `ready`."""
        if self._stream is None:
            raise UpstreamError("no connection to a broker")
        await self._stream.send(data, self._limits.stall_timeout)

    def close(self) -> None:
        """Close the connection. Bytes that were sent still arrive."""
        if self._stream is not None:
            self._stream.close()
        self._stream = self._frames = None

    async def _connect(self) -> ByteStream:
        loop, reasons = asyncio.get_running_loop(), []
        for address in self._addresses():
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    _, stream = await loop.create_connection(ByteStream, address.host, address.port, ssl=self._tls)
                    return stream
            except TimeoutError:
                reasons.append(f"{address}: no answer")
            except (OSError, UnicodeError) as error:
                reasons.append(f"{address}: {error}")
        raise UpstreamError("; ".join(reasons) or "the address of the broker is not known")
