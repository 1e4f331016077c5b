"""The types of parameters that are durations, times, snapshots, partitions and files: one grammar in all commands."""

from __future__ import annotations

import errno
import math
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import click

from .messages import printable

MAX_IN_RANGE: Final = 100_000
"""The largest number of partitions that one range may name."""

_NUMBERS: Final = "[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*"


Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Decorator: TypeAlias = "Callable[[Decorated], Decorated]"


def combined(*parts: Decorator[Any]) -> Decorator[Any]:
    """Return one decorator for several parameters of a command, which keep this order."""

    def decorate(command: Any) -> Any:
        for part in reversed(parts):
            command = part(command)
        return command

    return decorate


def usage_error(message: str) -> click.UsageError:
    """Return a usage error of the current command."""
    return click.UsageError(message, click.get_current_context(silent=True))


class TopicPartitions(NamedTuple):
    """A topic, and the numbers of its partitions in the order given; None means all."""

    topic: str
    numbers: tuple[int, ...] | None


class Parsed(click.types.StringParamType):
    """A type whose values are parsed from text. Errors of the parser become errors of the option."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse text. A default of another type is already parsed."""
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:  # InvalidInputError is one
            self.fail(str(error), param, ctx)

    def parse(self, text: str) -> Any:
        """Return the value, or raise ValueError."""
        raise NotImplementedError


class Duration(Parsed):
    """A duration such as 90s, 2h or PT1H, in seconds. A number without a unit means seconds, unless `needs_unit`."""

    name = "duration"

    def __init__(self, *, least: float = 0.0, needs_unit: bool = False) -> None:
        self._least, self._needs_unit = least, needs_unit

    def parse(self, text: str) -> float:
        """Return the seconds."""
        from zkgroups.core.time_formats import parse_duration

        try:
            seconds = math.nan if self._needs_unit else float(text)
        except ValueError:
            seconds = math.nan
        if math.isnan(seconds) and text.lower() != "nan":
            seconds = parse_duration(text) / 1000
        if not self._least <= seconds < math.inf:
            raise ValueError(f"{text} is not a duration of {self._least:g} s or more")
        return seconds


class Time(Parsed):
    """A time such as 2026-01-31T12:00, yesterday or 2h (ago), in milliseconds since 1970."""

    name = "time"

    def parse(self, text: str) -> Any:
        """Return the milliseconds."""
        from zkgroups.core.time_formats import parse_time

        return parse_time(text, now_ms=_now_ms())


class MomentType(Time):
    """A time, or a transaction such as 0x1f, as `Moment`."""

    name = "time|zxid"

    def parse(self, text: str) -> Any:
        """Return the moment."""
        from zkgroups.core.history.changes import Moment

        return Moment.parse(text, "the moment", now_ms=_now_ms())


class SnapshotChoice(Time):
    """One of the snapshots of a folder: latest, previous, a name, or a time. Bad values are reported before a start."""

    name = "snapshot"

    def parse(self, text: str) -> str:
        """Return the text. A time becomes an absolute one."""
        from zkgroups.core.times import utc_exactly
        from zkgroups.storage.snapshot_folder import LATEST, PREVIOUS, is_name

        text = text.strip()
        if text in (LATEST, PREVIOUS) or is_name(text):
            return text
        try:
            return utc_exactly(super().parse(text))
        except ValueError as error:
            raise ValueError(
                f"{text!r} is neither latest, previous, the name of a snapshot, nor a time such as 2026-01-31T12:00"
            ) from error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class PartitionNumbers(Parsed):
    """Numbers of partitions such as `3`, `0,1` and `0-3`, as a tuple."""

    name = "partition"

    def parse(self, text: str) -> tuple[int, ...]:
        """Return the numbers in the order given."""
        from zkgroups.core.znodes.topic_partition import parse_partition

        found: list[int] = []
        for part in text.split(","):
            first, dash, last = part.partition("-")
            low, high = parse_partition(first), parse_partition(last if dash else first)
            if low is None or high is None:
                raise ValueError(f"{text!r} is not the number of a partition, nor a list such as 0,1 or 0-3")
            if not low <= high < low + MAX_IN_RANGE:
                raise ValueError(f"{part} must go from a lower number to a higher one, at most {MAX_IN_RANGE} numbers")
            found += range(low, high + 1)
        return tuple(dict.fromkeys(found))


class TopicOrPartitions(PartitionNumbers):
    """A topic, or partitions of it: `orders`, `orders:0,1`, `orders:0-3`, `orders/3`, as `TopicPartitions`.

    A topic that is named `orders:0,1` is written `orders:0,1:`.
    """

    name = "topic"

    def parse(self, text: str) -> Any:
        """Return the topic and the numbers."""
        from zkgroups.core.znodes.topic_partition import check_topic

        topic, slash, numbers = text.rpartition("/")
        if slash:
            return TopicPartitions(check_topic(topic), super().parse(numbers))
        topic, colon, numbers = text.rpartition(":")
        if colon and re.fullmatch("[0-9, -]+", numbers):
            if not is_numbers(numbers):
                raise ValueError(
                    f"{text!r} must be like {topic}:0,1,2 or {topic}:0-2; if this is the name of a topic, write {text}:"
                )
            return TopicPartitions(check_topic(topic), super().parse(numbers))
        return TopicPartitions(check_topic(topic if colon and not numbers else text), None)


def is_numbers(text: str) -> bool:
    """Return whether the text has the form of a list of partition numbers."""
    return re.fullmatch(_NUMBERS, text) is not None


_LONGEST: Final = 2**28
"""In bytes: some million offsets. A device never ends."""


class FilePath(click.Path):
    """A path that is not empty. click takes an empty path, e.g. from an unset variable, for the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as click does, after the check."""
        return super().convert(_not_empty(self, value, param, ctx), param, ctx)


class FolderUri(click.types.StringParamType):
    """A folder on any file system of Spark, with a name that is not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as click does, after the check."""
        return super().convert(_not_empty(self, value, param, ctx), param, ctx)


def _not_empty(kind: FilePath | FolderUri, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if value == "":
        kind.fail("the name is empty", param, ctx)
    if "\0" in str(value):
        kind.fail("the name has a null character", param, ctx)
    return value


def read_text(file: Path) -> str:
    """Read a whole file, or stdin if its name is `-`, as UTF-8."""
    try:
        return _read(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 at byte {error.start}"
        raise usage_error(f"{source_name(file)} cannot be read: {reason}") from error


def source_name(file: Path) -> str:
    """Return the name of a file for messages."""
    return "stdin" if str(file) == "-" else str(file)


def _read(file: Path) -> bytes:
    if str(file) == "-":
        found = b"" if sys.stdin is None else sys.stdin.buffer.read(_LONGEST + 1)  # the shell may have closed stdin
    else:
        with file.open("rb") as opened:
            found = opened.read(_LONGEST + 1)
    if len(found) > _LONGEST:
        raise OSError(errno.EFBIG, f"it is longer than {_LONGEST >> 20} MiB: split it")
    return found


def write_lines(lines: Iterable[str]) -> None:
    """Write the lines of a file to stdout, as UTF-8. Only on a terminal, invisible characters are escaped."""
    stream = sys.stdout
    for line in lines:
        if stream is None or stream.isatty():
            click.echo(printable(line))
        else:
            stream.buffer.write(f"{line}\n".encode())
    if stream is not None:
        stream.flush()
