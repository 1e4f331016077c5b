"""The official ZooKeeper image in a container, with the methods of `ZooKeeperServer`.

Only a local Docker engine and an image that is already present are used; nothing is pulled. A stopped or killed server
keeps its container and data. `close` removes both.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Self

from zkgroups.exceptions import MissingDependencyError, ServerStartError

from . import local_server, zookeeper_server
from .zookeeper_server import LONGEST_SESSION

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

IMAGE = "zookeeper:3.9"
LABEL = "org.zkgroups.testing"

_SOCKET = "unix:///var/run/docker.sock"
_PATIENCE = 0.3
_POLL = 0.02
_CLIENT_PORT = "2181/tcp"


class ZooKeeperContainer:
    """A standalone server in a container; `tick_time` is in seconds."""

    def __init__(self, *, image: str = IMAGE, tick_time: float = 0.2) -> None:
        self._image = image
        self._tick_time = tick_time
        self._port: local_server.ReservedPort | None = None
        self._engine: DockerClient | None = None
        self._container: Container | None = None
        self._owner = os.getpid()

    @property
    def address(self) -> str:
        """The address for clients: `host:port`."""
        return f"{local_server.HOST}:{self.port}"

    @property
    def port(self) -> int:
        """The port on this machine. It does not change with a restart."""
        if self._port is None:
            raise RuntimeError("start the server first")
        return self._port.number

    @property
    def running(self) -> bool:
        """True while the server process exists, also when it is suspended."""
        return self._container is not None and self._status() in ("running", "paused")

    def mode(self) -> str | None:
        """Return `standalone`, or None while the server does not serve."""
        return zookeeper_server.mode(local_server.HOST, self.port)

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the server's log."""
        return self._started().logs(tail=lines).decode(errors="replace")

    def start(self, *, timeout: float = 60.0) -> Self:
        """Start the server unless it runs, and wait until it serves."""
        if self._container is None:
            self._create()
        self._started().start()
        deadline = time.monotonic() + timeout
        while self.mode() is None:
            if not self.running or time.monotonic() > deadline:
                raise ServerStartError(f"the container of {self._image} does not serve:\n{self.log_tail()}")
            time.sleep(_POLL)
        return self

    def stop(self) -> None:
        """Stop the server with SIGTERM. Sessions survive if it starts again within their timeout."""
        self.resume()
        self._started().stop(timeout=5)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.resume()
        if self.running:
            self._started().kill()
            self._started().wait(timeout=10)

    def suspend(self) -> None:
        """Suspend it: it keeps its connections open but answers nothing."""
        self._started().pause()

    def resume(self) -> None:
        """Resume a suspended server."""
        if self._status() == "paused":
            self._started().unpause()

    def restart(self, *, timeout: float = 60.0) -> None:
        """Restart it on the same port with the same data."""
        self.stop()
        self.start(timeout=timeout)

    def close(self) -> None:
        """Remove the container and its data."""
        # A forked child that leaves its copy of the `with` block must not stop the parent's server.
        if os.getpid() != self._owner:
            return
        if self._container is not None:
            self._container.remove(force=True, v=True)
            self._container = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._port is not None:
            self._port.release()
            self._port = None

    def _create(self) -> None:
        self._engine = _engine_with(self._image)
        self._port = local_server.reserve()
        # No auto_remove: a killed server must be able to restart with its data.
        self._container = self._engine.containers.create(
            self._image,
            environment=self._environment(),
            ports={_CLIENT_PORT: (local_server.HOST, self._port.number)},
            labels={LABEL: str(os.getpid())},
        )

    def _environment(self) -> dict[str, str]:
        session_bounds = (round(2 * self._tick_time * 1000), round(LONGEST_SESSION * 1000))
        return {
            "ZOO_TICK_TIME": str(round(self._tick_time * 1000)),
            "ZOO_MAX_CLIENT_CNXNS": "0",
            "ZOO_ADMINSERVER_ENABLED": "false",
            "ZOO_CFG_EXTRA": "minSessionTimeout={} maxSessionTimeout={} forceSync=no".format(*session_bounds),
        }

    def _started(self) -> Container:
        if self._container is None:
            raise RuntimeError("start the server first")
        return self._container

    def _status(self) -> str:
        container = self._started()
        container.reload()
        return container.status

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


def _engine_with(image: str) -> DockerClient:
    """Connect to the local Docker engine. It must have the image."""
    # Check the socket first: importing docker takes longer.
    if not _engine_answers():
        raise MissingDependencyError("no local Docker engine answers: start Docker, and check DOCKER_HOST")
    try:
        import docker
        from docker.errors import DockerException, ImageNotFound
    except ImportError as error:
        raise MissingDependencyError("containers need docker; from the checkout: pip install '.[testing]'") from error
    try:
        engine = docker.from_env()
        try:
            engine.images.get(image)
        except BaseException:
            engine.close()
            raise
    except ImageNotFound as error:
        raise MissingDependencyError(f"the local Docker engine has no image {image}: docker pull {image}") from error
    except (DockerException, OSError) as error:
        raise MissingDependencyError(f"the local Docker engine cannot be used: {error}") from error
    return engine


def _engine_answers() -> bool:
    scheme, _, path = os.environ.get("DOCKER_HOST", _SOCKET).partition("://")
    # A remote engine would publish the port on its own machine.
    if scheme != "unix":
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        try:
            connection.connect(path)
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in connection.recv(64)
        except OSError:
            return False
