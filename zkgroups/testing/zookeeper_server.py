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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from zkgroups.exceptions import InvalidOptionError, ServerStartError

from . import four_letter_words, ports
from .class_archives import archive_options
from .java import find_java, server_jars
from .local_server import LocalServer
from .zookeeper_client import write_and_read
from .zookeeper_configuration import Listen, Sasl, Tls, jaas, zoo_cfg
from .zookeeper_releases import RELEASE_OPTIONS, check_release, default_release, release_jars

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
        return f"{ports.HOST}:{self.port}"

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
        return four_letter_words.mode(ports.HOST, self.port) if self.running else None

    def _probe(self) -> Callable[[], bool]:
        return self._serves

    def _serves(self) -> bool:
        if self.mode() is None:
            return False
        return self._tls is None or four_letter_words.accepts(ports.HOST, self._port(_SECURE))

    def _command(self) -> list[str]:
        java, jars = find_java(), self._class_path()
        if not ports.is_free(self.port):
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
                listen=Listen(ports.HOST, self.port, self._port(_SECURE) if self._tls else None),
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
        return f"<ZooKeeperServer {ports.HOST}:{port}>"


class _Rehearsal(ZooKeeperServer):
    """A server that writes an archive of its classes while it stops."""

    _STOP_TIMEOUT = 60.0
