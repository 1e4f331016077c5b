"""ZooKeeper servers of other releases than the one in pyspark.

Only their own jars are downloaded. What they need beside them comes from pyspark, as for our usual server: its logger,
its settings and its start-up time are then the same in all of them. Tried with 3.4.14, 3.5.10, 3.6.4, 3.7.2 and 3.8.4.
"""

from __future__ import annotations

import re
from pathlib import Path

from zkgroups.exceptions import InvalidOptionError

from . import maven
from .java import companion_jars

# 3.4 and 3.5 try to show log4j 1 in JMX, and without it end at once.
RELEASE_OPTIONS = ("-Dzookeeper.jmx.log4j.disable=true",)

_FIRST_WITH_TLS = (3, 5, 0)
_FIRST_WITH_JUTE = (3, 5, 5)


def check_release(release: str, *, tls: bool) -> None:
    """Refuse what is no release, and one that cannot do what is asked."""
    if not re.fullmatch(r"3\.\d+\.\d+", release):
        raise InvalidOptionError("release", release, "it must be a release of ZooKeeper, as 3.5.10")
    if tls and _numbers(release) < _FIRST_WITH_TLS:
        raise InvalidOptionError("release", release, "TLS came with 3.5")


def release_jars(release: str, *, netty: bool = False) -> tuple[Path, ...]:
    """The class path of a server of this release; `netty` for one with TLS or logins."""
    names = ("zookeeper", "zookeeper-jute") if _numbers(release) >= _FIRST_WITH_JUTE else ("zookeeper",)
    own = maven.fetch(*(f"org.apache.zookeeper:{name}:{release}" for name in names), dependencies=False)
    return own + companion_jars(netty=netty)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
