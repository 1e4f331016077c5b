"""Jars are downloaded once, all of them or none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import maven, missing
from zkgroups.testing.java import find_java, pyspark_jars

from .repository import Repository
from .waiting import eventually

pytestmark = pytest.mark.zookeeper

ONE, TWO = "org.example:one:1.0", "org.example:two:2.0"
FETCH = f"""
import sys
from zkgroups.testing import maven
print("ready", flush=True)
print(*maven.fetch("{ONE}"), flush=True)
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
    monkeypatch.setattr(maven, "_PAUSE", 0)
    return maven.cache_folder()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A jar that depends on another one."""
    with Repository(tmp_path / "repository") as repository:
        repository.add(ONE, needs=[TWO])
        repository.add(TWO)
        monkeypatch.setenv("ZKGROUPS_MAVEN_REPOSITORY", repository.url)
        yield repository


def test_a_jar_is_downloaded_with_its_dependencies(repository: Repository, cache: Path) -> None:
    jars = maven.fetch(ONE)

    assert [jar.name for jar in jars] == ["one-1.0.jar", "two-2.0.jar"]
    assert jars[0].read_text() == "the jar of org.example:one:1.0"
    assert {jar.parent.parent for jar in jars} == {cache}
    assert content(cache) == [jars[0].parent.name]


def test_a_jar_is_downloaded_without_dependencies_on_request(repository: Repository) -> None:
    assert [jar.name for jar in maven.fetch(ONE, dependencies=False)] == ["one-1.0.jar"]
    assert repository.asked == ["one-1.0.jar"]


def test_several_jars_are_downloaded_in_one_call(repository: Repository) -> None:
    assert [jar.name for jar in maven.fetch(TWO, ONE, dependencies=False)] == ["one-1.0.jar", "two-2.0.jar"]


def test_a_cached_jar_is_not_downloaded_again(repository: Repository) -> None:
    jars = maven.fetch(ONE)
    repository.asked.clear()
    shutil.rmtree(repository.folder)

    assert maven.fetch(ONE) == jars
    assert repository.asked == []


def test_a_refused_download_is_retried(repository: Repository) -> None:
    repository.refusals = 2

    assert len(maven.fetch(ONE, dependencies=False)) == 1
    assert repository.asked == ["one-1.0.jar"] * 3


def test_a_failed_download_leaves_nothing_behind_and_its_error_has_advice(repository: Repository, cache: Path) -> None:
    (jar,) = repository.folder.rglob("two-2.0.jar")
    jar.unlink()

    with pytest.raises(MissingDependencyError) as caught:
        maven.fetch(ONE)

    message = str(caught.value)
    assert message.startswith(f"the jars of {ONE} could not be downloaded in 3 attempts: connect this machine")
    assert "ZKGROUPS_MAVEN_REPOSITORY" in message
    assert "org.example#two;2.0!two.jar" in message
    assert content(cache) == []


def test_a_jar_with_a_wrong_checksum_is_refused(repository: Repository, cache: Path) -> None:
    (jar,) = repository.folder.rglob("two-2.0.jar")
    jar.with_suffix(".jar.sha1").write_text("0" * 40)

    with pytest.raises(MissingDependencyError, match="invalid sha1"):
        maven.fetch(ONE)

    assert content(cache) == []


def test_a_truncated_jar_is_refused(repository: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven, "_ATTEMPTS", 1)
    repository.cut_off = True
    with pytest.raises(MissingDependencyError):
        maven.fetch(ONE, dependencies=False)
    assert content(cache) == []

    repository.cut_off = False
    assert len(maven.fetch(ONE, dependencies=False)) == 1


def test_a_silent_repository_is_an_error_in_time(
    repository: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maven, "_ATTEMPTS", 1)
    monkeypatch.setattr(maven, "_READ_TIMEOUT", 0.2)
    repository.open.clear()

    with pytest.raises(MissingDependencyError, match="could not be downloaded"):
        maven.fetch(ONE, dependencies=False)

    assert content(cache) == []


def test_an_ivy_that_does_not_end_is_killed(
    repository: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maven, "_ATTEMPTS", 1)
    monkeypatch.setattr(maven, "_LONGEST_ATTEMPT", 0.1)
    repository.open.clear()

    with pytest.raises(MissingDependencyError, match=r"Ivy did not end within 0\.1 s"):
        maven.fetch(ONE)

    assert content(cache) == []


def test_of_two_concurrent_processes_one_downloads_and_both_have_the_jars(repository: Repository, cache: Path) -> None:
    repository.open.clear()
    with fetching() as one, fetching() as other:
        assert (line(one), line(other)) == ("ready", "ready")
        assert eventually(lambda: repository.asked)
        repository.open.set()

        assert line(one) == line(other) == " ".join(map(str, maven.fetch(ONE)))

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
    assert len(maven.fetch(ONE)) == 2


def test_leftovers_of_a_crashed_machine_are_removed(repository: Repository, cache: Path) -> None:
    folder = maven.fetch(ONE)[0].parent
    shutil.rmtree(folder)
    (cache / f".{folder.name}.part-1234" / "jars").mkdir(parents=True)

    maven.fetch(ONE)

    assert content(cache) == [folder.name]


def test_an_unwritable_cache_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(MissingDependencyError, match="set XDG_CACHE_HOME to another folder"):
        maven.fetch(ONE)


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_without_an_absolute_path_the_cache_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", "/home/me")

    assert maven.cache_folder() == Path("/home/me/.cache/zkgroups/jars")


@pytest.mark.parametrize("coordinates", [[], ["one"], ["org.example:one"], [ONE, "a:b:c:d"], ["a::1"], ["a:b/c:1"]])
def test_an_invalid_coordinate_is_refused(coordinates: list[str]) -> None:
    with pytest.raises(ValueError, match="coordinates are organisation:name:version, not "):
        maven.fetch(*coordinates)


def content(cache: Path) -> list[str]:
    """The files in the cache, without the locks."""
    return [path.name for path in cache.iterdir() if path.suffix != ".lock"]


def fetching() -> subprocess.Popen[str]:
    """A process that reports that it is about to download, and then its result."""
    return subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
