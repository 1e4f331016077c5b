"""Java and the jars are found, and missing ones are reported in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing.java import find_java

OLD = 'JAVA_VERSION="1.8.0_402"\n'
NEW = 'JAVA_VERSION="21.0.2"\n'


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    find_java.cache_clear()
    yield
    find_java.cache_clear()


def test_java_home_comes_first_unless_it_is_too_old_or_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, on_path = java(tmp_path / "home", NEW), java(tmp_path / "path", NEW)
    monkeypatch.setenv("JAVA_HOME", str(home.parent.parent))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_java() == home

    find_java.cache_clear()
    (tmp_path / "home" / "release").write_text(OLD)
    assert find_java() == on_path

    find_java.cache_clear()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    assert find_java() == on_path


def test_a_java_without_a_release_file_is_run_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = java(tmp_path / "home", None)
    program.write_text("""#!/bin/sh\necho 'openjdk version "17.0.9" 2023-10-17' >&2\n""")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(program.parent))

    assert find_java() == program


@pytest.mark.parametrize("release", [OLD, "nonsense\n"])
def test_without_a_new_enough_java_the_error_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java(tmp_path, release).parent))

    with pytest.raises(MissingDependencyError, match=r"no Java 17 or newer .* install"):
        find_java()


def java(home: Path, release: str | None) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return program
