"""Certificates and keys: the files and texts in a Kafka client's properties."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ...input_errors import InvalidOptionError
from ..wire.security import Identity, from_pkcs12, load_identity, tls_context
from .properties import refused

_LONGEST: Final = 4 << 20
"""In bytes. The certificates of all public authorities take a tenth of it."""
_DER: Final = b"\x30"
"""The first byte of a PKCS12 store. Java also accepts such a store if its type is set to JKS."""


def tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return a TLS context with the trusted authorities, and the certificate of this client."""
    check_host = properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower() not in ("", "none")
    with _read("ssl.truststore", "certificates", properties):
        context = tls_context(_trusted(properties), check_host=check_host)
    with _read("ssl.keystore", "key", properties):
        if (identity := _identity(properties)) is not None:
            load_identity(context, identity)
    return context


def _trusted(properties: Mapping[str, str]) -> str | None:
    if (text := properties.get("ssl.truststore.certificates")) is not None:
        return text
    if (data := _file("ssl.truststore", properties)) is None:
        return None
    if _kind("ssl.truststore", data, properties) == "PEM":
        return data.decode()
    _, certificates = from_pkcs12(data, properties.get("ssl.truststore.password"))
    return certificates


def _identity(properties: Mapping[str, str]) -> Identity | None:
    password = properties.get("ssl.key.password")
    if (key := properties.get("ssl.keystore.key")) is not None:
        return Identity(properties.get("ssl.keystore.certificate.chain", ""), key, password)
    if (data := _file("ssl.keystore", properties)) is None:
        return None
    if _kind("ssl.keystore", data, properties) == "PEM":
        return Identity(data.decode(), "", password)
    identity, _ = from_pkcs12(data, properties.get("ssl.keystore.password"))
    if identity is None:
        raise ValueError("the store has no key")
    return identity


def _file(store: str, properties: Mapping[str, str]) -> bytes | None:
    path = properties.get(f"{store}.location")
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            return file.read(_LONGEST)
    except OSError as error:
        raise refused(f"{store}.location", path, f"it cannot be read: {error.strerror}") from error


def _kind(store: str, data: bytes, properties: Mapping[str, str]) -> str:
    kind = properties.get(f"{store}.type", "JKS").strip().upper()
    if kind in ("PEM", "PKCS12"):
        return kind
    if data.startswith(_DER):
        return "PKCS12"
    raise refused(
        f"{store}.location",
        properties[f"{store}.location"],
        f"it has the type {kind}, which is not supported: convert it with keytool -importkeystore -deststoretype "
        f"PKCS12, and set {store}.type=PKCS12",
    )


@contextmanager
def _read(store: str, text: str, properties: Mapping[str, str]) -> Iterator[None]:
    """Convert errors to errors that name the setting, without the message of the library, which may contain secrets."""
    try:
        yield
    except InvalidOptionError:
        raise
    except (ssl.SSLError, ValueError):
        name = f"{store}.{text}" if f"{store}.{text}" in properties else f"{store}.location"
        reason = "its certificates or its key cannot be read: check the contents, the type and the password"
        raise refused(name, properties.get(name, ""), reason) from None
