"""Releases of Kafka, and their jars."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from zkgroups.exceptions import InvalidOptionError

from . import maven
from .child_process import ChildProcess

RELEASE = "4.3.1"
"""The default release."""

_LOGGER = "org.slf4j:slf4j-simple:1.7.36"


def check_release(release: str, zookeeper: str | None) -> None:
    """Raise an error if the release is unknown, or does not work with or without a ZooKeeper."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", release):
        raise InvalidOptionError("release", release, "it must be a release of Kafka, such as 4.3.1")
    if zookeeper is None and _numbers(release) < (3, 3):
        raise InvalidOptionError("release", release, "releases before 3.3 need a ZooKeeper: give zookeeper")
    if zookeeper is not None and _numbers(release) >= (4,):
        raise InvalidOptionError("release", release, "releases since 4.0 cannot use a ZooKeeper: leave out zookeeper")


def release_jars(release: str) -> tuple[Path, ...]:
    """Return the class path of a broker of this release, downloaded on first use."""
    scala = "2.11" if _numbers(release) < (2,) else "2.13"
    return maven.fetch(f"org.apache.kafka:kafka_{scala}:{release}", _LOGGER)


def download(release: str, folder: Path) -> ChildProcess:
    """Start a process that downloads the jars of this release. It ends at once if nothing is missing."""
    code = f"from {__name__} import release_jars; release_jars({release!r})"
    return ChildProcess([sys.executable, "-c", code], log=folder / "download.log")


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
