"""Plan changes of committed offsets: the target of each partition, and the reasons to leave one unchanged.

Nothing is written here: the caller shows a plan and then applies it. Targets have the names and the meaning that they
have in Kafka's own tool:

    to earliest, to latest     the log start or the log end, which only brokers know
    to a time                  the first offset at or after that time, or the log end; only brokers know it
    to current                 the committed offset; the log end if none is committed
    to an offset, shifted by,  an offset below the log start becomes the log start, one past the log end becomes the log
    from a file                end. Without brokers, only an offset below 0 is adjusted: it becomes 0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from ..kafka_values import OffsetRange
from ..znodes.codecs import MAX_OFFSET
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import CommittedOffset, CurrentOffset, StartAt, UnreadableNode
from .lag import LogRanges

# Where to start reading a partition, given the committed offset and the range of its log.
#
# A committed offset is past the end of the log after the topic was deleted and recreated. It is before the start
# after messages were deleted unread. In both cases brokers refuse to read from it. A client that resets by itself
# hides this: it reads the whole log again at every start, because a lower offset is never committed.
#
# A log end may be stale: read before the last commit, cached by a client, or reported by a broker that has just
# become the leader (before Kafka 2.2 it may report a lower end for a moment, see KIP-207). So one reading does not
# show that an offset is past the end. `PastEnd` asks for a second one.


OUT_OF_RANGE: Final = ("error", *(start.value for start in StartAt))
"""The values of the option `out_of_range`."""

CONFIRM_AFTER: Final = 1.0
"""In seconds: how much later the log has to be read again. A new leader learns the log end within one fetch."""

FORGET_AFTER: Final = 60.0
"""In seconds: a first reading that is older than this does not count any more."""


class PastEnd:
    """Remembers the positions that were past the log end at a first reading. It has no clock: the caller passes `now`.

    >>> at, past_end = TopicPartition("orders", 0), PastEnd()
    >>> [past_end.is_confirmed(at, 50, now) for now in (0.0, 0.5, 1.0, 100.0)]
    [False, False, True, False]
    """

    def __init__(self) -> None:
        self._first: dict[TopicPartition, tuple[int, float]] = {}

    def is_confirmed(self, at: TopicPartition, position: int, now: float) -> bool:
        """Return True if the same position was also past the end at least `CONFIRM_AFTER` seconds ago."""
        known, since = self._first.get(at, (None, now))
        if known != position or now - since > FORGET_AFTER:
            since = now
        self._first[at] = position, since
        return known == position and now - since >= CONFIRM_AFTER

    def forget(self, at: TopicPartition) -> None:
        """Discard the first reading, because a later one found the position in the log."""
        self._first.pop(at, None)


def start_offset(start: int | StartAt, log: OffsetRange) -> int | None:
    """Return the offset to start at, or None if the committed offset is outside of the log.

    >>> log = OffsetRange(10, 20)
    >>> [start_offset(start, log) for start in (StartAt.EARLIEST, StartAt.LATEST, 10, 20, 21)]
    [10, 20, 10, 20, None]
    """
    if isinstance(start, StartAt):
        return log.start if start is StartAt.EARLIEST else log.end
    return start if start in log else None


class Refusal(StrEnum):
    """A reason to leave an offset unchanged."""

    WOULD_GO_BACK = "would-go-back"
    WOULD_GO_FORWARD = "would-go-forward"
    """Past messages of the log that may be unread."""
    MAY_GO_BACK = "may-go-back"
    """The node does not hold a valid offset, so the direction is unknown."""
    NO_TARGET = "no-target"
    """The file, snapshot or time gives no offset for the partition."""
    NOT_COMMITTED = "not-committed"
    """A target relative to the committed offset needs one."""
    NOT_VALID = "not-valid"
    """A target relative to the committed offset needs a valid one."""
    UNKNOWN_TO_BROKERS = "unknown-to-brokers"
    TOO_LARGE = "too-large"
    """The offset would be larger than 2^63-1."""


class Adjustment(StrEnum):
    """A reason to choose another offset than the requested one."""

    BELOW_ZERO = "below-zero"
    BEFORE_LOG_START = "before-log-start"
    PAST_LOG_END = "past-log-end"


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The planned change of one offset: `new` replaces `found`. If `new` is None and not refused, delete the node."""

    at: TopicPartition
    found: CurrentOffset
    new: int | None
    requested: int | None = None
    """The offset that the target asks for, if it is adjusted or too large."""
    adjustment: Adjustment | None = None
    refusal: Refusal | None = None

    @property
    def old(self) -> int | None:
        """The committed offset; None if there is none, or if the node does not hold a valid one."""
        return self.found.offset if isinstance(self.found, CommittedOffset) else None

    @property
    def delta(self) -> int | None:
        """The distance from the old offset to the new one, negative if back; None if one of them is unknown."""
        return None if self.old is None or self.new is None else self.new - self.old

    @property
    def is_refused(self) -> bool:
        """True if the offset must stay unchanged; `refusal` has the reason."""
        return self.refusal is not None

    @property
    def changes(self) -> bool:
        """True if a write is needed."""
        return not self.is_refused and not (self.found is None if self.new is None else self.old == self.new)


