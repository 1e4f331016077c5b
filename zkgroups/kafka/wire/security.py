"""How connections are protected: TLS, and the login."""

from __future__ import annotations

import os
import re
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from ...exceptions import MissingDependencyError
from .login import Login

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([^-:]*)-----END \1-----")
_COLUMNS: Final = 64


@dataclass(frozen=True)
class Security:
    """TLS and the login of connections. None means without."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None


@dataclass(frozen=True)
class Identity:
    """The certificate of this client with its chain, and its key, as PEM."""

    certificates: str
    key: str = field(repr=False)
    password: str | None = field(default=None, repr=False)
    """The password of the key, if the key is encrypted."""


def tls_context(trusted: str | None = None, *, check_host: bool = True) -> ssl.SSLContext:
    """Return a context that trusts these certificate authorities (PEM), or those of the system.

    Raise ValueError or ssl.SSLError for text that is not PEM.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_host
    if trusted is None:
        context.load_default_certs()
    else:
        # Comments between certificates may have any letters, but Python accepts only ASCII.
        context.load_verify_locations(cadata=pem(trusted).encode("ascii", "replace").decode())
    return context


def load_identity(context: ssl.SSLContext, identity: Identity) -> None:
    """Let a context present this certificate. Raise ssl.SSLError or ValueError if it cannot be read."""
    with _file_in_memory(f"{pem(identity.key)}\n{pem(identity.certificates)}") as file:
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(file, password=identity.password or "")


@contextmanager
def _file_in_memory(text: str) -> Iterator[str]:
    """Yield the path of a file with this text. Python loads keys only from files. This one never is on a disk."""
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("key"), "w", encoding="utf-8") as memory:
            memory.write(text)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
    else:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:  # only this user can read it
            file.write(text)
            file.flush()
            yield file.name


def pem(text: str) -> str:
    """Return PEM with the line breaks that OpenSSL needs. Java also accepts PEM in a single line."""
    return _BLOCK.sub(_wrapped, text)


def from_pkcs12(data: bytes, password: str | None) -> tuple[Identity | None, str]:
    """Return the client's identity in a PKCS12 store, if any, and its other certificates as PEM.

    Raise ValueError if the password or the store is wrong.
    """
    pkcs12, serialization = _cryptography()
    found = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    encoding = serialization.Encoding.PEM
    others = "".join(each.certificate.public_bytes(encoding).decode() for each in found.additional_certs)
    if found.key is None or found.cert is None:
        return None, others
    # The key is written to a file for a moment, so it is encrypted.
    secret = os.urandom(32).hex()
    key = found.key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(secret.encode())
    )
    own = found.cert.certificate.public_bytes(encoding).decode()
    return Identity(own + others, key.decode(), secret), others


def _wrapped(block: re.Match[str]) -> str:
    body = "".join(block[2].split())
    lines = [body[first : first + _COLUMNS] for first in range(0, len(body), _COLUMNS)]
    return "\n".join((f"-----BEGIN {block[1]}-----", *lines, f"-----END {block[1]}-----\n"))


def _cryptography() -> tuple[Any, Any]:
    try:
        pkcs12 = import_module("cryptography.hazmat.primitives.serialization.pkcs12")
        return pkcs12, import_module("cryptography.hazmat.primitives.serialization")
    except ImportError as error:
        raise MissingDependencyError(
            "stores of type PKCS12 need the package cryptography: pip install cryptography"
        ) from error
