"""Find Java 17 or newer, and the jars of a ZooKeeper server inside the installed pyspark.

pyspark contains a complete ZooKeeper 3.9, so no download is needed. A server needs seven of its three hundred jars, and
starts faster with fewer. pyspark is located but not imported, because the import takes a second.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from zkgroups.exceptions import MissingDependencyError

OLDEST_JAVA = 17

# See `zookeeper_releases.py` for other releases.
_OWN_JARS = ("zookeeper", "zookeeper-jute")
_SHARED_JARS = ("slf4j-api", "metrics-core", "snappy-java")
# Without a logger the server fails in silence. The small one in log4j-api costs 0.07 s of start-up, log4j-core 0.2 s.
_LOGGING_JARS = ("log4j-slf4j2-impl", "log4j-api")
# For TLS; the code for logins loads the classes of TLS, too.
_NETTY_JARS = (
    "netty-buffer",
    "netty-codec-base",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
)


@functools.cache
def find_java() -> Path:
    """Return the first `java` that is new enough: from `JAVA_HOME`, or from the `PATH`."""
    for java in _candidates():
        if _version(java) >= OLDEST_JAVA:
            return java
    raise MissingDependencyError(
        f"no Java {OLDEST_JAVA} or newer was found in JAVA_HOME or on the PATH: "
        f"install one, on Debian and Ubuntu `apt install openjdk-{OLDEST_JAVA}-jre-headless`"
    )


def server_jars(*, netty: bool = False) -> tuple[Path, ...]:
    """Return the jars of a ZooKeeper server from the installed pyspark. TLS and logins need `netty`."""
    return pyspark_jars(*_OWN_JARS) + companion_jars(netty=netty)


def companion_jars(*, netty: bool = False) -> tuple[Path, ...]:
    """Return the jars a server needs beside ZooKeeper's own. They fit other releases, too."""
    return pyspark_jars(*_SHARED_JARS, *_LOGGING_JARS, *(_NETTY_JARS if netty else ()))


def pyspark_jars(*names: str) -> tuple[Path, ...]:
    """Return jars of the installed pyspark by their names without the version."""
    folder = _pyspark_jars()
    return tuple(_jar(folder, name) for name in names)


def _candidates() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    found = (shutil.which("java", path=str(Path(home, "bin"))) if home else None, shutil.which("java"))
    return [Path(java) for java in found if java]


def _version(java: Path) -> int:
    """Return the feature release of this java (8, 17, 21), or 0 if it is unknown."""
    # Nearly every Java has a `release` file. Reading it is faster than starting a JVM.
    release = java.resolve().parent.parent / "release"
    text = release.read_text(errors="replace") if release.is_file() else _version_output(java)
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0


def _version_output(java: Path) -> str:
    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _pyspark_jars() -> Path:
    spec = find_spec("pyspark")
    for place in (spec and spec.submodule_search_locations) or ():
        if (folder := Path(place, "jars")).is_dir():
            return folder
    raise MissingDependencyError(
        "the ZooKeeper server comes with pyspark, which is not installed: pip install 'zkgroups[testing]'"
    )


def _jar(folder: Path, name: str) -> Path:
    found = sorted(folder.glob(f"{name}-[0-9]*.jar"))
    if not found:
        raise MissingDependencyError(
            f"the installed pyspark has no {name} jar: pip install --upgrade 'zkgroups[testing]'"
        )
    return found[-1]
