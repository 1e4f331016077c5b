"""Kafka's clients in Go. Their program is built once and kept in the cache of the downloaded jars."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from zkgroups.testing import missing
from zkgroups.testing.maven import cache_folder

from .printing_consumer import PrintingConsumer

_SOURCES = Path(__file__).parent / "go_members"
_LONGEST_BUILD = 900.0


class GoConsumer(PrintingConsumer):
    """A member of a group: `client` is franz-go, kafka-go or sarama. It commits what it has read."""

    def __init__(self, client: str, bootstrap: str, group: str, topic: str) -> None:
        self._arguments = (client, bootstrap, group, topic)

    def command(self, _folder: Path) -> list[str]:
        return [str(built()), *self._arguments]


@cache
def built() -> Path:
    """Return the program. Build it if its sources have changed; other processes wait."""
    files = sorted(path for path in _SOURCES.iterdir() if path.suffix in (".go", ".mod", ".sum"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    folder = cache_folder().with_name("go")
    program = folder / f"members-{digest}"
    if shutil.which("go") is None and not program.exists():
        missing("go", "the Go toolchain is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(program)
    return program


def _build(program: Path) -> None:
    """Download the modules, and build. The program gets its name only when it is complete."""
    if (problem := _run("go", "mod", "download")) is not None:
        missing("go", f"the modules of the clients could not be downloaded:\n{problem}")
    unfinished = program.with_suffix(".part")
    problem = _run("go", "build", "-o", str(unfinished), ".")
    assert problem is None, problem
    unfinished.rename(program)


def _run(*command: str) -> str | None:
    """Return None if the command succeeds, otherwise its output."""
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}
    done = subprocess.run(
        command, cwd=_SOURCES, env=environment, capture_output=True, text=True, timeout=_LONGEST_BUILD
    )
    return None if done.returncode == 0 else done.stdout + done.stderr
