"""Damaged input of every kind gives a value or a typed error, in bounded time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zkgroups.exceptions import StorageError
from zkgroups.migration.plan_folder import PLAN, PlanFolder
from zkgroups.storage.files import LocalFiles

from ..seeds import FUZZ_SECONDS, seed
from .campaign import LONGEST, PROGRESS

MOST_MIB = 700


@pytest.mark.parametrize(
    "seconds", [3.0, pytest.param(FUZZ_SECONDS, marks=[pytest.mark.soak, pytest.mark.timeout(FUZZ_SECONDS + 600)])]
)
def test_damaged_input_gives_a_value_or_a_typed_error_in_bounded_time_and_memory(
    tmp_path: Path, seconds: float
) -> None:
    progress = tmp_path / "progress"
    progress.touch()
    ended = subprocess.run(
        [sys.executable, "-m", "tests.hostile.campaign", str(seed()), str(seconds)],
        capture_output=True,
        text=True,
        env=os.environ | {PROGRESS: str(progress)},
        timeout=seconds + 8 * LONGEST,
    )
    assert ended.returncode == 0, f"the case was {progress.read_text().strip()}\n{ended.stderr}"
    found = json.loads(ended.stdout)
    print(f"\n{found['cases']} cases in {seconds:g} s with ZKGROUPS_SEED={found['seed']}; {found['peak_mib']} MiB")
    assert found["peak_mib"] < MOST_MIB
    assert found["cases"] > 100


def test_a_plan_with_a_huge_list_of_files_is_an_error(tmp_path: Path) -> None:
    """tests/cli/test_usage.py has files of offsets without an end."""
    plan = tmp_path / PLAN
    plan.mkdir()
    (plan / "_VERSION").write_text("3")
    (plan / "_SUCCESS").touch()
    os.truncate(plan / "_SUCCESS", 2**40)
    with pytest.raises(StorageError, match="it is longer than 256 MiB"):
        PlanFolder(LocalFiles(), str(tmp_path)).check_rows(3)
