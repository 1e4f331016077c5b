"""Whole processes as contenders: what they take, and their share of the processors."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable

from benchmarks import Times

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Installed packages are compiled. Here round 0, which does not count, compiles them."""
ENVIRONMENT["ZKGROUPS_CONFIG"] = "/nonexistent"  # no saved contexts


def process(*command: str) -> Callable[[int], Times]:
    """Return a contender that runs a whole process."""

    def run(_round: int) -> Times:
        began, cpu_before = time.perf_counter(), _cpu_of_children()
        subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
        return {"seconds": time.perf_counter() - began, "CPU seconds": _cpu_of_children() - cpu_before}

    return run


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
