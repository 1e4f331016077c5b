"""The types of parameters that are durations, times, snapshots and partitions: one grammar in all commands."""

from __future__ import annotations

import math
import re
import time
from typing import Any, Final, NamedTuple

import click

MAX_IN_RANGE: Final = 100_000
"""The largest number of partitions that one range may name."""

_NUMBERS: Final = "[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*"


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
