"""Find Java 17 or newer, and the jars of a ZooKeeper server inside the installed pyspark.

pyspark contains a complete ZooKeeper 3.9, so no download is needed. A server needs seven of its three hundred jars, and
starts faster with fewer. pyspark is located but not imported, because the import takes a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from ..exceptions import MissingDependencyError
from .child_process import ChildProcess

# How values are written into Java's properties files and JAAS files.


def properties(lines: Mapping[str, str]) -> str:
    """Return the text of a properties file: backslashes, and characters outside of ASCII, are escaped."""
    return "".join(f"{key}={_escape(value)}\n" for key, value in lines.items())


def quoted(password: str) -> str:
    """Return a password as a JAAS file has it.

    >>> print(quoted('a"b'))
    "a\\"b"
    """
    return '"' + password.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escape(value: str) -> str:
    letters = (rf"\u{ord(letter):04x}" if ord(letter) > 126 else letter for letter in value.replace("\\", "\\\\"))
    return "".join(letters)


OLDEST_JAVA = 17

# See `zookeeper_server.py` for other releases.
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
        "the ZooKeeper server comes with pyspark, which is not installed; from the checkout: pip install '.[testing]'"
    )


def _jar(folder: Path, name: str) -> Path:
    found = sorted(folder.glob(f"{name}-[0-9]*.jar"))
    if not found:
        raise MissingDependencyError(
            f"the installed pyspark has no {name} jar; from the checkout: pip install --upgrade '.[testing]'"
        )
    return found[-1]


# Download jars from Maven Central with the Ivy that pyspark contains.
#
#     jars = fetch("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36")
#
# Each set of jars has a folder in `~/.cache/zkgroups/jars`, or under `XDG_CACHE_HOME`. Ivy checks the checksums. It
# works in a scratch folder, which is renamed when all jars are there. One process at a time downloads a set; the
# others wait.
#
# `ZKGROUPS_MAVEN_REPOSITORY` is the address of a mirror to use instead of Maven Central.


REPOSITORY_VARIABLE = "ZKGROUPS_MAVEN_REPOSITORY"
CACHE_VARIABLE = "XDG_CACHE_HOME"

_ATTEMPTS = 3
# In seconds. A slow download may continue as long as bytes arrive.
_PAUSE = 1.0
_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = 30.0
_LONGEST_ATTEMPT = 300.0

_MAIN_CLASS = "org.apache.ivy.Main"
# Ivy runs for a second or two, too short for the optimizing compiler.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Ivy runs in the scratch folder with relative names, because it reads brackets in a path as a pattern.
_SETTINGS, _WANTED, _RESULT = "settings.xml", "wanted.xml", "jars"
_FILES = "[artifact]-[revision](-[classifier]).[ext]"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A set of jars by their coordinates, with or without their dependencies."""

    coordinates: tuple[str, ...]
    dependencies: bool

    @property
    def modules(self) -> list[list[str]]:
        """The organisation, name and version of each jar."""
        return [coordinate.split(":") for coordinate in self.coordinates]

    @property
    def folder(self) -> str:
        """The name of the folder: the first jar, for readers, and a digest of all."""
        _, name, version = self.modules[0]
        everything = " ".join((*self.coordinates, str(self.dependencies)))
        return f"{name}-{version}-{hashlib.sha256(everything.encode()).hexdigest()[:12]}"


def fetch(*coordinates: str, dependencies: bool = True) -> tuple[Path, ...]:
    """Return the jars of these coordinates (`organisation:name:version`) and their dependencies. Download missing jars.

    Without `dependencies`, fetch only the named jars, which is much faster. If they cannot be fetched, the error says
    what to do.
    """
    if not coordinates or not all(_is_coordinate(text) for text in coordinates):
        raise ValueError(f"coordinates are organisation:name:version, not {', '.join(coordinates) or 'nothing'}")
    wanted = _Wanted(coordinates, dependencies)
    folder = cache_folder() / wanted.folder
    if not folder.is_dir():
        _fill(folder, wanted)
    return tuple(sorted(folder.glob("*.jar")))


def cache_folder() -> Path:
    """Return the folder of the downloaded jars."""
    return zkgroups_cache() / "jars"


def zkgroups_cache() -> Path:
    """Return the folder of all files that later runs can use again."""
    cache = Path(os.environ.get(CACHE_VARIABLE, ""))
    # The XDG specification says to ignore a relative path.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "zkgroups"


def downloaded_bytes() -> int:
    """Return the size of all unfinished downloads, also of other processes. It changes while bytes arrive."""
    total = 0
    for folder in cache_folder().glob(".*.part-*"):
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):  # Ivy renames and deletes files meanwhile
                total += path.stat().st_size if path.is_file() else 0
    return total


