"""The lifecycle of a server in a child process: what a ZooKeeper server and a Kafka broker have in common.

A restarted server keeps its ports and its data. `close` stops it and deletes its data, unless the data directory was
given. A server that is started for the first time and finds its port taken is started again on other ports.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from ..exceptions import ServerStartError
from .child_process import ChildProcess

# Loopback ports for servers that are about to start.
#
# A free port can be taken before the server binds it. If another temporary ZooKeeper takes it, its answers look like
# those of the server that failed to start. Three measures prevent this:
#
# - ports come in pairs: the even one is for the server, the odd one is kept bound by this process for as long as the
#   reservation lasts, so that no other process that asks here gets the same pair;
# - they are lower than the ports that systems give to outgoing connections, which could take any free port
#   (a client that keeps trying a closed port of that range can even connect to itself);
# - a server that still finds its port taken is started again on another one: see `local_server.py`.


HOST = "127.0.0.1"
_PAIRS = range(12_000, 32_000, 2)
_ATTEMPTS = 1_000
# Its own generator: tests that seed the global one would all try the same ports.
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class ReservedPort:
    """A port that no other reservation has, in any process, until `release`."""

    number: int
    _guard: socket.socket

    def release(self) -> None:
        """Let other reservations have the port."""
        self._guard.close()


def reserve() -> ReservedPort:
    """Reserve a free loopback port."""
    for _ in range(_ATTEMPTS):
        number = _random.choice(_PAIRS)
        guard = _bind(number + 1)
        if guard is None:
            continue
        if is_free(number):
            return ReservedPort(number, guard)
        guard.close()
    raise ServerStartError(f"no free port was found on {HOST} between {_PAIRS.start} and {_PAIRS.stop}")


def is_free(number: int) -> bool:
    """Return True if a server could listen on this port now."""
    bound = _bind(number, reuse=True)
    if bound is not None:
        bound.close()
    return bound is not None


def _bind(number: int, *, reuse: bool = False) -> socket.socket | None:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Servers set this, too. Without it, recently closed connections still block the port.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    try:
        bound.bind((HOST, number))
    except OSError:
        bound.close()
        return None
    return bound


PORT_TAKEN = "Address already in use"
_PORT_ATTEMPTS = 5

T = TypeVar("T")


class LocalServer(ABC):
    """A server on loopback ports, as a context manager. Each subclass has its own command, and its own sign of life."""

    # In seconds.
    _POLL: ClassVar[float]
    _STOP_TIMEOUT: ClassVar[float]

    def __init__(self, listeners: Sequence[str], *, data_dir: Path | None = None, port: int | None = None) -> None:
        self._listeners = tuple(listeners)
        self._given_data_dir = data_dir
        self._given_port = port
        self._data_dir: Path | None = None
        self._reserved: dict[str, ReservedPort] = {}
        self._process: ChildProcess | None = None
        self._served = False
        self._owner = os.getpid()

    @abstractmethod
    def _command(self) -> list[str]:
        """Write the configuration into the data directory, and return the command that starts the server."""

    @abstractmethod
    def _probe(self) -> Callable[[], bool]:
        """Return a function that is True if the server serves now."""

    def _prepare(self, timeout: float) -> None:  # noqa: B027 - only some servers need it
        """Do what must be done each time before the command starts."""

    @property
    def data_dir(self) -> Path:
        """The folder with the data, the configuration and the log."""
        return started(self._data_dir)

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return started(self._process).pid

    @property
    def running(self) -> bool:
        """True while the process exists, also when it is suspended."""
        return self._process is not None and self._process.running

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the server's log."""
        return started(self._process).tail(lines)

    def start(self, *, timeout: float = 60.0) -> Self:
        """Start the server unless it runs, and wait until it serves."""
        try:
            self._start(timeout)
        except BaseException:
            self.kill()
            if not self._served:
                self.close()
            raise
        return self

    def launch(self, *, timeout: float = 60.0) -> None:
        """Start the process without waiting. A member of an ensemble serves only together with others."""
        if self.running:
            return
        if self._data_dir is None:
            self._data_dir = self._given_data_dir or Path(tempfile.mkdtemp(prefix="zkgroups-"))
        self._data_dir.mkdir(parents=True, exist_ok=True)
        if not self._reserved:
            self._reserved = {name: reserve() for name in self._listeners}
        command = self._command()
        self._prepare(timeout)
        scratch = None if self._given_data_dir else self.data_dir
        self._process = ChildProcess(command, log=self.data_dir / "server.log", scratch=scratch)

    def wait_until_serving(self, *, timeout: float = 60.0) -> None:
        """Wait until the server serves. If it ends or `timeout` passes, raise an error with the end of its log."""
        self._wait_until(self._probe(), "serve", timeout)
        self._served = True

    def stop(self) -> None:
        """Stop the server with SIGTERM. Sessions of ZooKeeper survive if it starts again within their timeout."""
        if self._process is not None:
            self._process.stop(timeout=self._STOP_TIMEOUT)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()

    def suspend(self) -> None:
        """Suspend it: it keeps its connections open but answers nothing."""
        started(self._process).suspend()

    def resume(self) -> None:
        """Resume a suspended server."""
        started(self._process).resume()

    def restart(self, *, timeout: float = 60.0) -> None:
        """Restart it on the same ports with the same data."""
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
            self.launch(timeout=timeout)
            try:
                self.wait_until_serving(timeout=timeout)
                break
            except ServerStartError as error:
                if attempt + 1 == _PORT_ATTEMPTS or not self._may_change_port(error):
                    raise
                self.kill()
                self._release_ports()

    def _may_change_port(self, error: ServerStartError) -> bool:
        # Clients may know the port of a server that has served, so it must not change.
        return self._given_port is None and not self._served and PORT_TAKEN in str(error)

    def _wait_until(self, done: Callable[[], bool], what: str, timeout: float) -> None:
        process = started(self._process)
        deadline = time.monotonic() + timeout
        while not done():
            status = process.wait(self._POLL)
            if status is not None:
                raise ServerStartError(f"{self} ended with status {status}; the end of its log:\n{process.tail()}")
            if time.monotonic() > deadline:
                raise ServerStartError(f"{self} did not {what} within {timeout:g} s; its log:\n{process.tail()}")

    def _port(self, listener: str) -> int:
        return started(self._reserved.get(listener)).number

    def _address(self, listener: str) -> str:
        return f"{HOST}:{self._port(listener)}"

    def _write_secret(self, name: str, text: str) -> Path:
        """Write a file of the data directory that only its owner can read."""
        path = self.data_dir.absolute() / name
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(text)
        return path

    def _remove_data(self) -> None:
        if self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None

    def _release_ports(self) -> None:
        for port in self._reserved.values():
            port.release()
        self._reserved.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def started(value: T | None) -> T:
    """Return the value, or raise an error if the server was never started."""
    if value is None:
        raise RuntimeError("start the server first")
    return value
