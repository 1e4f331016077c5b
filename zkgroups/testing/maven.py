"""Jars from Maven Central, fetched by the Ivy that comes with pyspark: where tests can run, nothing more is needed.

    jars = fetch("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36")

They stay in `~/.cache/zkgroups/jars`, or under `XDG_CACHE_HOME`, in a folder for each set of jars. Ivy, which compares
checksums, works in a folder beside it, whose result is renamed when it is whole: a folder that is there has all of its
jars. A lock lets one of several processes do the work while the others wait for it.

`ZKGROUPS_MAVEN_REPOSITORY`, an address, names a mirror to be used instead of Maven Central.
"""

from __future__ import annotations

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

from .java import find_java, pyspark_jars
from .process import ChildProcess

REPOSITORY_VARIABLE = "ZKGROUPS_MAVEN_REPOSITORY"
CACHE_VARIABLE = "XDG_CACHE_HOME"

_ATTEMPTS = 3
# In seconds. A slow line may take its time, as long as something comes.
_PAUSE = 1.0
_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = 30.0
_LONGEST_ATTEMPT = 300.0

_MAIN_CLASS = "org.apache.ivy.Main"
# It runs for a second or two: no time to get warm in.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Ivy works in the scratch folder, with relative names: in a path it takes brackets for a pattern.
_SETTINGS, _WANTED, _RESULT = "settings.xml", "wanted.xml", "jars"
_FILES = "[artifact]-[revision](-[classifier]).[ext]"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A set of jars, by their coordinates, alone or with the `dependencies` that they name."""

    coordinates: tuple[str, ...]
    dependencies: bool

    @property
    def modules(self) -> list[list[str]]:
        """Organisation, name and version of each."""
        return [coordinate.split(":") for coordinate in self.coordinates]

    @property
    def folder(self) -> str:
        """The first of them, for people, and a digest of all."""
        _, name, version = self.modules[0]
        everything = " ".join((*self.coordinates, str(self.dependencies)))
        return f"{name}-{version}-{hashlib.sha256(everything.encode()).hexdigest()[:12]}"


def fetch(*coordinates: str, dependencies: bool = True) -> tuple[Path, ...]:
    """
    The jars of these coordinates, `organisation:name:version`, and of all they depend on; downloaded if need be.

    Without `dependencies` just these are fetched, which is much quicker. An error says what to do when they
    cannot be had.
    """
    if not coordinates or not all(_is_coordinate(text) for text in coordinates):
        raise ValueError(f"coordinates are organisation:name:version, not {', '.join(coordinates) or 'nothing'}")
    wanted = _Wanted(coordinates, dependencies)
    folder = cache_folder() / wanted.folder
    if not folder.is_dir():
        _fill(folder, wanted)
    return tuple(sorted(folder.glob("*.jar")))


def cache_folder() -> Path:
    """Where the jars of this user stay."""
    cache = Path(os.environ.get(CACHE_VARIABLE, ""))
    # By the standard for this variable, a relative path is no value.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "zkgroups" / "jars"


def _is_coordinate(text: str) -> bool:
    parts = text.split(":")
    return len(parts) == 3 and all(part and "/" not in part for part in parts)


def _fill(folder: Path, wanted: _Wanted) -> None:
    with _lock(folder):
        if folder.is_dir():
            return  # another process had the lock before us, and did the work
        _remove_leftovers(folder)
        with TemporaryDirectory(prefix=_scratch_prefix(folder), dir=folder.parent) as scratch:
            _download(wanted, Path(scratch))
            Path(scratch, _RESULT).rename(folder)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Only one process at a time works on this folder; the lock of one that dies is free at once."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_name(f".{folder.name}.lock").open("wb")
    except OSError as error:
        raise MissingDependencyError(
            f"there is no place for downloaded jars ({error}): name a folder that can be written to in {CACHE_VARIABLE}"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _scratch_prefix(folder: Path) -> str:
    return f".{folder.name}.part-"


def _remove_leftovers(folder: Path) -> None:
    """What stays behind when a machine goes down; as we have the lock, nobody works there."""
    for leftover in folder.parent.glob(f"{_scratch_prefix(folder)}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _download(wanted: _Wanted, scratch: Path) -> None:
    _write_settings(scratch / _SETTINGS, wanted)
    _write_wanted(scratch / _WANTED, wanted)
    for attempt in range(_ATTEMPTS):
        time.sleep(attempt * _PAUSE)
        # What one attempt got is kept for the next one.
        problem = _run_ivy(scratch, scratch / f"attempt-{attempt}.log")
        if problem is None:
            return
    raise MissingDependencyError(
        f"the jars of {', '.join(wanted.coordinates)} could not be downloaded in {_ATTEMPTS} attempts: connect this "
        f"machine to the network, or name a mirror of Maven Central in {REPOSITORY_VARIABLE}\n{problem}"
    )


def _run_ivy(scratch: Path, log: Path) -> str | None:
    """None when all jars are there, else what Ivy said."""
    class_path = os.pathsep.join(map(str, pyspark_jars("ivy")))
    command = [str(find_java()), *_JVM_OPTIONS, "-cp", class_path, _MAIN_CLASS, "-warn"]
    command += ["-settings", _SETTINGS, "-ivy", _WANTED, "-cache", "cache", "-confs", "default"]
    command += ["-retrieve", f"{_RESULT}/{_FILES}"]
    with ChildProcess(command, log=log, scratch=scratch, directory=scratch) as ivy:
        status = ivy.wait(_LONGEST_ATTEMPT)
    if status == 0:
        return None
    return _what_matters(log) if status else f"Ivy did not end within {_LONGEST_ATTEMPT} s\n{_what_matters(log)}"


def _what_matters(log: Path) -> str:
    """Ivy's words without its frames and its dots of progress."""
    lines = (line.strip() for line in log.read_text(errors="replace").splitlines())
    return "\n".join(line for line in lines if line.strip(": .") and not line.startswith((":", "..")))


def _write_settings(path: Path, wanted: _Wanted) -> None:
    """Where Ivy looks; what is not said here is Maven Central."""
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
    # The POMs tell of dependencies and of nothing else, and each has parents to be fetched, too.
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
