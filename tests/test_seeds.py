"""The seed of a run: the same one in all processes, and printed after a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .seeds import VARIABLE, seed


def test_a_run_has_always_the_same_seed_unless_a_variable_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    assert seed() == 1 == int(os.environ[VARIABLE]), "other processes of the run get it, too"
    monkeypatch.setenv(VARIABLE, "7")
    assert seed() == 7


def test_a_failed_run_prints_its_seed(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text("def test_it():\n    assert False\n")
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_terminal_summary\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_failing.py")]
    root = Path(__file__).parents[1]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(root), "PYTEST_ADDOPTS": ""}, capture_output=True
    )
    assert f"{VARIABLE}={seed()}".encode() in done.stdout
