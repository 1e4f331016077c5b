"""The period of a history: from one moment to another, each of which is a time or a transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from ...exceptions import InvalidOptionError
from ..time_formats import parse_duration, parse_time

_ZXID: Final = re.compile("0x[0-9a-f]{1,16}", re.IGNORECASE)


class Moment(NamedTuple):
    """A transaction, or a time in milliseconds."""

    zxid: int | None = None
    time_ms: int | None = None

    @classmethod
    def parse(cls, text: str, now_ms: int) -> Self:
        """Parse a transaction such as 0x1a2b, a time, or a duration before now.

        >>> Moment.parse("0x1F", 0), Moment.parse("2026-01-31T12:00:00", 0), Moment.parse("1h", 3_600_000)
        (Moment(zxid=31, time_ms=None), Moment(zxid=None, time_ms=1769860800000), Moment(zxid=None, time_ms=0))
        """
        if _ZXID.fullmatch(text):
            return cls(zxid=int(text, 16))
        try:
            return cls(time_ms=now_ms - parse_duration(text))
        except InvalidOptionError:
            pass
        try:
            return cls(time_ms=parse_time(text))
        except InvalidOptionError as error:
            raise InvalidOptionError(
                "the moment",
                text,
                "it must be a time like 2026-01-31T12:00:00, a duration like 2h, or a zxid like 0x1f",
            ) from error

    def is_before(self, zxid: int, time_ms: int) -> bool:
        """Return whether the moment is earlier than a transaction."""
        return self.zxid < zxid if self.zxid is not None else (self.time_ms or 0) < time_ms

    def is_after(self, zxid: int, time_ms: int) -> bool:
        """Return whether the moment is later than a transaction."""
        return self.zxid > zxid if self.zxid is not None else (self.time_ms or 0) > time_ms


@dataclass(frozen=True, slots=True)
class Period:
    """The transactions from one moment to another, which both belong to it. None stands for no limit."""

    since: Moment | None = None
    until: Moment | None = None

    def has(self, zxid: int, time_ms: int) -> bool:
        """Return whether a transaction belongs to the period.

        >>> Period(since=Moment(zxid=7)).has(7, 0), Period(until=Moment(time_ms=1000)).has(7, 1001)
        (True, False)
        """
        if self.since is not None and self.since.is_after(zxid, time_ms):
            return False
        return self.until is None or not self.until.is_before(zxid, time_ms)


ALWAYS: Final = Period()
"""All transactions."""
