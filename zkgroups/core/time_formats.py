"""Times and durations as the command line accepts them: in ISO 8601, or short ones such as yesterday and 90d."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from ..exceptions import InvalidOptionError
from .times import to_ms

_TIME: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8})([T ][0-9]{2}.*)?")
_ISO_DURATION: Final = re.compile(
    r"P(?=.)(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=.)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
_SHORT_DURATION: Final = re.compile("([0-9]{1,9})([dhms])")
_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_DAYS: Final = {"today": 0, "yesterday": 1}


def parse_time(text: str, *, now_ms: int | None = None) -> int:
    """Return a time in milliseconds since 1970. A time without a zone is UTC, and a date is its first moment.

    With `now_ms`, also accept `now`, `today`, `yesterday`, and a duration ago.

    >>> parse_time("2026-01-31T12:00:00.500") - parse_time("2026-01-31 12:00+01:00")
    3600500
    >>> parse_time("yesterday", now_ms=2 * 86_400_000 + 5), parse_time("90s", now_ms=100_000)
    (86400000, 10000)
    """
    text = text.strip()
    if now_ms is not None:
        if text == "now":
            return now_ms
        if text in _DAYS:
            return now_ms - now_ms % _UNITS["d"] - _DAYS[text] * _UNITS["d"]
        if _SHORT_DURATION.fullmatch(text) or _ISO_DURATION.fullmatch(text):
            return max(0, now_ms - parse_duration(text))
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        time = datetime.fromisoformat(text)
    except ValueError as error:
        others = "" if now_ms is None else ", yesterday, 2h (ago)"
        reason = f"it must be like 2026-01-31, 2026-01-31T12:00, 2026-01-31T12:00:00.000+01:00{others}"
        raise InvalidOptionError("the time", text, reason) from error
    return to_ms(time if time.tzinfo else time.replace(tzinfo=UTC))


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
