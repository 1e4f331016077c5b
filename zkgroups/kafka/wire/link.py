"""A link to one address: a connection that is opened, logged in, and opened again after it broke."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any, Final

from ...exceptions import UnavailableError
from . import codec
from .connection import Connection, Versions, reported
from .errors import Address, AnswerLostError, NotSentError
from .login import log_in
from .security import Security

_log = logging.getLogger("zkgroups.kafka")

_IDLE: Final = 240.0
"""In seconds. Brokers, and firewalls between, close connections that were not used for some minutes."""
_SESSION_SHARE: Final = 0.85
"""The share of a login's lifetime after which to log in again, on a new connection."""
_SKIPPED: Final = 10.0
"""In seconds: how long to wait for the answer to a cancelled request."""
_LAST_ID: Final = 2**31 - 1

Frame = Callable[[int, int], bytes]
"""Returns the frame of a request, given its version and correlation id."""


class Link:
    """Sends requests to one address, one after the other. Nothing connects before the first request."""

    def __init__(
        self,
        address: Address,
        security: Security,
        *,
        client_id: str = "zkgroups",
        connect_timeout: float = 10.0,
    ) -> None:
        self.address = address
        self._security = security
        self._client_id = client_id
        self._connect_timeout = connect_timeout
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None
        self._versions = Versions({})
        self._correlation_id = 0
        self._users = 0
        self._used = 0.0
        self._expires = math.inf
        self._closed = False

    @property
    def load(self) -> int:
        """The number of requests that wait for their turn or for an answer, including cancelled ones."""
        return self._users + (0 if self._connection is None else self._connection.unanswered)

    @property
    def is_open(self) -> bool:
        """True while there is a connection."""
        return self._connection is not None and not self._connection.closed

    async def request(self, request: Any, *, timeout: float = 30.0) -> Any:
        """Return the response to a request, in the last version that both sides support.

        The timeout in seconds begins with the request's turn, and includes connecting. If the call is cancelled, the
        answer is skipped when it comes.
        """
        key = request.API_KEY

        def frame(version: int, correlation_id: int) -> bytes:
            return codec.encode(request, version, correlation_id, self._client_id)

        version, answer = await self.exchange(key, frame, timeout=timeout)
        return codec.decode(request, version, answer)

    async def exchange(self, key: int, frame: Frame, *, timeout: float = 30.0) -> tuple[int, bytes]:
        """Send a frame that the caller builds, and return its version and the answer as bytes."""
        self._users += 1
        try:
            async with self._turn:
                return await self._within(timeout, key, frame)
        finally:
            self._users -= 1

    async def open(self) -> Versions:
        """Connect unless connected, and return the versions that the broker supports."""
        if not self.is_open:
            self._users += 1
            try:
                async with self._turn:
                    await self._opened()
            finally:
                self._users -= 1
        return self._versions

    def close(self) -> None:
        """Close the connection. The link cannot be used again."""
        self._closed = True
        self._drop("it was closed")

    async def _within(self, timeout: float, key: int, frame: Frame) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        connection = None
        try:
            async with asyncio.timeout(timeout):
                connection = await self._opened()
                version = self._versions.needed(key, self.address)
                correlation_id = self._next_id()
                answer = await connection.exchange(frame(version, correlation_id), correlation_id)
        except TimeoutError as error:
            self._drop("no answer in time")
            kind = NotSentError if connection is None else AnswerLostError
            raise kind(f"no answer from {self.address} within {timeout:.3g} s") from error
        self._used = loop.time()
        return version, answer

    async def _opened(self) -> Connection:
        """Return a usable connection: the present one, or a new one."""
        if self._closed:
            raise UnavailableError("the connection to the brokers is closed: connect again")
        now = asyncio.get_running_loop().time()
        if now > min(self._used + _IDLE, self._expires):
            self._drop("it was unused, or its login has expired")
        if self._connection is not None and self._connection.waited > _SKIPPED:
            self._drop("a cancelled request was not answered")
        if self._connection is None or self._connection.closed:
            self._connection = await self._open()
        return self._connection

    async def _open(self) -> Connection:
        begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection, lifetime = await self._logged_in()
        except TimeoutError as error:
            raise NotSentError(f"no connection to {self.address} within {self._connect_timeout:g} s") from error
        except AnswerLostError as error:  # to a request that only prepares the connection
            raise NotSentError(str(error)) from error
        self._used = asyncio.get_running_loop().time()
        self._expires = begun + lifetime * _SESSION_SHARE  # it began at the broker before its answer arrived here
        return connection

    async def _logged_in(self) -> tuple[Connection, float]:
        """Return a connection, and the lifetime of its login."""
        connection = await self._connect()
        try:
            self._versions = await reported(connection, self._connect)
            if self._versions.release is not None:
                _log.info(
                    "the broker at %s does not report its versions; assuming release %s",
                    self.address,
                    self._versions.release,
                )
                connection.close()
                connection = await self._connect()
            if self._security.login is None:
                return connection, math.inf
            return connection, await log_in(connection, self._security.login, self.address, self._versions)
        except BaseException:
            connection.close()
            raise

    async def _connect(self) -> Connection:
        return await Connection.open(self.address, self._security.tls)

    def _next_id(self) -> int:
        self._correlation_id = self._correlation_id % _LAST_ID + 1
        return self._correlation_id

    def _drop(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.close(reason)
        self._connection = None
