"""Numbers and times for people, short enough for a table."""

from __future__ import annotations

from typing import Final

from ...core.times import utc

UNKNOWN: Final = "–"
"""Shown for an unknown value, which is never shown as 0."""

_UNITS: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def count(value: float | None) -> str:
    """Format a number with three digits.

    >>> [count(value) for value in (0, 999, 1234, 45_678_901, None)]
    ['0', '999', '1.23k', '45.7M', '–']
    """
    if value is None:
        return UNKNOWN
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.3g}{unit}" if value / size < 999.5 else f"{value / size:.0f}{unit}"
    return f"{value:.0f}"


def exact(value: int | None) -> str:
    """Format a number with all digits.

    >>> exact(1234567)
    '1,234,567'
    """
    return UNKNOWN if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """Format messages per second.

    >>> rate(0.0), rate(0.04), rate(3.14), rate(2500)
    ('0/s', '0.04/s', '3.1/s', '2.5k/s')
    """
    if value is None:
        return UNKNOWN
    if 0 < value < 0.1:
        return f"{value:.1g}/s"
    return f"{value:.2g}/s" if value < 10 else f"{count(value)}/s"


def seconds(value: float | None) -> str:
    """Format a duration in its two largest units.

    >>> [seconds(value) for value in (0, 59.9, 61, 3_700, 90_000, None)]
    ['0s', '59s', '1m 1s', '1h 1m', '1d 1h', '–']
    """
    if value is None:
        return UNKNOWN
    whole = int(value)
    numbers = whole // 86_400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    first = next((index for index, number in enumerate(numbers) if number), 3)
    shown = zip(numbers[first : first + 2], "dhms"[first:], strict=False)
    return " ".join(f"{number}{unit}" for number, unit in shown if number) or "0s"


def since(ms: int | None, now_ms: int) -> str:
    """Format how long ago a time was."""
    return UNKNOWN if ms is None else seconds(max(0, now_ms - ms) / 1000)


def moment(ms: int | None) -> str:
    """Format a time in UTC."""
    return UNKNOWN if ms is None else utc(ms)


def time_of_day(ms: int) -> str:
    """Format the time of day in UTC.

    >>> time_of_day(1795255543109)
    '10:05:43'
    """
    return utc(ms)[11:19]
