"""The login of one connection."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import math
import re
import secrets
import struct
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, InvalidURL
from importlib import import_module
from typing import Any, Final, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote_plus, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ...exceptions import AuthenticationError, MissingDependencyError
from . import codec
from .connection import Code, Connection, Versions
from .errors import Address, AnswerLostError, NotSentError

# The messages of each login mechanism, without any connection.
#
# A login yields the bytes to send, and receives the bytes of the broker's answer, until it ends. It may block, for
# example to ask for a token.


Exchange = Generator[bytes, bytes, None]

_SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_FEWEST_ITERATIONS: Final = 4096
_MOST_ITERATIONS: Final = 1_000_000
"""Brokers use 4096 by default. More would let a false broker keep a processor busy for long."""
_NO_PROTECTION: Final = b"\x01"


class Login(Protocol):
    """Credentials for one mechanism."""

    @property
    def mechanism(self) -> str:
        """The name of the mechanism, as brokers know it."""

    def exchange(self, host: str) -> Exchange:
        """Log in at a broker. Raise AuthenticationError if the broker does not prove what it must."""


@dataclass(frozen=True)
class Plain:
    """A name and a password, which the broker sees."""

    user: str
    password: str = field(repr=False)
    mechanism: str = field(default="PLAIN", init=False)

    def exchange(self, host: str) -> Exchange:  # noqa: ARG002
        """Send both in one message."""
        yield f"\0{self.user}\0{self.password}".encode()


@dataclass(frozen=True)
class Scram:
    """A name and a password. Each side proves that it knows the password, without sending it (RFC 5802)."""

    user: str
    password: str = field(repr=False)
    mechanism: str = "SCRAM-SHA-512"

    def exchange(self, host: str) -> Exchange:  # noqa: ARG002
        """Send a proof, and check the proof of the broker."""
        nonce = secrets.token_urlsafe(24)
        first = f"n={self.user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        challenge = (yield f"n,,{first}".encode()).decode(errors="replace")
        parts = _parts(challenge)
        if not parts["r"].startswith(nonce) or len(parts["r"]) == len(nonce):
            raise AuthenticationError("the broker did not repeat the nonce of this login")
        last = f"c=biws,r={parts['r']}"
        proof, signature = self._proofs(parts, f"{first},{challenge},{last}".encode())
        answer = _parts((yield f"{last},p={_base64(proof)}".encode()).decode(errors="replace"))
        if not hmac.compare_digest(answer["v"].encode(), _base64(signature).encode()):
            raise AuthenticationError("the broker did not prove that it knows the password: check the address")

    def _proofs(self, parts: Mapping[str, str], messages: bytes) -> tuple[bytes, bytes]:
        """Return the proof of this side, and the signature that the broker must send."""
        kind = _SCRAM_HASHES[self.mechanism]
        salted = hashlib.pbkdf2_hmac(kind, self.password.encode(), _bytes(parts["s"]), _iterations(parts["i"]))
        client_key = hmac.digest(salted, b"Client Key", kind)
        signature = hmac.digest(hashlib.new(kind, client_key).digest(), messages, kind)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return proof, hmac.digest(hmac.digest(salted, b"Server Key", kind), messages, kind)


@dataclass(frozen=True)
class OAuth:
    """A token from a provider, which is called for each login."""

    token: Callable[[], str] = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)
    mechanism: str = field(default="OAUTHBEARER", init=False)

    def exchange(self, host: str) -> Exchange:  # noqa: ARG002
        """Send a token (RFC 7628). A broker that refuses it sends the reason, and fails after the next message."""
        extensions = "".join(f"{name}={value}\x01" for name, value in self.extensions.items())
        refused = yield f"n,,\x01auth=Bearer {self.token()}\x01{extensions}\x01".encode()
        if refused:
            yield b"\x01"
            raise AuthenticationError("the broker did not accept the token: check the client and its scope")


@dataclass(frozen=True)
class Kerberos:
    """A Kerberos ticket, or a keytab to get one. Needs the package gssapi."""

    service: str
    principal: str | None = None
    keytab: str | None = None
    mechanism: str = field(default="GSSAPI", init=False)

    def exchange(self, host: str) -> Exchange:
        """Authenticate both sides, and agree that connections have no protection by Kerberos (RFC 4752)."""
        gssapi = _gssapi()
        try:
            context = self._context(gssapi, host)
            token = context.step()
            while not context.complete:
                token = context.step((yield token or b""))
            offer = context.unwrap((yield token or b"")).message
            agreed = _NO_PROTECTION + offer[1:4] + (self.principal or "").encode()
            yield context.wrap(agreed, False).message
        except gssapi.exceptions.GSSError as error:
            raise AuthenticationError(f"Kerberos: {error}") from error

    def _context(self, gssapi: Any, host: str) -> Any:
        target = gssapi.Name(f"{self.service}@{host}", gssapi.NameType.hostbased_service)
        name = None if self.principal is None else gssapi.Name(self.principal, gssapi.NameType.kerberos_principal)
        store = None if self.keytab is None else {"client_keytab": self.keytab}
        ours = None if name is store is None else gssapi.Credentials(name=name, usage="initiate", store=store)
        return gssapi.SecurityContext(name=target.canonicalize(gssapi.MechType.kerberos), creds=ours, usage="initiate")


def _gssapi() -> Any:
    try:
        return import_module("gssapi")
    except (ImportError, OSError) as error:  # OSError: without Kerberos' own libraries
        raise MissingDependencyError("a Kerberos login needs the package gssapi: pip install gssapi") from error


def _parts(message: str) -> dict[str, str]:
    """Return the fields of a SCRAM message, such as `v=...`. A missing field is empty."""
    found = {"r": "", "s": "", "i": "", "v": ""} | dict(
        part.split("=", 1) for part in message.split(",") if "=" in part
    )
    if "e" in found:
        raise AuthenticationError(f"the broker refused the login: {found['e']}")
    return found


def _iterations(text: str) -> int:
    if re.fullmatch("[0-9]{1,9}", text) and _FEWEST_ITERATIONS <= int(text) <= _MOST_ITERATIONS:
        return int(text)
    raise AuthenticationError(
        f"the broker asks for {text[:20]!r} iterations: only {_FEWEST_ITERATIONS} to {_MOST_ITERATIONS} are safe"
    )


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise AuthenticationError("the broker sent a SCRAM message that cannot be read") from error


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# Tokens from an OpenID Connect provider, for a client with its own credentials.


_TIMEOUT: Final = 10.0
_LONGEST_ANSWER: Final = 1 << 20
_SHARE: Final = 0.8
"""The share of a token's lifetime in which it is used for more logins."""
_SERVER_ERROR: Final = 500


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects, because credentials must only be sent to the address that the user has set."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass
class ClientCredentials:
    """Asks a token endpoint for tokens, and keeps each for most of its lifetime. May be called from several threads."""

    url: str
    client: str
    secret: str = field(repr=False)
    scope: str | None = None
    timeout: float = _TIMEOUT
    _token: str = field(default="", init=False, repr=False)
    _until: float = field(default=0.0, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __call__(self) -> str:
        """Return a token. Raise AuthenticationError if the provider refuses, NotSentError if it does not answer."""
        with self._lock:
            if time.monotonic() >= self._until:
                begun = time.monotonic()
                self._token, lifetime = self._fetch()
                self._until = begun + lifetime * _SHARE
            return self._token

    def _fetch(self) -> tuple[str, float]:
        endpoint = f"the token endpoint {_shown(self.url)}"
        try:
            with build_opener(_NoRedirect).open(self._request(), timeout=self.timeout) as answer:
                return _read(endpoint, answer.read(_LONGEST_ANSWER))
        except HTTPError as error:
            error.close()
            if error.code >= _SERVER_ERROR:
                raise NotSentError(f"{endpoint} answered with status {error.code}") from None
            raise AuthenticationError(
                f"{endpoint} refused client {self.client!r} with status {error.code}: check its id and its secret"
            ) from None
        except (URLError, OSError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise NotSentError(f"no answer from {endpoint}: {reason}") from error
        except (InvalidURL, ValueError):  # their texts, and those below, contain what was sent or received
            raise NotSentError(f"no answer from {endpoint}: its address is not a valid URL") from None
        except HTTPException:
            raise NotSentError(f"no answer from {endpoint}: its answer is not HTTP") from None

    def _request(self) -> Request:
        fields = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        login = base64.b64encode(f"{quote_plus(self.client)}:{quote_plus(self.secret)}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
        return Request(self.url, urlencode(fields).encode(), headers)  # noqa: S310 -- jaas.py allows only HTTP


def _shown(url: str) -> str:
    """Return an address for messages, without a login and a query, which may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(not shown)"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _read(endpoint: str, answer: bytes) -> tuple[str, float]:
    try:
        found = json.loads(answer)
        token, lifetime = str(found["access_token"]), float(found.get("expires_in", 0))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise AuthenticationError(f"{endpoint} did not answer with a token") from None
    return token, lifetime if math.isfinite(lifetime) else 0.0


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
