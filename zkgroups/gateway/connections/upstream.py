"""The connection to a broker on behalf of one client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from ...kafka.wire.address import Address
from ..limits import Limits
from .frames import FrameReader, send

_CONNECT_TIMEOUT: Final = 10.0
_READ_AHEAD: Final = 1 << 18


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
        self._writer: asyncio.StreamWriter | None = None
        self._frames: FrameReader | None = None
        self.logged_in = False

    async def connect_if_needed(self, *, answers_due: bool) -> None:
        """Connect, unless there is a connection. Raise UpstreamError if that fails."""
        if self._frames is not None and not self._frames.ended:
            return
        if self._frames is not None and (answers_due or self.logged_in):
            raise UpstreamError("the broker closed the connection")
        self.close()
        reader, self._writer = await self._connect()
        self._writer.transport.set_write_buffer_limits(high=_READ_AHEAD)
        self._frames = FrameReader(reader, longest=2**31 - 1, stall_timeout=self._limits.stall_timeout)

    @property
    def frames(self) -> FrameReader:
        """The frames that the broker sends."""
        if self._frames is None:
            raise UpstreamError("no connection to a broker")
        return self._frames

    async def send(self, data: bytes) -> None:
        """Send bytes, after `connect_if_needed`."""
        if self._writer is None:
            raise UpstreamError("no connection to a broker")
        await send(self._writer, data, self._limits.stall_timeout)

    def close(self) -> None:
        """Close the connection. Bytes that were sent still arrive."""
        if self._writer is not None:
            self._writer.close()
        self._writer = self._frames = None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reasons = []
        for address in self._addresses():
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    return await asyncio.open_connection(address.host, address.port, ssl=self._tls, limit=_READ_AHEAD)
            except TimeoutError:
                reasons.append(f"{address}: no answer")
            except (OSError, UnicodeError) as error:
                reasons.append(f"{address}: {error}")
        raise UpstreamError("; ".join(reasons) or "the address of the broker is not known")
