"""The period of a history: from one moment to another, each of which is a time or a transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from ...exceptions import InvalidOptionError
from ..time_formats import parse_time

_ZXID: Final = re.compile("0x[0-9a-f]{1,16}", re.IGNORECASE)


class Moment(NamedTuple):
    """A transaction, or a time in milliseconds."""

    zxid: int | None = None
    time_ms: int | None = None

    @classmethod
    def parse(cls, text: str, option: str, *others: str) -> Self:
        """Parse a transaction such as 0x1a2b, or a time. A time without a zone is UTC.

        Errors name the option, and `others`: further forms that the caller accepts.

        >>> Moment.parse("0x1F", "since"), Moment.parse("2026-01-31T12:00:00", "since")
        (Moment(zxid=31, time_ms=None), Moment(zxid=None, time_ms=1769860800000))
        """
        if _ZXID.fullmatch(text):
            return cls(zxid=int(text, 16))
        try:
            return cls(time_ms=parse_time(text))
        except InvalidOptionError as error:
            forms = ", ".join(("it must be a time like 2026-01-31T12:00:00", *others))
            reason = f"{forms}, or a transaction like 0x1f"
            raise InvalidOptionError(option, text, reason) from error

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
