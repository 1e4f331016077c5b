"""Which snapshot is meant by a word or a time.

`latest` and `previous` are the newest two; a name is that of one snapshot; a time, such as 2026-01-31T12:00 or
2026-01-31 12:00:07+01:00, means the newest that was begun not after it. A time without a zone is UTC, as names are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from pyspark.sql import SparkSession

from ...exceptions import NotFoundError
from .layout import NAME, Layout, snapshot_name

LATEST: Final = "latest"
PREVIOUS: Final = "previous"

_CLOCKS_DIFFER: Final = timedelta(minutes=5)


def moment(spark: SparkSession, destination: str, text: str | None = None) -> str:
    """The name of the snapshot that is meant: of the newest, if nothing is said."""
    layout = Layout(spark, destination)
    found = chosen(layout.newest_first(), LATEST if text is None else text.strip())
    if found is None:
        raise NotFoundError(f"there is no snapshot{f' {text}' if text else ''} in {layout}")
    return found


def is_moment(text: str) -> bool:
    """Whether it is a word, a name or a time at all.

    >>> is_moment("previous"), is_moment("20260131T120007.005Z"), is_moment("2026-01-31 12:00"), is_moment("yesterday")
    (True, True, True, False)
    """
    text = text.strip()
    return text in (LATEST, PREVIOUS) or is_name(text) or _last_name(text) is not None


def is_name(text: str) -> bool:
    """Whether it can be that of one snapshot."""
    return re.fullmatch(NAME, text) is not None


def chosen(newest_first: Iterable[str], text: str, is_meant: Callable[[str], bool] = lambda _name: True) -> str | None:
    """The first that fits, of those that are meant at all."""
    if text in (LATEST, PREVIOUS):
        return next(islice(filter(is_meant, newest_first), int(text == PREVIOUS), None), None)
    if is_name(text):
        return next((name for name in newest_first if name == text and is_meant(name)), None)
    last = _last_name(text)
    return None if last is None else next((name for name in newest_first if name <= last and is_meant(name)), None)


def is_in_future(name: str, now: datetime | None = None) -> bool:
    """Whether a clock was wrong when the snapshot was taken, or is wrong now: then it may not be the newest.

    >>> now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    >>> is_in_future("20260131T120007.005Z", now), is_in_future("20270131T120007.005Z", now)
    (False, True)
    """
    return name > snapshot_name((now or datetime.now(UTC)) + _CLOCKS_DIFFER)


def _last_name(text: str) -> str | None:
    """What a snapshot of that time would be called; None for what is no time."""
    try:
        at = datetime.fromisoformat(text)
        return snapshot_name(at if at.tzinfo else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None
