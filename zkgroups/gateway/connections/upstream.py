"""The connection to a broker on behalf of one client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from ...kafka.wire.address import Address
from .frame_stream import FrameStream

_CONNECT_TIMEOUT: Final = 10.0
_LONGEST_ANSWER: Final = 2**31 - 1


class UpstreamError(Exception):
    """No connection to a broker, or a connection that ended too early."""


class Upstream:
    """Connects to a broker before the first request is sent.

    A broker closes connections that are idle for some minutes. The connection of a client is idle while the gateway
    answers all its requests. The next request for the broker opens a new connection. This is not possible if an answer
    is due, or if the client has logged in. Then the client is disconnected, and repeats its requests and its login.

    - `addresses`: returns the addresses to try, one after the other. It is called for each attempt to connect.
    """

    def __init__(self, addresses: Callable[[], Sequence[Address]], tls: ssl.SSLContext | None) -> None:
        self._addresses = addresses
        self._tls = tls
        self.on_change: Callable[[], None] = _nothing
        """Called after each change of the stream."""
        self.stream: FrameStream | None = None
        """The last connection, which may have ended."""
        self.logged_in = False

    @property
    def is_open(self) -> bool:
        """True if requests can be sent."""
        return self.stream is not None and not (self.stream.ended or self.stream.is_closing)

    @property
    def has_ended(self) -> bool:
        """True if the broker has closed the connection."""
        return self.stream is not None and self.stream.ended

    @property
    def is_full(self) -> bool:
        """True while the broker reads too slowly."""
        return self.stream is not None and self.stream.is_full

    async def open(self, *, answers_due: bool) -> None:
        """Connect, unless there is a connection. Raise UpstreamError if that fails."""
        if self.is_open:
            return
        if self.stream is not None and (answers_due or self.logged_in):
            raise UpstreamError("the broker closed the connection")
        self.stream = await self._connect()
        self.stream.on_change = self.on_change

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes to the broker. There must be a connection."""
        assert self.stream is not None
        self.stream.send(data)

    def close(self, longest: float) -> None:
        """Close the connection. Bytes that were sent still arrive, unless that takes longer, in seconds."""
        if self.stream is not None:
            self.stream.close(longest)

    async def _connect(self) -> FrameStream:
        loop, reasons = asyncio.get_running_loop(), []
        for address in self._addresses():
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    _, stream = await loop.create_connection(_stream, address.host, address.port, ssl=self._tls)
                    return stream
            except TimeoutError:
                reasons.append(f"{address}: no answer")
            except (OSError, UnicodeError) as error:
                reasons.append(f"{address}: {error}")
        raise UpstreamError(f"no connection to a broker: {'; '.join(reasons) or 'its address is not known'}")


def _stream() -> FrameStream:
    return FrameStream(longest=_LONGEST_ANSWER)


def _nothing() -> None:
    pass
