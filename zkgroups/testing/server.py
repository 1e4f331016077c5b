"""A temporary ZooKeeper server on a loopback port.

    with ZooKeeperServer() as server:
        client = KazooClient(server.address)

A restarted server keeps its port and its data. Leaving the `with` block stops it and deletes its data, unless the data
directory was given.

A client that reconnects in the first milliseconds of a start may get no answer: ZooKeeper 3.9 then neither answers nor
closes the connection. kazoo waits for the session timeout divided by its number of hosts. So a client that must keep
its session through a restart should list the address several times.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

from zkgroups.exceptions import InvalidOptionError, ServerStartError

from . import four_letter_words, ports
from .java import find_java, server_jars
from .process import ChildProcess
from .releases import RELEASE_OPTIONS, check_release, release_jars
from .server_configuration import Listen, Sasl, Tls, jaas, zoo_cfg

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
PORT_TAKEN = "Address already in use"
_PORT_ATTEMPTS = 5
_POLL = 0.005

T = TypeVar("T")


class ZooKeeperServer:
    """
    A standalone server, or a member of an ensemble if `config` says so.

    `tick_time` is in seconds. Sessions expire in steps of it, and the shortest session timeout is two ticks. `config`
    adds lines to zoo.cfg and overrides the defaults. `release`, such as "3.5.10", chooses another release of
    ZooKeeper, downloaded on first use. `jars` is a class path of your own, with its own logger.
    """

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
        if release is not None:
            check_release(release, tls=tls is not None)
            if jars is not None:
                raise InvalidOptionError("release", release, "the jars are given, too")
        self._tick_time = tick_time
        self._given_data_dir = data_dir
        self._given_port = port
        self._config = dict(config or {})
        self._jvm_options = tuple(jvm_options)
        self._jars = jars
        self._release = release
        self._tls = tls
        self._sasl = sasl
        self._data_dir: Path | None = None
        self._reserved: list[ports.ReservedPort] = []
        self._port: int | None = None
        self._secure_port: int | None = None
        self._process: ChildProcess | None = None
        self._served = False
        self._owner = os.getpid()

    @property
    def address(self) -> str:
        """The address for clients: `host:port`."""
        return f"{ports.HOST}:{self.port}"

    @property
    def port(self) -> int:
        """The port without TLS."""
        return _started(self._port)

    @property
    def secure_address(self) -> str:
        """The address with TLS: `host:port`."""
        return f"{ports.HOST}:{_started(self._secure_port)}"

    @property
    def data_dir(self) -> Path:
        """The folder with the data, the configuration and the log."""
        return _started(self._data_dir)

    @property
    def release(self) -> str | None:
        """The requested release of ZooKeeper; None for the one in pyspark."""
        return self._release

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return _started(self._process).pid

    @property
    def running(self) -> bool:
        """True while the process exists, also when it is suspended."""
        return self._process is not None and self._process.running

    def mode(self) -> str | None:
        """Return `standalone`, `leader`, `follower` or `read-only`; None while the server does not serve."""
        return four_letter_words.mode(ports.HOST, self.port) if self.running else None

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the server's log."""
        return _started(self._process).tail(lines)

    def start(self, *, timeout: float = 30.0) -> Self:
        """Start the server unless it runs, and wait until it serves."""
        try:
            self._start(timeout)
        except BaseException:
            self.kill()
            if not self._served:
                self.close()
            raise
        return self

    def launch(self) -> None:
        """Start the process without waiting. A member of an ensemble serves only together with others."""
        if self.running:
            return
        java = str(find_java())
        jars = self._class_path()
        self._make_data_dir()
        self._choose_ports()
        config = self._write_configuration()
        command = [java, *self._options(), "-cp", os.pathsep.join(map(str, jars)), _MAIN_CLASS, str(config)]
        scratch = None if self._given_data_dir else self.data_dir
        self._process = ChildProcess(command, log=self.data_dir / "server.log", scratch=scratch)

    def wait_until_serving(self, *, timeout: float = 30.0) -> None:
        """Wait until the server serves. If it ends or `timeout` passes, raise an error with the end of its log."""
        process = _started(self._process)
        deadline = time.monotonic() + timeout
        while not self._serves():
            status = process.wait(_POLL)
            if status is not None:
                raise ServerStartError(f"{self} ended with status {status}; the end of its log:\n{process.tail()}")
            if time.monotonic() > deadline:
                raise ServerStartError(f"{self} did not serve within {timeout} s; its log:\n{process.tail()}")
        self._served = True

    def stop(self) -> None:
        """Stop the server with SIGTERM. Sessions survive if it starts again within their timeout."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()

    def suspend(self) -> None:
        """Suspend it: it keeps its connections open but answers nothing."""
        _started(self._process).suspend()

    def resume(self) -> None:
        """Resume a suspended server."""
        _started(self._process).resume()

    def restart(self, *, timeout: float = 30.0) -> None:
        """Restart it on the same port with the same data."""
        self.stop()
        self.start(timeout=timeout)

    def close(self) -> None:
        """Stop the server, and delete its data unless the data directory was given."""
        # A forked child that leaves its copy of the `with` block must not stop the parent's server.
        if os.getpid() != self._owner:
            return
        if self._given_data_dir is None:
            self.kill()
            self._remove_data()
        else:
            self.stop()
        self._release_ports()

    def _start(self, timeout: float) -> None:
        for attempt in range(_PORT_ATTEMPTS):
            self.launch()
            try:
                self.wait_until_serving(timeout=timeout)
                break
            except ServerStartError as error:
                if attempt + 1 == _PORT_ATTEMPTS or not self._may_change_port(error):
                    raise
                self.kill()
                self._release_ports()

    def _serves(self) -> bool:
        if self.mode() is None:
            return False
        return self._secure_port is None or four_letter_words.accepts(ports.HOST, self._secure_port)

    def _class_path(self) -> Sequence[Path]:
        netty = bool(self._tls or self._sasl)
        if self._release is not None:
            return release_jars(self._release, netty=netty)
        return self._jars or server_jars(netty=netty)

    def _make_data_dir(self) -> None:
        if self._data_dir is None:
            self._data_dir = self._given_data_dir or Path(tempfile.mkdtemp(prefix="zkgroups-"))
        self._data_dir.mkdir(parents=True, exist_ok=True)

    def _remove_data(self) -> None:
        if self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None

    def _choose_ports(self) -> None:
        if self._port is None:
            self._port = self._given_port or self._reserve()
            self._secure_port = self._reserve() if self._tls else None
        if not ports.is_free(self._port):
            raise ServerStartError(f"port {self._port} is taken by another program")

    def _reserve(self) -> int:
        self._reserved.append(ports.reserve())
        return self._reserved[-1].number

    def _release_ports(self) -> None:
        for port in self._reserved:
            port.release()
        self._reserved.clear()
        self._port = self._secure_port = None

    def _may_change_port(self, error: ServerStartError) -> bool:
        # Clients may know the port now, so it must not change.
        return self._given_port is None and not self._served and PORT_TAKEN in str(error)

    def _write_configuration(self) -> Path:
        if self._sasl is not None:
            self._write_secret("jaas.conf", jaas(self._sasl))
        text = zoo_cfg(
            data_dir=self.data_dir.absolute(),
            listen=Listen(ports.HOST, self.port, self._secure_port),
            tick_time=self._tick_time,
            tls=self._tls,
            sasl=self._sasl,
            extra=self._config,
        )
        path = self.data_dir.absolute() / "zoo.cfg"
        path.write_text(text)
        return path

    def _write_secret(self, name: str, text: str) -> None:
        path = self.data_dir / name
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(text)

    def _options(self) -> tuple[str, ...]:
        logging = () if self._jars else _LOG_OPTIONS
        login = (f"-Djava.security.auth.login.config={self.data_dir.absolute() / 'jaas.conf'}",) if self._sasl else ()
        release = RELEASE_OPTIONS if self._release else ()
        return (*_JVM_OPTIONS, *logging, *release, *login, *self._jvm_options)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ZooKeeperServer {ports.HOST}:{self._port or '(no port yet)'}>"


def _started(value: T | None) -> T:
    """Return the value, or raise an error if the server was never started."""
    if value is None:
        raise RuntimeError("start the server first")
    return value
