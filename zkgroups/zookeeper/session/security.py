"""Logins and TLS: the values that users pass, and kazoo's options for them."""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...exceptions import InvalidOptionError, MissingDependencyError


@dataclass(frozen=True, slots=True)
class Digest:
    """A user and password for ACLs of ZooKeeper's `digest` scheme, for `Registry.connect(auth=[...])`."""

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.user or ":" in self.user:
            raise InvalidOptionError("user", self.user, "it must be a name without a colon")


@dataclass(frozen=True, slots=True)
class Sasl:
    """A user and password for SASL DIGEST-MD5, for `Registry.connect(auth=[...])`. Needs the extra `zkgroups[sasl]`."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for TLS, for `Registry.connect(tls=...)`.

    - `ca`: the certificates of the authorities to trust; by default those of the system.
    - `certificate`, `key`: the client's certificate and its key, if the server requires one. One file may contain both.
    - `key_password`: the password of the key.
    - `verify_hostname`: False to skip the check of the server's host name.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_hostname: bool = True


def kazoo_options(auth: Sequence[Digest | Sasl], tls: Tls | None) -> dict[str, Any]:
    """Return kazoo's options for these logins and for TLS."""
    digests = [("digest", f"{entry.user}:{entry.password}") for entry in auth if isinstance(entry, Digest)]
    return {"auth_data": digests, "sasl_options": _sasl_options(auth), **_tls_options(tls)}


def _sasl_options(auth: Sequence[Digest | Sasl]) -> dict[str, str] | None:
    entries = [entry for entry in auth if isinstance(entry, Sasl)]
    if not entries:
        return None
    if len(entries) > 1:
        raise InvalidOptionError("auth", entries, "a connection can have only one SASL identity")
    if importlib.util.find_spec("puresasl") is None:
        raise MissingDependencyError("SASL requires pure-sasl: pip install 'zkgroups[sasl]'")
    return {"mechanism": "DIGEST-MD5", "username": entries[0].user, "password": entries[0].password}


def _tls_options(tls: Tls | None) -> dict[str, Any]:
    """Return options with files that exist and can be used."""
    if tls is None:
        return {}
    for option, file in (("tls ca", tls.ca), ("tls certificate", tls.certificate), ("tls key", tls.key)):
        if file is not None and not Path(file).is_file():
            raise InvalidOptionError(option, str(file), "the file does not exist")
    if tls.key is not None and tls.certificate is None:
        raise InvalidOptionError("tls key", str(tls.key), "it needs the certificate it belongs to")
    _check_readable(tls)
    return {
        "use_ssl": True,
        "ca": None if tls.ca is None else str(tls.ca),
        "certfile": None if tls.certificate is None else str(tls.certificate),
        # kazoo silently ignores a certificate without a key file; one file may contain both
        "keyfile": None if tls.certificate is None else str(tls.key or tls.certificate),
        "keyfile_password": tls.key_password or "",  # for None, OpenSSL would ask at the terminal
        "check_hostname": tls.verify_hostname,
    }


def _check_readable(tls: Tls) -> None:
    """Raise `InvalidOptionError` for unusable files. kazoo would try them again until the timeout."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    option, file = "tls ca", tls.ca
    try:
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
        option, file = "tls certificate", tls.certificate
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password=tls.key_password or "")
    except OSError as error:  # includes every SSLError
        raise InvalidOptionError(option, str(file), f"it cannot be used: {error.strerror or error}") from error
