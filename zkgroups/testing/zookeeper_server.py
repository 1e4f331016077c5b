"""A temporary ZooKeeper server on a loopback port.

    with ZooKeeperServer() as server:
        client = KazooClient(server.address)

What can be done with it, such as to kill or to suspend it, is in `local_server.py`.

A client that reconnects in the first milliseconds of a start may get no answer: ZooKeeper 3.9 then neither answers nor
closes the connection. kazoo waits for the session timeout divided by its number of hosts. So a client that must keep
its session through a restart should list the address several times.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..exceptions import InvalidOptionError, ServerStartError
from . import local_server
from .class_archives import archive_options, write_and_read
from .java import companion_jars, fetch, find_java, properties, quoted, server_jars
from .local_server import LocalServer

# ZooKeeper's four-letter words: ask for the state of a server without a session or a client library.


_NOT_SERVING = "not currently serving requests"


def ask(host: str, port: int, word: str = "srvr", *, timeout: float = 1.0) -> str:
    """Return the whole answer to a four-letter word. Raise OSError if there is none."""
    answer = ""
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(word.encode())
        # A starting server answers that it does not serve, and then does not close the connection.
        while _NOT_SERVING not in answer and (received := connection.recv(4096)):
            answer += received.decode(errors="replace")
    return answer


def mode(host: str, port: int) -> str | None:
    """Return `standalone`, `leader`, `follower`, `observer` or `read-only`; None if no server serves."""
    try:
        answer = ask(host, port)
    except OSError:
        return None
    # A server without a quorum answers, too, so the answer must be read.
    if _NOT_SERVING in answer:
        return None
    found = (line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: "))
    return next(found, None)


def accepts(host: str, port: int, *, timeout: float = 1.0) -> bool:
    """Return True if a server accepts connections on this port."""
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError:
        return False
    return True


# ZooKeeper servers of other releases than the one in pyspark.
#
# Only ZooKeeper's own jars are downloaded. The other jars come from pyspark, so the logger, the settings and the
# start-up time are the same for all releases. Tested with 3.4.14, 3.5.10, 3.6.4, 3.7.2 and 3.8.4.
#
# `ZKGROUPS_TEST_RELEASE` is the release of every server for which the caller chooses none.


RELEASE_VARIABLE = "ZKGROUPS_TEST_RELEASE"

# 3.4 and 3.5 register log4j 1 in JMX, and exit if it is missing.
RELEASE_OPTIONS = ("-Dzookeeper.jmx.log4j.disable=true",)

_FIRST_WITH_TLS = "3.5.0"
_FIRST_WITH_JUTE = "3.5.5"
_FIRST_WITH_REQUIRED_LOGINS = "3.6.0"


def default_release() -> str | None:
    """Return the release that the environment chooses. None for the one in pyspark."""
    return os.environ.get(RELEASE_VARIABLE) or None


def check_release(release: str, *, tls: bool, required_logins: bool) -> None:
    """Raise an error if the release is unknown or lacks a requested feature."""
    if not re.fullmatch(r"3\.\d+\.\d+", release):
        raise InvalidOptionError("release", release, "it must be a release of ZooKeeper, such as 3.5.10")
    if tls and is_before(release, _FIRST_WITH_TLS):
        raise InvalidOptionError("release", release, "releases before 3.5 have no TLS: leave out tls")
    if required_logins and is_before(release, _FIRST_WITH_REQUIRED_LOGINS):
        raise InvalidOptionError("release", release, "releases before 3.6 cannot require logins: leave out enforce")


def release_jars(release: str, *, netty: bool = False) -> tuple[Path, ...]:
    """Return the class path of a server of this release. TLS and logins need `netty`."""
    names = ("zookeeper",) if is_before(release, _FIRST_WITH_JUTE) else ("zookeeper", "zookeeper-jute")
    own = fetch(*(f"org.apache.zookeeper:{name}:{release}" for name in names), dependencies=False)
    return own + companion_jars(netty=netty)


def is_before(release: str, other: str) -> bool:
    """Return True if the first release is older than the other."""
    return _numbers(release) < _numbers(other)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


# The text of zoo.cfg, and of the JAAS file with the users.


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


_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# These halve the memory and cut the start-up time to a third. The heap grows only for a large tree.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
# For the logger in pyspark's jars: log failures, but nothing about the logger.
_LOG_OPTIONS = (
    "-Dlog4j2.loggerContextFactory=org.apache.logging.log4j.simple.SimpleLoggerContextFactory",
    "-Dlog4j2.StatusLogger.level=OFF",
    "-Dorg.apache.logging.log4j.simplelog.level=WARN",
    "-Dorg.apache.logging.log4j.simplelog.showdatetime=true",
)
_CLIENT = "client"
_SECURE = "secure client"


class ZooKeeperServer(LocalServer):
    """
    A standalone server, or a member of an ensemble if `config` says so.

    `tick_time` is in seconds. Sessions expire in steps of it, and the shortest session timeout is two ticks. `config`
    adds lines to zoo.cfg and overrides the defaults. `release`, such as "3.5.10", chooses another release of
    ZooKeeper, downloaded on first use; so does the variable `ZKGROUPS_TEST_RELEASE` for all servers without a
    `release`. `jars` is a class path of your own, with its own logger.

    The `with` block starts the server, and deletes it at the end. Its other methods stop, kill or suspend it.
    """

    _POLL = 0.005
    _STOP_TIMEOUT = 5.0

    def __init__(
        self,
        *,
        tick_time: float = 0.2,
        data_dir: Path | None = None,
        port: int | None = None,
        config: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
        jars: Sequence[Path] | None = None,
        release: str | None = None,
        tls: Tls | None = None,
        sasl: Sasl | None = None,
    ) -> None:
        if release is not None and jars is not None:
            raise InvalidOptionError("release", release, "the jars are given, too")
        if release is None and jars is None:
            release = default_release()
        if release is not None:
            check_release(release, tls=tls is not None, required_logins=sasl is not None and sasl.enforce)
        super().__init__(
            [*([] if port else [_CLIENT]), *([_SECURE] if tls else [])],
            data_dir=data_dir,
            port=port,
        )
        self._tick_time = tick_time
        self._config = dict(config or {})
        self._jvm_options = tuple(jvm_options)
        self._jars = jars
        self._release = release
        self._tls = tls
        self._sasl = sasl

    @property
    def address(self) -> str:
        """The address for clients: `host:port`."""
        return f"{local_server.HOST}:{self.port}"

    @property
    def port(self) -> int:
        """The port without TLS."""
        return self._given_port or self._port(_CLIENT)

    @property
    def secure_address(self) -> str:
        """The address with TLS: `host:port`."""
        return self._address(_SECURE)

    @property
    def release(self) -> str | None:
        """The requested release of ZooKeeper; None for the one in pyspark."""
        return self._release

    def mode(self) -> str | None:
        """Return `standalone`, `leader`, `follower` or `read-only`; None while the server does not serve."""
        return mode(local_server.HOST, self.port) if self.running else None

    def _probe(self) -> Callable[[], bool]:
        return self._serves

    def _serves(self) -> bool:
        if self.mode() is None:
            return False
        return self._tls is None or accepts(local_server.HOST, self._port(_SECURE))

    def _command(self) -> list[str]:
        java, jars = find_java(), self._class_path()
        if not local_server.is_free(self.port):
            raise ServerStartError(f"port {self.port} is taken by another program")
        options = [*archive_options(java, jars, self._rehearse), *self._options()]
        class_path = os.pathsep.join(map(str, jars))
        return [str(java), *options, "-cp", class_path, _MAIN_CLASS, str(self._write_configuration())]

    def _class_path(self) -> Sequence[Path]:
        if self._release is not None:
            return release_jars(self._release, netty=self._needs_netty)
        return self._jars or server_jars(netty=self._needs_netty)

    @property
    def _needs_netty(self) -> bool:
        return bool(self._tls or self._sasl)

    def _rehearse(self, option: str) -> None:
        """See `class_archives.py`."""
        sasl = Sasl({"rehearsal": "rehearsal"}) if self._needs_netty else None
        with _Rehearsal(release=self._release, jars=self._jars, sasl=sasl, jvm_options=[option]) as server:
            write_and_read(server.address)
            server.stop()

    def _write_configuration(self) -> Path:
        path = self.data_dir.absolute() / "zoo.cfg"
        path.write_text(
            zoo_cfg(
                data_dir=path.parent,
                listen=Listen(local_server.HOST, self.port, self._port(_SECURE) if self._tls else None),
                tick_time=self._tick_time,
                tls=self._tls,
                sasl=self._sasl,
                extra=self._config,
            )
        )
        return path

    def _options(self) -> list[str]:
        options = [*_JVM_OPTIONS]
        if not self._jars:
            options += _LOG_OPTIONS
        if self._release:
            options += RELEASE_OPTIONS
        if self._sasl:
            options.append(f"-Djava.security.auth.login.config={self._write_secret('jaas.conf', jaas(self._sasl))}")
        return [*options, *self._jvm_options]

    def __repr__(self) -> str:
        port = self._given_port or (self._port(_CLIENT) if self._reserved else "(no port yet)")
        return f"<ZooKeeperServer {local_server.HOST}:{port}>"


class _Rehearsal(ZooKeeperServer):
    """A server that writes an archive of its classes while it stops."""

    _STOP_TIMEOUT = 60.0
