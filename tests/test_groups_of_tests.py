"""Tests that share an expensive server run in one process, and a run ends although a process crashed.

Otherwise each process would start Spark and all brokers: the tests would pass, but take longer. pytest-xdist appends
the group to the name of a test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .waiting import LONGEST

CRASHING = """
import os, pytest

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("number", range(10))
def test_in_a_group(number): pass

@pytest.mark.parametrize("number", range(10))
def test_alone(number):
    if number == 5: os._exit(1)
"""


@pytest.mark.xdist_group("together")
def test_with_loadgroup_a_test_runs_in_its_group(request: pytest.FixtureRequest) -> None:
    in_groups = getattr(request.config.option, "loadgroup", False)  # pytest-xdist sets it in each worker
    assert request.node.nodeid.endswith("@together") == in_groups


def test_if_a_process_crashes_one_test_fails_and_all_others_run_once(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_crashing.py").write_text(CRASHING)
    options = ["-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "-p", "tests.scheduler"]
    root = str(Path(__file__).parents[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": root},
    )
    assert "1 failed, 19 passed" in ended.stdout, ended.stdout + ended.stderr
