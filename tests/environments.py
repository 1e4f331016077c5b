"""Environments of their own for packages that only `make soak` needs. They are kept for later runs."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from zkgroups.testing.java import zkgroups_cache


def python_with(*requirements: str) -> Path:
    """Return the Python of an environment with these packages. Create it if it does not exist."""
    name = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:12]
    folder = zkgroups_cache() / "environments" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as scratch:
                _create(Path(scratch, "venv"), requirements)
                Path(scratch, "venv").rename(folder)
    return folder / "bin" / "python"


def _create(folder: Path, requirements: tuple[str, ...]) -> None:
    venv.create(folder, with_pip=True)
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
