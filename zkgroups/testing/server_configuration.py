"""What a server is told: zoo.cfg, and the JAAS file with its users. Text from values; nothing is written here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LONGEST_SESSION = 300.0


@dataclass(frozen=True, slots=True)
class Tls:
    """The server's side of TLS: PEM files; the key store holds its key, in PKCS #8 form, and its certificate."""

    key_store: Path
    trust_store: Path
    client_auth: Literal["need", "none"] = "need"


@dataclass(frozen=True, slots=True)
class Sasl:
    """Users who log in with DIGEST-MD5 (name to password); `enforce` turns everybody else away."""

    users: Mapping[str, str]
    enforce: bool = False


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the server listens; `secure_port` only with TLS."""

    host: str
    port: int
    secure_port: int | None = None


def zoo_cfg(
    *, data_dir: Path, listen: Listen, tick_time: float, tls: Tls | None, sasl: Sasl | None, extra: Mapping[str, str]
) -> str:
    """The text of zoo.cfg; `extra` comes last and wins."""
    lines = _basic(data_dir, listen, tick_time) | _tls(listen, tls) | _sasl(sasl) | dict(extra)
    return "".join(f"{key}={_escape(value)}\n" for key, value in lines.items())


def jaas(sasl: Sasl) -> str:
    """The text of the file that names the users."""
    users = "\n".join(f"  user_{name}={_quote(password)}" for name, password in sasl.users.items())
    return f"Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n{users};\n}};\n"


def _basic(data_dir: Path, listen: Listen, tick_time: float) -> dict[str, str]:
    return {
        "dataDir": str(data_dir),
        "clientPort": str(listen.port),
        "clientPortAddress": listen.host,
        "tickTime": _milliseconds(tick_time),
        "minSessionTimeout": _milliseconds(2 * tick_time),
        "maxSessionTimeout": _milliseconds(LONGEST_SESSION),
        # All clients of a test come from one address, and by default one address gets 60 connections.
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        # What is written survives a killed server, only not a power cut: a throw-away server need not wait for disks.
        "forceSync": "no",
    }


def _tls(listen: Listen, tls: Tls | None) -> dict[str, str]:
    if tls is None:
        return {}
    return {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(listen.secure_port),
        "secureClientPortAddress": listen.host,
        "ssl.keyStore.location": str(tls.key_store.absolute()),
        "ssl.trustStore.location": str(tls.trust_store.absolute()),
        "ssl.clientAuth": tls.client_auth,
    }


def _sasl(sasl: Sasl | None) -> dict[str, str]:
    if sasl is None:
        return {}
    provider = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    return provider | ({"sessionRequireClientSASLAuth": "true"} if sasl.enforce else {})


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))


def _escape(value: str) -> str:
    # zoo.cfg is a Java properties file: a backslash starts an escape there.
    return value.replace("\\", "\\\\")


def _quote(password: str) -> str:
    return '"' + password.replace("\\", "\\\\").replace('"', '\\"') + '"'
