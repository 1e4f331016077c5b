"""A real member of pykafka, in an environment of its own: pykafka needs an old kazoo and an old setuptools."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from zkgroups.testing import KafkaBroker, missing
from zkgroups.testing.java import cache_folder

from ..printing_consumer import PrintingConsumer

PROGRAM = Path(__file__).with_name("pykafka_program.py")
PACKAGES = ("pykafka==2.8.0", "kazoo==2.5.0", "six==1.17.0", "tabulate==0.10.0", "setuptools==65.5.0", "wheel==0.45.1")
_LONGEST = 300.0


class PykafkaMember(PrintingConsumer):
    """It prints its partitions and messages."""

    def __init__(self, broker: KafkaBroker, group: str, topic: str) -> None:
        self._arguments = (broker.address, broker.zookeeper, group, topic)

    def command(self, _folder: Path) -> list[str]:
        return [str(python_with_pykafka()), "-u", "-W", "ignore", str(PROGRAM), *self._arguments]


@cache
def python_with_pykafka() -> Path:
    """Return the Python of the environment. It is created once and kept in the cache of the downloaded jars."""
    version = "{}.{}".format(*sys.version_info)
    folder = cache_folder().with_name(f"{PACKAGES[0]}-python{version}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _create(folder)
            (folder / "complete").touch()
    return folder / "bin" / "python"


def _create(folder: Path) -> None:
    install = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pykafka, *others = PACKAGES
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [*install, *others],
        [*install, "--no-build-isolation", pykafka],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST)
        if done.returncode != 0:
            missing("pykafka", f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
