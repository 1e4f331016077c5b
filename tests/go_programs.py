"""Programs in Go that tests run. Each is built once and kept in the cache of the downloaded jars."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from zkgroups.testing import missing
from zkgroups.testing.java import cache_folder

_LONGEST_BUILD = 900.0


@cache
def built(sources: Path) -> Path:
    """Return the program of this folder. Build it if its sources have changed; other processes wait."""
    files = sorted(path for path in sources.iterdir() if path.suffix in (".go", ".mod", ".sum"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    folder = cache_folder().with_name("go")
    program = folder / f"{sources.name}-{digest}"
    if shutil.which("go") is None and not program.exists():
        missing("go", "the Go toolchain is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(sources, program)
    return program


def _build(sources: Path, program: Path) -> None:
    """Download the modules, and build. The program gets its name only when it is complete."""
    if (problem := _run(sources, "go", "mod", "download")) is not None:
        missing("go", f"the modules of {sources.name} could not be downloaded:\n{problem}")
    unfinished = program.with_suffix(".part")
    problem = _run(sources, "go", "build", "-o", str(unfinished), ".")
    assert problem is None, problem
    unfinished.rename(program)


def _run(sources: Path, *command: str) -> str | None:
    """Return None if the command succeeds, otherwise its output."""
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, timeout=_LONGEST_BUILD)
    return None if done.returncode == 0 else done.stdout + done.stderr
