"""Times and durations as the command line accepts them: the formats of Kafka's own tool, and short ones such as 90d."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from ..exceptions import InvalidOptionError

_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{3})?(Z|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
_ISO_DURATION: Final = re.compile(
    r"P(?=.)(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=.)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHORT_DURATION: Final = re.compile("([0-9]{1,9})([dhms])")
_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}


def parse_time(text: str) -> int:
    """Return a time in milliseconds since 1970. A time without a zone is UTC.

    >>> parse_time("2026-01-31T12:00:00.500") - parse_time("2026-01-31T12:00:00.000+01:00")
    3600500
    """
    try:
        if not (parts := _TIME.fullmatch(text)):
            raise ValueError
        time = datetime.fromisoformat(text if parts[3] else f"{text}Z")
    except ValueError as error:
        raise InvalidOptionError(
            "the time", text, "it must be like 2026-01-31T12:00:00.000, or with a zone: 2026-01-31T12:00:00.000+01:00"
        ) from error
    return (time - _EPOCH) // timedelta(milliseconds=1)


def parse_duration(text: str) -> int:
    """Return a duration in milliseconds, in ISO 8601 or as a number with a unit. A day has 24 hours.

    >>> parse_duration("P1DT2H"), parse_duration("PT0.5S"), parse_duration("90m")
    (93600000, 500, 5400000)
    """
    if found := _SHORT_DURATION.fullmatch(text):
        return int(found[1]) * _UNITS[found[2]]
    parts = _ISO_DURATION.fullmatch(text)
    if parts is None or not any(parts.groups()):
        raise InvalidOptionError("the duration", text, "it must be like 7d, 12h, 30m, 90s, P7D or PT2H30M")
    days, hours, minutes = (int(parts[unit] or 0) for unit in ("days", "hours", "minutes"))
    whole, _, fraction = (parts["seconds"] or "0").partition(".")
    seconds = int(whole) + 60 * (minutes + 60 * (hours + 24 * days))
    return seconds * 1000 + int(fraction.ljust(3, "0")[:3])


def duration_text(seconds: int) -> str:
    """Format a duration in its largest whole unit.

    >>> duration_text(119), duration_text(0)
    ('1m', '0s')
    """
    units = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
    return next((f"{seconds // size}{unit}" for size, unit in units if seconds >= size), "0s")
