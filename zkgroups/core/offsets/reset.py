"""What becomes of offsets: a plan is worked out here, shown, and then carried out as it was shown.

Where an offset is to go is said in the words of Kafka's own tool, and means what it means there:

    to earliest, to latest     the start or the end of the log, which only brokers know
    to a time                  the first offset at or after it, which only brokers know; the end where nothing is later
    to current                 where it is; the end of the log where nothing is committed
    to an offset, shifted by,  as far as the log has it: what is before its start becomes the start, what is beyond
    from a file                its end becomes the end. Without brokers only what is below 0 becomes 0
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from ...exceptions import InvalidOptionError
from ..kafka_values import OffsetRange
from ..znodes.offset_codec import MAX_OFFSET
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import CommittedOffset, UnreadableNode

Found: TypeAlias = CommittedOffset | UnreadableNode | None
"""What is there: an offset, something that is none, or nothing."""

Ranges: TypeAlias = Mapping[TopicPartition, OffsetRange | None]
"""What the logs have; None of a partition that the brokers do not know."""


class Refused(StrEnum):
    """A direction in which the caller has not allowed an offset to move."""

    BACK = "would go back"
    FORWARD = "would go forward"
    """Past messages of the log that may be unread."""
    PERHAPS_BACK = "may go back"
    """The node does not hold a valid offset, so the direction is unknown."""


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of the offset of one partition: `new` is written over `found`, or forgotten where it is None."""

    at: TopicPartition
    found: Found
    new: int | None
    note: str | None = None
    held: bool = False
    """It stays as it is, and the note says why."""
    refused: Refused | None = None
    """The direction for which it is held, if the caller may allow that."""

    @property
    def old(self) -> int | None:
        """The offset that is there; None where there is none, or something that is no offset."""
        return self.found.offset if isinstance(self.found, CommittedOffset) else None

    @property
    def delta(self) -> int | None:
        """How far it goes, back if negative; None where one of the two is unknown."""
        return None if self.old is None or self.new is None else self.new - self.old

    @property
    def changes(self) -> bool:
        """Whether there is anything to write."""
        return not self.held and not (self.found is None if self.new is None else self.old == self.new)


class _Stays(Exception):
    """Strictly private: why an offset stays as it is."""


# Where to


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """The start of the log."""

    def aim(self, _at: TopicPartition, _found: Found, log: OffsetRange | None) -> int:
        """The offset to go to."""
        return _known(log).start


@dataclass(frozen=True, slots=True)
class ToLatest:
    """The end of the log."""

    def aim(self, _at: TopicPartition, _found: Found, log: OffsetRange | None) -> int:
        """The offset to go to."""
        return _known(log).end


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """Where it is, even outside the log; where nothing is committed, the end of the log."""

    def aim(self, _at: TopicPartition, found: Found, log: OffsetRange | None) -> int:
        """The offset to go to."""
        return _committed(found) if found is not None or log is None else log.end


@dataclass(frozen=True, slots=True)
class ToOffset:
    """One and the same offset."""

    offset: int

    def aim(self, _at: TopicPartition, _found: Found, _log: OffsetRange | None) -> int:
        """The offset to go to."""
        return self.offset


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """So many messages further, or back if negative."""

    by: int

    def aim(self, _at: TopicPartition, found: Found, _log: OffsetRange | None) -> int:
        """The offset to go to."""
        return _committed(found) + self.by


@dataclass(frozen=True, slots=True)
class ToEach:
    """An offset for each partition: those of a file, or those that the brokers have at a time."""

    offsets: Mapping[TopicPartition, int | None]

    def aim(self, at: TopicPartition, _found: Found, _log: OffsetRange | None) -> int:
        """The offset to go to."""
        offset = self.offsets.get(at)
        if offset is None:
            raise _Stays("there is no offset to go to")
        return offset


Target: TypeAlias = ToEarliest | ToLatest | ToCurrent | ToOffset | ShiftBy | ToEach


def _known(log: OffsetRange | None) -> OffsetRange:
    if log is None:
        raise _Stays(_UNKNOWN)
    return log


def _committed(found: Found) -> int:
    if found is None:
        raise _Stays("no offset is committed")
    if isinstance(found, UnreadableNode):
        raise _Stays(f"is no offset: {found.reason}")
    return found.offset


_UNKNOWN: Final = "unknown to the brokers"


# The plan


