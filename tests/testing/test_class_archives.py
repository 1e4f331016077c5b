"""Archives of loaded classes: when they are made, that servers use them, and that nothing depends on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from zkgroups.testing import ZooKeeperServer, class_archives
from zkgroups.testing.class_archives import archive_options

STARTS = 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the archives, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(class_archives, "_STARTS", STARTS)
    return tmp_path / "zkgroups" / "classes"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an archive at the first start."""
    monkeypatch.setattr(class_archives, "_STARTS", 0)


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Any files, and rehearsals that write any files."""
    monkeypatch.setattr(class_archives, "_is_complete", lambda made, *_: made.exists())
    found = [tmp_path / "a.jar", tmp_path / "b.jar"]
    for jar in found:
        jar.write_text("a jar")
    return found


class Rehearsals:
    """Rehearsals that write a file, and their number."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, option: str) -> None:
        self.number += 1
        name, _, path = option.partition("=")
        assert name == "-XX:ArchiveClassesAtExit"
        Path(path).write_text("classes")


def starts(jars: list[Path], rehearse: Callable[[str], None], number: int = STARTS + 1) -> list[list[str]]:
    return [archive_options(Path("java"), jars, rehearse) for _ in range(number)]


def test_an_archive_is_made_once_after_some_starts(folder: Path, jars: list[Path]) -> None:
    rehearsals = Rehearsals()

    assert starts(jars, rehearsals, STARTS) == STARTS * [[]]
    assert rehearsals.number == 0

    [archive], others = starts(jars, rehearsals, 1), starts(jars, rehearsals)
    assert rehearsals.number == 1
    assert {tuple(each) for each in others} == {tuple(archive)}
    [made] = folder.glob("*.jsa")
    assert archive[0] == f"-XX:SharedArchiveFile={made}"
    assert sorted(path.suffix for path in folder.iterdir()) == [".jsa", ".lock"]


@pytest.mark.zookeeper
def test_a_server_uses_its_archive_and_ignores_another_file(folder: Path, at_once: None) -> None:
    with ZooKeeperServer() as server:
        [archive] = folder.glob("*.jsa")
        assert str(archive) in Path(f"/proc/{server.pid}/maps").read_text()

    archive.unlink()
    archive.write_bytes(b"no archive")
    with ZooKeeperServer() as server:
        assert server.running