class _Refused(Exception):
    """Strictly private: the offset must stay unchanged."""

    def __init__(self, refusal: Refusal, requested: int | None = None) -> None:
        super().__init__(refusal, requested)
        self.refusal = refusal
        self.requested = requested


# Targets


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """The log start."""

    def resolve(self, _at: TopicPartition, _found: CurrentOffset, log: OffsetRange | None) -> int:
        """Return the requested offset."""
        return _known(log).start


@dataclass(frozen=True, slots=True)
class ToLatest:
    """The log end."""

    def resolve(self, _at: TopicPartition, _found: CurrentOffset, log: OffsetRange | None) -> int:
        """Return the requested offset."""
        return _known(log).end


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """The committed offset, even outside the log. If none is committed, the log end."""

    def resolve(self, _at: TopicPartition, found: CurrentOffset, log: OffsetRange | None) -> int:
        """Return the requested offset."""
        return _committed(found) if found is not None or log is None else log.end


@dataclass(frozen=True, slots=True)
class ToOffset:
    """One fixed offset, for all partitions."""

    offset: int

    def resolve(self, _at: TopicPartition, _found: CurrentOffset, _log: OffsetRange | None) -> int:
        """Return the requested offset."""
        return self.offset


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """The committed offset plus this number, which may be negative."""

    by: int

    def resolve(self, _at: TopicPartition, found: CurrentOffset, _log: OffsetRange | None) -> int:
        """Return the requested offset."""
        return _committed(found) + self.by


@dataclass(frozen=True, slots=True)
class ToEach:
    """One offset per partition, from a file or from the brokers' answer for a time."""

    offsets: Mapping[TopicPartition, int | None]

    def resolve(self, at: TopicPartition, _found: CurrentOffset, _log: OffsetRange | None) -> int:
        """Return the requested offset."""
        offset = self.offsets.get(at)
        if offset is None:
            raise _Refused(Refusal.NO_TARGET)
        return offset


Target: TypeAlias = ToEarliest | ToLatest | ToCurrent | ToOffset | ShiftBy | ToEach


def _known(log: OffsetRange | None) -> OffsetRange:
    if log is None:
        raise _Refused(Refusal.UNKNOWN_TO_BROKERS)
    return log


def _committed(found: CurrentOffset) -> int:
    if found is None:
        raise _Refused(Refusal.NOT_COMMITTED)
    if isinstance(found, UnreadableNode):
        raise _Refused(Refusal.NOT_VALID)
    return found.offset


# Plans


