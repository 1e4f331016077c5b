"""What `--at` means: choose a snapshot by `latest`, `previous`, its name, or a time.

A time such as 2026-01-31T12:00 or 2026-01-31 12:00:07+01:00 selects the latest snapshot started at or before it. A time
without a zone is UTC, like names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from .timestamps import TIMESTAMP, timestamp_text

LATEST: Final = "latest"
PREVIOUS: Final = "previous"

_CLOCKS_DIFFER: Final = timedelta(minutes=5)


def is_snapshot_choice(text: str) -> bool:
    """Return whether the text is latest, previous, a name or a time.

    >>> list(map(is_snapshot_choice, ["previous", "20260131T120007.005Z", "2026-01-31 12:00", "yesterday"]))
    [True, True, True, False]
    """
    text = text.strip()
    return text in (LATEST, PREVIOUS) or is_name(text) or _last_name(text) is not None


def is_name(text: str) -> bool:
    """Return whether the text has the form of a snapshot's name."""
    return re.fullmatch(TIMESTAMP, text) is not None


def find_snapshot(
    latest_first: Iterable[str], text: str, is_candidate: Callable[[str], bool] = lambda _name: True
) -> str | None:
    """Return the first name that the text can mean and that satisfies `is_candidate`."""
    if text in (LATEST, PREVIOUS):
        return next(islice(filter(is_candidate, latest_first), int(text == PREVIOUS), None), None)
    if is_name(text):
        return next((name for name in latest_first if name == text and is_candidate(name)), None)
    last = _last_name(text)
    return None if last is None else next((name for name in latest_first if name <= last and is_candidate(name)), None)


def is_in_future(name: str, now: datetime | None = None) -> bool:
    """Return whether the time of a snapshot is in the future, so that it may not be the latest.

    Either the clock was wrong when it was taken, or it is wrong now.

    >>> now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    >>> is_in_future("20260131T120007.005Z", now), is_in_future("20270131T120007.005Z", now)
    (False, True)
    """
    return name > timestamp_text((now or datetime.now(UTC)) + _CLOCKS_DIFFER)


def _last_name(text: str) -> str | None:
    """Return the name of a snapshot of that time; None if the text is not a time."""
    try:
        at = datetime.fromisoformat(text)
        return timestamp_text(at if at.tzinfo else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None
