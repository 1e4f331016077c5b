"""Download jars from Maven Central with the Ivy that pyspark contains.

    jars = fetch("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36")

Each set of jars has a folder in `~/.cache/zkgroups/jars`, or under `XDG_CACHE_HOME`. Ivy checks the checksums. It works
in a scratch folder, which is renamed when all jars are there. One process at a time downloads a set; the others wait.

`ZKGROUPS_MAVEN_REPOSITORY` is the address of a mirror to use instead of Maven Central.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from zkgroups.exceptions import MissingDependencyError

from .child_process import ChildProcess
from .java import find_java, pyspark_jars

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
