"""The text of zoo.cfg, and of the JAAS file with the users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .java_properties import properties, quoted

LONGEST_SESSION = 300.0


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS options of a server, as PEM files. The key store has its key (PKCS #8) and its certificate."""

    key_store: Path
    trust_store: Path
    client_auth: Literal["need", "none"] = "need"


@dataclass(frozen=True, slots=True)
class Sasl:
    """The users for DIGEST-MD5, with their passwords. `enforce` refuses all other clients."""

    users: Mapping[str, str]
    enforce: bool = False


@dataclass(frozen=True, slots=True)
class Listen:
    """The addresses the server listens on; `secure_port` only with TLS."""

    host: str
    port: int
    secure_port: int | None = None


def zoo_cfg(
    *, data_dir: Path, listen: Listen, tick_time: float, tls: Tls | None, sasl: Sasl | None, extra: Mapping[str, str]
) -> str:
    """Return the text of zoo.cfg. Lines of `extra` override the others."""
    lines = _basic(data_dir, listen, tick_time) | _tls(listen, tls) | _sasl(sasl) | dict(extra)
    return properties(lines)


def jaas(sasl: Sasl) -> str:
    """Return the text of the JAAS file."""
    users = "\n".join(f"  user_{name}={quoted(password)}" for name, password in sasl.users.items())
    return f"Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n{users};\n}};\n"


def _basic(data_dir: Path, listen: Listen, tick_time: float) -> dict[str, str]:
    return {
        "dataDir": str(data_dir),
        "clientPort": str(listen.port),
        "clientPortAddress": listen.host,
        "tickTime": _milliseconds(tick_time),
        "minSessionTimeout": _milliseconds(2 * tick_time),
        "maxSessionTimeout": _milliseconds(LONGEST_SESSION),
        # All clients of a test share one address, and the default limit is 60 connections for an address.
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        # Writes survive a killed server, but not a power cut. A temporary server need not wait for the disk.
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