def plan(current: Mapping[TopicPartition, Found], ranges: Ranges | None, target: Target) -> list[Move]:
    """What becomes of each partition in `current`, in order; `ranges` is None where no brokers were asked.

    >>> at = TopicPartition("orders", 0)
    >>> [move] = plan({at: CommittedOffset("billing", at, 70)}, {at: OffsetRange(20, 100)}, ShiftBy(-60))
    >>> move.old, move.new, move.delta, move.note
    (70, 20, -50, '10 is before the start of the log')
    """
    return [_move(at, found, ranges, target) for at, found in sorted(current.items(), key=lambda item: item[0])]


def _move(at: TopicPartition, found: Found, ranges: Ranges | None, target: Target) -> Move:
    try:
        wanted = target.aim(at, found, ranges.get(at) if ranges else None)
        if isinstance(target, ToCurrent):
            new, why = wanted, None
        elif ranges is None:
            new, why = _possible(wanted)
        else:
            new, why = _within(wanted, _known(ranges.get(at)))
    except _Stays as reason:
        return Move(at, found, None, str(reason), held=True)
    return Move(at, found, new, "; ".join(filter(None, (_was(found), why))) or None)


def _possible(wanted: int) -> tuple[int, str | None]:
    if wanted > MAX_OFFSET:
        raise _Stays(f"{wanted} is larger than 2^63-1")
    return (wanted, None) if wanted >= 0 else (0, f"{wanted} is below 0")


def _within(wanted: int, log: OffsetRange) -> tuple[int, str | None]:
    if wanted < log.start:
        return log.start, f"{wanted} is before the start of the log"
    return (wanted, None) if wanted <= log.end else (log.end, f"{wanted} is beyond the end of the log")


def _was(found: Found) -> str | None:
    """What OLD cannot show."""
    return f"was no offset: {found.reason}" if isinstance(found, UnreadableNode) else None


def forgetting(current: Mapping[TopicPartition, Found]) -> list[Move]:
    """A plan by which nothing is committed any more."""
    return [Move(at, found, None, _was(found)) for at, found in sorted(current.items(), key=lambda item: item[0])]


def only_forward(moves: Iterable[Move]) -> list[Move]:
    """The same plan, but offsets that would go back stay unchanged (rule 5), as do nodes that hold no valid offset."""
    return [_held(move, _may_go_back(move)) for move in moves]


def _may_go_back(move: Move) -> Refused | None:
    if move.held or not move.changes:
        return None
    if isinstance(move.found, UnreadableNode):
        return Refused.PERHAPS_BACK
    return Refused.BACK if (move.delta or 0) < 0 else None


def only_back(moves: Iterable[Move], ranges: Ranges | None) -> list[Move]:
    """The same plan, but offsets stay unchanged if they would go forward past messages that the log still has.

    >>> at = TopicPartition("orders", 0)
    >>> ranges = {at: OffsetRange(20, 100)}
    >>> behind = plan({at: CommittedOffset("billing", at, 70)}, ranges, ToEach({at: 80}))
    >>> lost = plan({at: CommittedOffset("billing", at, 7)}, ranges, ToEach({at: 20}))
    >>> [move.note for move in only_back(behind + lost, ranges)]
    ['would go forward', None]
    """
    return [_held(move, _skips(move, ranges)) for move in moves]


def _skips(move: Move, ranges: Ranges | None) -> Refused | None:
    if move.held or move.old is None or move.new is None:
        return None
    log = ranges.get(move.at) if ranges else None
    unread = move.old if log is None else max(move.old, log.start)
    return Refused.FORWARD if move.new > unread else None


def _held(move: Move, refused: Refused | None) -> Move:
    if refused is None:
        return move
    note = f"{refused}: {move.note}" if refused is Refused.PERHAPS_BACK else refused.value
    return replace(move, note=note, held=True, refused=refused)


# Times, as Kafka's tool reads them

_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{3})?(Z|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
_DURATION: Final = re.compile(
    r"P(?=.)(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=.)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str) -> int:
    """A time in milliseconds; without a zone it is UTC.

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
    """A length of time in milliseconds, days being of 24 hours.

    >>> parse_duration("P1DT2H"), parse_duration("PT0.5S")
    (93600000, 500)
    """
    parts = _DURATION.fullmatch(text)
    if parts is None or not any(parts.groups()):
        raise InvalidOptionError("the duration", text, "it must be like P7D, PT2H30M or P1DT12H")
    days, hours, minutes = (int(parts[unit] or 0) for unit in ("days", "hours", "minutes"))
    whole, _, fraction = (parts["seconds"] or "0").partition(".")
    seconds = int(whole) + 60 * (minutes + 60 * (hours + 24 * days))
    return seconds * 1000 + int(fraction.ljust(3, "0")[:3])
