"""Jars are downloaded once, all of them or none."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from tests.waiting import eventually
from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import java, missing
from zkgroups.testing.java import find_java, pyspark_jars

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


pytestmark = pytest.mark.zookeeper

ONE, TWO = "org.example:one:1.0", "org.example:two:2.0"
FETCH = f"""
import sys
from zkgroups.testing import java
print("ready", flush=True)
print(*java.fetch("{ONE}"), flush=True)
"""


@pytest.fixture(autouse=True)
def _tools() -> None:
    try:
        find_java()
        pyspark_jars("ivy")
    except MissingDependencyError as error:
        missing("zookeeper", str(error))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache (of mine) [1]"))
    monkeypatch.setattr(java, "_PAUSE", 0)
    return java.cache_folder()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A jar that depends on another one."""
    with Repository(tmp_path / "repository") as repository:
        repository.add(ONE, needs=[TWO])
        repository.add(TWO)
        monkeypatch.setenv("ZKGROUPS_MAVEN_REPOSITORY", repository.url)
        yield repository


def test_a_jar_is_downloaded_with_its_dependencies(repository: Repository, cache: Path) -> None:
    jars = java.fetch(ONE)

    assert [jar.name for jar in jars] == ["one-1.0.jar", "two-2.0.jar"]
    assert jars[0].read_text() == "the jar of org.example:one:1.0"
    assert {jar.parent.parent for jar in jars} == {cache}
    assert content(cache) == [jars[0].parent.name]


def test_a_cached_jar_is_not_downloaded_again(repository: Repository) -> None:
    jars = java.fetch(ONE)
    repository.asked.clear()
    shutil.rmtree(repository.folder)

    assert java.fetch(ONE) == jars
    assert repository.asked == []


def test_a_failed_download_leaves_nothing_behind_and_its_error_has_advice(repository: Repository, cache: Path) -> None:
    (jar,) = repository.folder.rglob("two-2.0.jar")
    jar.unlink()

    with pytest.raises(MissingDependencyError) as caught:
        java.fetch(ONE)

    message = str(caught.value)
    assert message.startswith(f"the jars of {ONE} could not be downloaded in 3 attempts: connect this machine")
    assert "ZKGROUPS_MAVEN_REPOSITORY" in message
    assert "org.example#two;2.0!two.jar" in message
    assert content(cache) == []


def test_of_two_concurrent_processes_one_downloads_and_both_have_the_jars(repository: Repository, cache: Path) -> None:
    repository.open.clear()
    with fetching() as one, fetching() as other:
        assert (line(one), line(other)) == ("ready", "ready")
        assert eventually(lambda: repository.asked)
        repository.open.set()

        assert line(one) == line(other) == " ".join(map(str, java.fetch(ONE)))

    assert sorted(repository.asked) == ["one-1.0.jar", "two-2.0.jar"]
    assert len(content(cache)) == 1


def test_a_killed_process_leaves_nothing_behind_and_blocks_no_other(repository: Repository, cache: Path) -> None:
    repository.open.clear()
    with fetching() as killed:
        assert eventually(lambda: repository.asked)
        assert len(content(cache)) == 1, "its scratch folder"
        killed.kill()
    assert eventually(lambda: content(cache) == [])

    repository.open.set()
    assert len(java.fetch(ONE)) == 2


def test_an_unwritable_cache_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(MissingDependencyError, match="set XDG_CACHE_HOME to another folder"):
        java.fetch(ONE)


@pytest.mark.parametrize("coordinates", [[], ["one"], ["org.example:one"], [ONE, "a:b:c:d"], ["a::1"], ["a:b/c:1"]])
def test_an_invalid_coordinate_is_refused(coordinates: list[str]) -> None:
    with pytest.raises(ValueError, match="coordinates are organisation:name:version, not "):
        java.fetch(*coordinates)


def content(cache: Path) -> list[str]:
    """The files in the cache, without the locks."""
    return [path.name for path in cache.iterdir() if path.suffix != ".lock"]


def fetching() -> subprocess.Popen[str]:
    """A process that reports that it is about to download, and then its result."""
    return subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
