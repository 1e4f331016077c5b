"""One open connection to a broker. It sends requests, and returns the answers in the same order."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections import deque
from ipaddress import ip_address
from typing import Final, Self

from ...exceptions import CertificateError
from . import codec
from .address import LAST_PORT, Address
from .errors import AnswerLostError, DamagedAnswerError, NoListenerError, NotSentError, WireError

_MOST_BYTES: Final = 200_000_000
"""The longest answer. The bytes of another protocol would mostly mean a longer one."""

_SIZE: Final = struct.Struct(">i")
_READ_AHEAD: Final = 1 << 20
_NEXT_ADDRESS_AFTER: Final = 0.25
"""In seconds: if a host has several addresses, the next one is tried after this time, beside the first."""
_TLS_ALERT: Final = b"\x15\x03"
"""The first bytes with which a TLS server answers a client without TLS."""
_READING: Final[set[asyncio.Task[None]]] = set()
"""An event loop refers to its tasks weakly, so a forgotten connection would be deleted before its task is cancelled."""


class Connection:
    """An open connection. A broker answers requests in their order; answers to cancelled requests are skipped."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address
        self._waiting: deque[tuple[int | None, asyncio.Future[bytes]]] = deque()
        self._since = 0.0
        self._answers = 0
        self._reason: WireError | CertificateError | None = None
        self._reading = asyncio.create_task(self._read())
        # Otherwise asyncio prints an error at the end of a process that has not closed its connections.
        self._reading._log_destroy_pending = False  # type: ignore[attr-defined]
        _READING.add(self._reading)
        self._reading.add_done_callback(_READING.discard)

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None) -> Self:
        """Connect to one of the addresses of the host."""
        if not 0 < address.port <= LAST_PORT:  # asyncio would fail with an IndexError
            raise NotSentError(f"no connection to {address}: the broker reported an impossible port")
        try:
            reader, writer = await asyncio.open_connection(
                address.host,
                address.port,
                ssl=tls,
                limit=_READ_AHEAD,
                happy_eyeballs_delay=_next_after(address.host),
            )
        except ssl.SSLError as error:
            raise _tls_failed(address, error) from error
        except ValueError as error:  # for the name of a host
            raise NotSentError(f"no connection to {address}: {error}") from error
        except OSError as error:
            kind = NoListenerError if isinstance(error, ConnectionRefusedError | socket.gaierror) else NotSentError
            raise kind(f"no connection to {address}: {_reason(error)}") from error
        return cls(reader, writer, address)

    @property
    def closed(self) -> bool:
        """True once the connection is closed, by either side."""
        return self._reason is not None

    @property
    def unanswered(self) -> int:
        """The number of requests without an answer, including cancelled ones."""
        return len(self._waiting)

    @property
    def waited(self) -> float:
        """How long the next answer has been awaited, in seconds."""
        return asyncio.get_running_loop().time() - self._since if self._waiting else 0.0

    async def exchange(self, frame: bytes, correlation_id: int | None) -> bytes:
        """Send a frame and return the answer. Without a correlation id, the answer has none either."""
        if self._reason is not None:
            raise NotSentError(f"the connection to {self._address} is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        if not self._waiting:
            self._since = loop.time()
        self._waiting.append((correlation_id, answer))
        self._writer.write(frame)
        return await answer

    def close(self, reason: str = "it was closed") -> None:
        """Close the connection. Requests without an answer fail."""
        self._fail(AnswerLostError(f"the connection to {self._address} ended: {reason}"))

    async def _read(self) -> None:
        try:
            while True:
                (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
                self._answered(await self._reader.readexactly(self._checked(size)))
        except asyncio.IncompleteReadError:
            self._fail(AnswerLostError(f"{self._address} closed the connection"))
        except ssl.SSLError as error:
            failed = _tls_failed(self._address, error)
            # A broker checks the client's certificate only after the handshake.
            self._fail(AnswerLostError(str(failed)) if self._answers else failed)
        except OSError as error:
            self._fail(AnswerLostError(f"the connection to {self._address} broke: {error.strerror or error}"))
        except DamagedAnswerError as error:
            self._fail(error)
        except asyncio.CancelledError:  # with all other tasks: the event loop ends
            self.close()
            raise

    def _checked(self, size: int) -> int:
        if 0 <= size <= _MOST_BYTES:
            return size
        if _SIZE.pack(size).startswith(_TLS_ALERT):
            raise DamagedAnswerError(f"{self._address} expects TLS: set security.protocol=SSL or SASL_SSL")
        raise DamagedAnswerError(
            f"{self._address} did not answer like a Kafka broker (a frame of {size} bytes): check the address"
        )

    def _answered(self, frame: bytes) -> None:
        if not self._waiting:
            raise DamagedAnswerError(f"{self._address} answered without a request")
        expected, answer = self._waiting.popleft()
        if expected is not None and (len(frame) < _SIZE.size or codec.correlation_id(frame) != expected):
            self._waiting.appendleft((expected, answer))
            raise DamagedAnswerError(f"{self._address} did not answer in the order of the requests")
        self._answers += 1
        self._since = asyncio.get_running_loop().time()
        if not answer.done():
            answer.set_result(frame)

    def _fail(self, reason: WireError | CertificateError) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        self._reading.cancel()
        self._writer.transport.abort()  # closing TLS would wait for the broker
        for _, answer in self._waiting:
            if not answer.done():
                answer.set_exception(reason)
        self._waiting.clear()


def _next_after(host: str) -> float | None:
    """Return the delay for a host that may have several addresses.

    A race between addresses leaves a socket open if it is cancelled at the moment when it has a winner.
    """
    try:
        ip_address(host)
    except ValueError:
        return _NEXT_ADDRESS_AFTER
    return None


def _reason(error: OSError) -> str:
    if error.errno is not None and error.errno > 0:  # asyncio replaces the message of the system
        return os.strerror(error.errno)
    return error.strerror or str(error) or "it closed the connection: perhaps it expects no TLS"


def _tls_failed(address: Address, error: ssl.SSLError) -> WireError | CertificateError:
    """Return a permanent error, unless the connection was only closed."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return NotSentError(f"{address} closed the connection: perhaps it expects no TLS")
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = (
            f"its certificate is not accepted: {error.verify_message}; check the address and ssl.truststore.location"
        )
    else:
        reason = f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return CertificateError(f"no connection to {address}: {reason}")
