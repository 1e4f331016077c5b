"""Conversion between ZooKeeper's times (milliseconds since the epoch) and aware datetimes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

LATEST_MS: Final = 253_402_214_399_999
"""A day before the end of the year 9999, which is valid in every time zone. Later times are treated as unknown."""


def from_ms(ms: int) -> datetime | None:
    """Convert milliseconds to a datetime in UTC; None for 0, which stands for an unknown time.

    Times outside the range of `datetime` become the first or the last moment of that range.

    >>> from_ms(1795255543109), from_ms(0)
    (datetime.datetime(2026, 11, 21, 10, 5, 43, 109000, tzinfo=datetime.timezone.utc), None)
    """
    if ms == 0:
        return None
    try:
        return _EPOCH + ms * _MILLISECOND
    except OverflowError:
        return (datetime.max if ms > 0 else datetime.min).replace(tzinfo=UTC)


def to_ms(at: datetime | None) -> int:
    """Convert an aware datetime to milliseconds, rounded down; 0 for None.

    >>> to_ms(from_ms(1795255543109)), to_ms(None)
    (1795255543109, 0)
    """
    return 0 if at is None else (at - _EPOCH) // _MILLISECOND


def utc_exactly(ms: int) -> str:
    """Format milliseconds for people, with the milliseconds, e.g. `2026-01-31T12:00:00.005Z`."""
    return utc(ms).replace("Z", f".{ms % 1000:03}Z")


def utc(ms: int) -> str:
    """Format milliseconds for people, e.g. `2026-01-31T12:00:00Z`. Times out of range are shown as the number.

    >>> utc(0), utc(-(2**62))
    ('1970-01-01T00:00:00Z', '-4611686018427387904 ms')
    """
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
