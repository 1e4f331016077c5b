"""Each benchmark can be started: it imports what it measures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMES = sorted(file.stem for file in (ROOT / "benchmarks").glob("[!_]*.py"))


def test_all_benchmarks_can_be_imported() -> None:
    """In one process of its own, because they import Spark."""
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(f'benchmarks.{name}')"
    done = subprocess.run(
        [sys.executable, "-c", code, *NAMES], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
