"""The messages of each login mechanism, without any connection.

A login yields the bytes to send, and receives the bytes of the broker's answer, until it ends. It may block, for
example to ask for a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Protocol

from ...exceptions import AuthenticationError, MissingDependencyError

Exchange = Generator[bytes, bytes, None]

_SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_FEWEST_ITERATIONS: Final = 4096
_MOST_ITERATIONS: Final = 1_000_000
"""Brokers use 4096 by default. More would let a false broker keep a processor busy for long."""
"""More would keep this process busy for minutes."""
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
