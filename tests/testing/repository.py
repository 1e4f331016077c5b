"""A Maven repository on loopback, which can delay downloads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

_POM = (
    "<project><modelVersion>4.0.0</modelVersion><groupId>{0}</groupId><artifactId>{1}</artifactId>"
    "<version>{2}</version><dependencies>{3}</dependencies></project>"
)
_DEPENDENCY = "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>"


class Repository:
    """Serves the files in `folder`. `asked` are the requested jars, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self._server = _Server(("127.0.0.1", 0), partial(_Handler, self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def add(self, coordinate: str, *, needs: Iterable[str] = ()) -> Path:
        """Add a jar, and a POM with its dependencies."""
        organisation, name, version = coordinate.split(":")
        folder = self.folder.joinpath(*organisation.split("."), name, version)
        folder.mkdir(parents=True)
        dependencies = "".join(_DEPENDENCY.format(*needed.split(":")) for needed in needs)
        (folder / f"{name}-{version}.pom").write_text(_POM.format(organisation, name, version, dependencies))
        jar = folder / f"{name}-{version}.jar"
        jar.write_text(f"the jar of {coordinate}")
        return jar

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *about: Any) -> None:
        # Some tests kill clients, or let them give up.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*about)


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, repository: Repository, *args: object) -> None:
        self._repository = repository
        super().__init__(*args, directory=str(repository.folder))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        repository = self._repository
        if self.path.endswith(".jar"):
            repository.asked.append(self.path.rpartition("/")[2])
            repository.open.wait()
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass
