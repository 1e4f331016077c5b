"""Names made of a time: UTC with milliseconds, sortable, without colons, and never mistaken for a number."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

TIMESTAMP: Final = r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z"
"""The regular expression for such a name."""

_FORMAT: Final = "%Y%m%dT%H%M%S.%fZ"


def timestamp_text(at: datetime) -> str:
    """Format a time.

    >>> timestamp_text(datetime(2026, 1, 31, 12, 0, 7, 5000, UTC))
    '20260131T120007.005Z'
    >>> timestamp_text(datetime(206, 1, 31, tzinfo=UTC))
    '02060131T000000.000Z'
    """
    utc = at.astimezone(UTC)
    return f"{utc.year:04d}{utc:%m%dT%H%M%S}.{utc.microsecond // 1000:03d}Z"  # %Y does not pad with zeros


def parse_timestamp(text: str) -> datetime:
    """Parse a formatted time. Raise ValueError if the text is invalid.

    >>> parse_timestamp("20260131T120007.005Z").isoformat()
    '2026-01-31T12:00:07.005000+00:00'
    """
    return datetime.strptime(text, _FORMAT).replace(tzinfo=UTC)
