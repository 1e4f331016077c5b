"""The distributions: their contents, and that they work outside of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import zkgroups

ROOT = Path(__file__).parent.parent

# In one process, because all tests share one build and one installation.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]


def _run(*command: str | Path, cwd: Path, status: int = 0) -> str:
    """Return the output of a command. PYTHON* variables would let it see more than the installed packages."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ZKGROUPS"))}
    result = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=110
    )
    assert result.returncode == status, f"{command} ended with {result.returncode}:\n{result.stdout}"
    return result.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources without build results, which a build would include again."""
    copy = tmp_path_factory.mktemp("source") / "zkgroups"
    made = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=made)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    _build("--wheel", "--outdir", target, source)
    return next(target.glob("*.whl"))


def _build(*options: str | Path) -> None:
    _run(sys.executable, "-m", "build", "--no-isolation", *options, cwd=ROOT)


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with only the wheel and its dependencies."""
    environment = tmp_path_factory.mktemp("clean")
    venv.create(environment, with_pip=True)
    _run(environment / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, cwd=environment)
    return environment / "bin"


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_contains_every_module_and_py_typed(wheel: Path) -> None:
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "zkgroups").rglob("*.py")}
    here |= {f"zkgroups_cli/{path.relative_to(ROOT / 'cli').as_posix()}" for path in (ROOT / "cli").rglob("*.py")}
    here |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "zkgroups/kafka/wire/schemas").glob("*.json")}
    served = [*(ROOT / "zkgroups/serve/page/static").iterdir(), ROOT / "zkgroups/serve/web/openapi.json"]
    here |= {path.relative_to(ROOT).as_posix() for path in served}
    here |= {"zkgroups/py.typed", "zkgroups_cli/py.typed", "zkgroups_cli/shared/completion.json"}
    assert {name for name in _names(wheel) if ".dist-info/" not in name} == here


def test_the_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    _build("--outdir", tmp_path, source)  # without --wheel, it builds the sdist, and the wheel from the unpacked sdist
    assert len(list(tmp_path.glob("*.tar.gz"))) == 1
    assert _names(tmp_path / wheel.name) == _names(wheel)


def test_the_installed_wheel_runs(clean: Path, tmp_path: Path) -> None:
    assert "Usage: zkgroups" in _run(clean / "zkgroups", "--help", cwd=tmp_path)
    assert "Usage: " in _run(clean / "python", "-m", "zkgroups_cli", "--help", cwd=tmp_path)
    assert zkgroups.__version__ in _run(clean / "zkgroups", "--version", cwd=tmp_path)


def test_the_installed_wheel_adds_no_other_top_level_names(clean: Path, tmp_path: Path) -> None:
    _run(clean / "python", "-W", "error", "-c", "import zkgroups", cwd=tmp_path)
    for foreign in ("cli", "tests"):
        assert "No module named" in _run(clean / "python", "-c", f"import {foreign}", cwd=tmp_path, status=1)


def test_a_command_whose_extra_is_missing_names_the_package_to_install(clean: Path, tmp_path: Path) -> None:
    said = _run(clean / "zkgroups", "zookeeper", cwd=tmp_path, status=2)
    assert "from the checkout: pip install '.[testing]'" in said
    assert "Traceback" not in said


def test_the_editable_install_that_runs_these_tests_finds_both_packages(tmp_path: Path) -> None:
    places = "import zkgroups, zkgroups_cli; print(zkgroups.__file__, zkgroups_cli.__file__)"
    assert _run(sys.executable, "-c", places, cwd=tmp_path).split() == [
        str(ROOT / "zkgroups" / "__init__.py"),
        str(ROOT / "cli" / "__init__.py"),
    ]
    assert "Usage: zkgroups" in _run(Path(sys.executable).with_name("zkgroups"), "--help", cwd=tmp_path)
