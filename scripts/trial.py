"""A copy of the tracked files, in which tests run on changed code."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent


class Trial:
    """A copy of the tracked files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        (folder / "zkgroups_cli").symlink_to("cli")  # as the installed package is called

    def environment(self) -> dict[str, str]:
        """Return the variables with which Python imports this copy."""
        return {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def passes(self, tests: str, timeout: float | None = None) -> bool:
        """Return True if all tests pass in this many seconds. What they started is ended with them."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests.split()]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def written(path: Path, changed: bytes) -> Iterator[None]:
    """Change a file for the duration of the block. Its times differ, so that Python does not use its old bytecode."""
    source, times = path.read_bytes(), path.stat()
    path.write_bytes(changed)
    os.utime(path, (times.st_atime + 10, times.st_mtime + 10))
    try:
        yield
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
