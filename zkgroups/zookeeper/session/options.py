"""The options of a connection, checked before anything is sent."""

from __future__ import annotations

import importlib.util
import re
import ssl
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ...core.session_lifetime import PROOF_LIFETIME
from ...core.znodes.names import check_name
from ...exceptions import InvalidNameError, InvalidOptionError, MissingDependencyError

MAX_SESSION_TIMEOUT: Final = 300.0
SHORT_SESSION_TIMEOUT: Final = 10.0
"""How long a server that is cut off from its leader keeps answering, in seconds: `syncLimit` × `tickTime` in
ZooKeeper's sample configuration. Servers do not report their own values."""


class ShortSessionWarning(UserWarning):
    """The session timeout is so short that a pause, an election or a server without its leader can end the claims."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A user and password of ZooKeeper's `digest` scheme, which ACLs refer to."""

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.user or ":" in self.user:
            raise InvalidOptionError("user", self.user, "it must be a name without a colon")


@dataclass(frozen=True, slots=True)
class Sasl:
    """A user and password for SASL DIGEST-MD5. Requires the extra `zkgroups[sasl]`."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for TLS: the authority to trust, and the client's certificate if the server requires one."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_hostname: bool = True


# An invalid name such as `zk..example` would end kazoo's thread.
_SERVER: Final = re.compile(
    r"(?:[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?"
    r"|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


def check_hosts(hosts: object) -> str:
    """Return a valid hosts string such as `zk1:2181,zk2:2181/kafka`, or raise `InvalidOptionError`."""
    if not isinstance(hosts, str) or not hosts.strip():
        raise InvalidOptionError("zookeeper", hosts, "it must be like host:port,host:port/chroot")
    servers, _, chroot = hosts.strip().partition("/")
    for server in servers.split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match["port"] or 2181) < 65536:
            raise InvalidOptionError(
                "zookeeper",
                hosts,
                f"it must be like host:port,host:port/chroot ({server.strip()!r} is not a host and port)",
            )
    try:
        for name in chroot.rstrip("/").split("/") if chroot.rstrip("/") else ():
            check_name("chroot", name)
    except InvalidNameError as error:
        raise InvalidOptionError("zookeeper", hosts, f"it must be like host:port,host:port/chroot ({error})") from error
    return hosts.strip().rstrip("/")


def check_session_timeout(seconds: object) -> float:
    """Return a valid session timeout in seconds, or raise `InvalidOptionError`. Warn if it is short."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SESSION_TIMEOUT:
        raise InvalidOptionError("session_timeout", seconds, f"it must be over 0 and at most {MAX_SESSION_TIMEOUT:g} s")
    if seconds < SHORT_SESSION_TIMEOUT:
        warnings.warn(
            f"a session timeout of {seconds:g} s is short: claims end if for {PROOF_LIFETIME * seconds:g} s nothing "
            "proves that the session is alive, for example during a long pause or an election, or if the server is "
            f"cut off from its leader; use {SHORT_SESSION_TIMEOUT:g} s or more",
            ShortSessionWarning,
            stacklevel=4,
        )
    return float(seconds)


def sasl_options(auth: Sequence[Digest | Sasl]) -> dict[str, str] | None:
    """Return kazoo's options for a SASL login, if `auth` contains one."""
    entries = [entry for entry in auth if isinstance(entry, Sasl)]
    if not entries:
        return None
    if len(entries) > 1:
        raise InvalidOptionError("auth", entries, "a connection can have only one SASL identity")
    if importlib.util.find_spec("puresasl") is None:
        raise MissingDependencyError("SASL requires pure-sasl: pip install 'zkgroups[sasl]'")
    return {"mechanism": "DIGEST-MD5", "username": entries[0].user, "password": entries[0].password}


def tls_options(tls: Tls | None) -> dict[str, Any]:
    """Return kazoo's options for TLS, with files that exist and can be used."""
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
