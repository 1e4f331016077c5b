"""ZooKeeper servers of other releases than the one in pyspark.

Only ZooKeeper's own jars are downloaded. The other jars come from pyspark, so the logger, the settings and the start-up
time are the same for all releases. Tested with 3.4.14, 3.5.10, 3.6.4, 3.7.2 and 3.8.4.

`ZKGROUPS_TEST_RELEASE` is the release of every server for which the caller chooses none.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from zkgroups.exceptions import InvalidOptionError

from . import maven
from .java import companion_jars

RELEASE_VARIABLE = "ZKGROUPS_TEST_RELEASE"

# 3.4 and 3.5 register log4j 1 in JMX, and exit if it is missing.
RELEASE_OPTIONS = ("-Dzookeeper.jmx.log4j.disable=true",)

_FIRST_WITH_TLS = "3.5.0"
_FIRST_WITH_JUTE = "3.5.5"
_FIRST_WITH_REQUIRED_LOGINS = "3.6.0"


def default_release() -> str | None:
    """Return the release that the environment chooses. None for the one in pyspark."""
    return os.environ.get(RELEASE_VARIABLE) or None


def check_release(release: str, *, tls: bool, required_logins: bool) -> None:
    """Raise an error if the release is unknown or lacks a requested feature."""
    if not re.fullmatch(r"3\.\d+\.\d+", release):
        raise InvalidOptionError("release", release, "it must be a release of ZooKeeper, such as 3.5.10")
    if tls and is_before(release, _FIRST_WITH_TLS):
        raise InvalidOptionError("release", release, "releases before 3.5 have no TLS: leave out tls")
    if required_logins and is_before(release, _FIRST_WITH_REQUIRED_LOGINS):
        raise InvalidOptionError("release", release, "releases before 3.6 cannot require logins: leave out enforce")


def release_jars(release: str, *, netty: bool = False) -> tuple[Path, ...]:
    """Return the class path of a server of this release. TLS and logins need `netty`."""
    names = ("zookeeper",) if is_before(release, _FIRST_WITH_JUTE) else ("zookeeper", "zookeeper-jute")
    own = maven.fetch(*(f"org.apache.zookeeper:{name}:{release}" for name in names), dependencies=False)
    return own + companion_jars(netty=netty)


def is_before(release: str, other: str) -> bool:
    """Return True if the first release is older than the other."""
    return _numbers(release) < _numbers(other)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