def plan_reset(
    current: Mapping[TopicPartition, CurrentOffset], ranges: LogRanges | None, target: Target
) -> list[OffsetChange]:
    """Plan to move every offset in `current` to the target, in order. `ranges` is None if no brokers were asked.

    >>> at = TopicPartition("orders", 0)
    >>> [change] = plan_reset({at: CommittedOffset("billing", at, 70)}, {at: OffsetRange(20, 100)}, ShiftBy(-60))
    >>> change.old, change.requested, change.new, change.delta, change.adjustment
    (70, 10, 20, -50, <Adjustment.BEFORE_LOG_START: 'before-log-start'>)
    """
    return [_change(at, found, ranges, target) for at, found in sorted(current.items(), key=lambda item: item[0])]


def _change(at: TopicPartition, found: CurrentOffset, ranges: LogRanges | None, target: Target) -> OffsetChange:
    try:
        requested = target.resolve(at, found, ranges.get(at) if ranges else None)
        if isinstance(target, ToCurrent):
            return OffsetChange(at, found, requested)
        new, adjustment = _adjust(requested, None if ranges is None else _known(ranges.get(at)))
    except _Refused as refused:
        return OffsetChange(at, found, None, refused.requested, refusal=refused.refusal)
    return OffsetChange(at, found, new, None if adjustment is None else requested, adjustment)


def _adjust(requested: int, log: OffsetRange | None) -> tuple[int, Adjustment | None]:
    """Return the possible offset nearest to the requested one; `log` is None if no brokers were asked."""
    if log is not None and requested < log.start:
        return log.start, Adjustment.BEFORE_LOG_START
    if log is not None and requested > log.end:
        return log.end, Adjustment.PAST_LOG_END
    if requested > MAX_OFFSET:
        raise _Refused(Refusal.TOO_LARGE, requested)
    return (requested, None) if requested >= 0 else (0, Adjustment.BELOW_ZERO)


def plan_delete(current: Mapping[TopicPartition, CurrentOffset]) -> list[OffsetChange]:
    """Plan to delete every offset in `current`, in order."""
    return [OffsetChange(at, found, None) for at, found in sorted(current.items(), key=lambda item: item[0])]


def refuse_backward(changes: Iterable[OffsetChange]) -> list[OffsetChange]:
    """Return the plan, with every change refused that would or might move an offset back."""
    return [_with_refusal(change, _may_go_back(change)) for change in changes]


def _may_go_back(change: OffsetChange) -> Refusal | None:
    if not change.changes:
        return None
    if isinstance(change.found, UnreadableNode):
        return Refusal.MAY_GO_BACK
    return Refusal.WOULD_GO_BACK if (change.delta or 0) < 0 else None


def refuse_forward(changes: Iterable[OffsetChange], ranges: LogRanges | None) -> list[OffsetChange]:
    """Return the plan with all changes refused by which an offset skips messages that the log still has.

    >>> at = TopicPartition("orders", 0)
    >>> ranges = {at: OffsetRange(20, 100)}
    >>> behind = plan_reset({at: CommittedOffset("billing", at, 70)}, ranges, ToEach({at: 80}))
    >>> lost = plan_reset({at: CommittedOffset("billing", at, 7)}, ranges, ToEach({at: 20}))
    >>> [change.refusal for change in refuse_forward(behind + lost, ranges)]
    [<Refusal.WOULD_GO_FORWARD: 'would-go-forward'>, None]
    """
    return [_with_refusal(change, _would_skip(change, ranges)) for change in changes]


def _would_skip(change: OffsetChange, ranges: LogRanges | None) -> Refusal | None:
    if change.is_refused or change.old is None or change.new is None:
        return None
    log = ranges.get(change.at) if ranges else None
    unread = change.old if log is None else max(change.old, log.start)
    return Refusal.WOULD_GO_FORWARD if change.new > unread else None


def _with_refusal(change: OffsetChange, refusal: Refusal | None) -> OffsetChange:
    return change if refusal is None else replace(change, refusal=refusal)
