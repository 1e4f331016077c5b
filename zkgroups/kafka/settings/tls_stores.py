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
    with _read("ssl.truststore", "certificates", properties):
        context = tls_context(trusted(properties), check_host=checks_host(properties))
    with _read("ssl.keystore", "key", properties):
        if (own := identity(properties)) is not None:
            load_identity(context, own)
    return context


def checks_host(properties: Mapping[str, str]) -> bool:
    """Return whether the certificate of a broker must be for its host."""
    return properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower() not in ("", "none")


def trusted(properties: Mapping[str, str]) -> str | None:
    """Return the trusted authorities as PEM; None for those of the system."""
    if (text := properties.get("ssl.truststore.certificates")) is not None:
        return text
    if (data := _file("ssl.truststore", properties)) is None:
        return None
    if _kind("ssl.truststore", data, properties) == "PEM":
        return data.decode()
    _, certificates = from_pkcs12(data, properties.get("ssl.truststore.password"))
    return certificates


def identity(properties: Mapping[str, str]) -> Identity | None:
    """Return the certificate of this client and its key; None without one."""
    password = properties.get("ssl.key.password")
    if (key := properties.get("ssl.keystore.key")) is not None:
        return Identity(properties.get("ssl.keystore.certificate.chain", ""), key, password)
    if (data := _file("ssl.keystore", properties)) is None:
        return None
    if _kind("ssl.keystore", data, properties) == "PEM":
        return Identity(data.decode(), "", password)
    found, _ = from_pkcs12(data, properties.get("ssl.keystore.password"))
    if found is None:
        raise ValueError("the store has no key")
    return found


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