def _is_coordinate(text: str) -> bool:
    parts = text.split(":")
    return len(parts) == 3 and all(part and "/" not in part for part in parts)


def _fill(folder: Path, wanted: _Wanted) -> None:
    with _lock(folder):
        if folder.is_dir():
            return  # another process has fetched the jars meanwhile
        _remove_leftovers(folder)
        with TemporaryDirectory(prefix=_scratch_prefix(folder), dir=folder.parent) as scratch:
            _download(wanted, Path(scratch))
            Path(scratch, _RESULT).rename(folder)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock this folder for one process. The lock of a process that dies is released at once."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_name(f".{folder.name}.lock").open("wb")
    except OSError as error:
        raise MissingDependencyError(
            f"cannot write downloaded jars to {folder.parent} ({error}): set {CACHE_VARIABLE} to another folder"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _scratch_prefix(folder: Path) -> str:
    return f".{folder.name}.part-"


def _remove_leftovers(folder: Path) -> None:
    """Delete scratch folders of processes that were killed. The caller holds the lock, so none is in use."""
    for leftover in folder.parent.glob(f"{_scratch_prefix(folder)}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _download(wanted: _Wanted, scratch: Path) -> None:
    _write_settings(scratch / _SETTINGS, wanted)
    _write_wanted(scratch / _WANTED, wanted)
    for attempt in range(_ATTEMPTS):
        time.sleep(attempt * _PAUSE)
        # The next attempt reuses what this one has fetched.
        problem = _run_ivy(scratch, scratch / f"attempt-{attempt}.log")
        if problem is None:
            return
    raise MissingDependencyError(
        f"the jars of {', '.join(wanted.coordinates)} could not be downloaded in {_ATTEMPTS} attempts: connect this "
        f"machine to the network, or set {REPOSITORY_VARIABLE} to a mirror of Maven Central\n{problem}"
    )


def _run_ivy(scratch: Path, log: Path) -> str | None:
    """Return None if all jars were fetched, otherwise Ivy's output."""
    class_path = os.pathsep.join(map(str, pyspark_jars("ivy")))
    command = [str(find_java()), *_JVM_OPTIONS, "-cp", class_path, _MAIN_CLASS, "-warn"]
    command += ["-settings", _SETTINGS, "-ivy", _WANTED, "-cache", "cache", "-confs", "default"]
    command += ["-retrieve", f"{_RESULT}/{_FILES}"]
    with ChildProcess(command, log=log, scratch=scratch, directory=scratch) as ivy:
        status = ivy.wait(_LONGEST_ATTEMPT)
    if status == 0:
        return None
    return _shortened(log) if status else f"Ivy did not end within {_LONGEST_ATTEMPT} s\n{_shortened(log)}"


def _shortened(log: Path) -> str:
    """Return Ivy's output without its frames and progress dots."""
    lines = (line.strip() for line in log.read_text(errors="replace").splitlines())
    return "\n".join(line for line in lines if line.strip(": .") and not line.startswith((":", "..")))


def _write_settings(path: Path, wanted: _Wanted) -> None:
    """Write Ivy's settings. The default repository is Maven Central."""
    root = ElementTree.Element("ivysettings")
    ElementTree.SubElement(root, "settings", defaultResolver="maven")
    ElementTree.SubElement(
        ElementTree.SubElement(root, "timeout-constraints"),
        "timeout-constraint",
        name="patience",
        connectionTimeout=str(round(_CONNECT_TIMEOUT * 1000)),
        readTimeout=str(round(_READ_TIMEOUT * 1000)),
    )
    resolver = {"name": "maven", "m2compatible": "true", "timeoutConstraint": "patience"}
    # POMs are needed only for dependencies, and each has parents to fetch.
    resolver["usepoms"] = str(wanted.dependencies).lower()
    if mirror := os.environ.get(REPOSITORY_VARIABLE):
        resolver["root"] = mirror
    ElementTree.SubElement(ElementTree.SubElement(root, "resolvers"), "ibiblio", resolver)
    ElementTree.ElementTree(root).write(path)


def _write_wanted(path: Path, wanted: _Wanted) -> None:
    root = ElementTree.Element("ivy-module", version="2.0")
    ElementTree.SubElement(root, "info", organisation="zkgroups", module="wanted")
    ElementTree.SubElement(ElementTree.SubElement(root, "configurations"), "conf", name="default")
    modules = ElementTree.SubElement(root, "dependencies")
    for organisation, name, version in wanted.modules:
        options = {"conf": "default->default", "transitive": str(wanted.dependencies).lower()}
        ElementTree.SubElement(modules, "dependency", options, org=organisation, name=name, rev=version)
    ElementTree.ElementTree(root).write(path)
