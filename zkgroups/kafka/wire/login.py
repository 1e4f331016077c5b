"""The login of one connection."""

from __future__ import annotations

import asyncio
import math
import struct
from typing import Any, Final

from ...exceptions import AuthenticationError
from . import codec
from .address import Address
from .connection import Connection
from .error_codes import Code
from .errors import AnswerLostError
from .sasl import Exchange, Login
from .versions import Versions

_CLIENT: Final = "zkgroups"
_LENGTH: Final = struct.Struct(">i")


async def log_in(connection: Connection, login: Login, address: Address, versions: Versions) -> float:
    """Log in, and return the lifetime of the session in seconds. Raise AuthenticationError if that is refused."""
    try:
        return await _Attempt(connection, versions).run(login, address)
    except AuthenticationError as error:
        raise AuthenticationError(f"the login at {address} failed: {error}") from error


class _Attempt:
    def __init__(self, connection: Connection, versions: Versions) -> None:
        self._connection = connection
        self._authenticate = versions.best(codec.SASL_AUTHENTICATE)
        """The version of these requests. Brokers before 1.0 do not have them, and expect bare messages."""

    async def run(self, login: Login, address: Address) -> float:
        await self._choose(login.mechanism)
        lifetime = math.inf
        exchange = login.exchange(address.host)
        message: bytes | None = await asyncio.to_thread(next, exchange)
        while message is not None:
            answer, lifetime = await self._send(message)
            message = await asyncio.to_thread(_next, exchange, answer)
        return lifetime

    async def _choose(self, mechanism: str) -> None:
        request = codec.SaslHandshakeRequest(mechanism=mechanism)
        answer = await self._ask(request, 0 if self._authenticate is None else 1)
        if answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(sorted(answer.mechanisms)) or "none"
            raise AuthenticationError(f"the broker does not support {mechanism}; its mechanisms: {offered}")
        if answer.error_code == Code.ILLEGAL_SASL_STATE:
            raise AuthenticationError("the broker expects no login at this port: check security.protocol")
        if answer.error_code != Code.NONE:
            raise AuthenticationError(Code.words(answer.error_code))

    async def _send(self, message: bytes) -> tuple[bytes, float]:
        """Send a message of the mechanism. Return the answer, and the lifetime of the session."""
        if self._authenticate is None:
            return await self._send_bare(message), math.inf
        answer = await self._ask(codec.SaslAuthenticateRequest(auth_bytes=message), self._authenticate)
        if answer.error_code != Code.NONE:
            raise AuthenticationError(answer.error_message or Code.words(answer.error_code))
        return answer.auth_bytes, answer.session_lifetime_ms / 1000 or math.inf

    async def _send_bare(self, message: bytes) -> bytes:
        try:
            return await self._connection.exchange(_LENGTH.pack(len(message)) + message, None)
        except AnswerLostError as error:
            raise AuthenticationError("the broker closed the connection: check the user and the password") from error

    async def _ask(self, request: Any, version: int) -> Any:
        frame = await self._connection.exchange(codec.encode(request, version, 1, _CLIENT), 1)
        return codec.decode(request, version, frame)


def _next(exchange: Exchange, answer: bytes) -> bytes | None:
    """Return the next message of the mechanism; None after the last."""
    try:
        return exchange.send(answer)
    except StopIteration:
        return None
