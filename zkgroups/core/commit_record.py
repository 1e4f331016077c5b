"""What is remembered of the commits and the log of one partition: a few numbers, however long it is observed."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

# What is known about the commits of one partition: a few numbers, however long it is observed.
#
# The record stores the times of events and no durations. So it changes only with the partition, and one observation
# of a quiet partition costs almost nothing. The first observation is primed from the times of the znode itself.


UNKNOWN_LAG: Final = -1


class Commit(NamedTuple):
    """A committed offset as it was read: with the version and the times of its znode, in milliseconds."""

    offset: int
    version: int
    committed_ms: int
    created_ms: int


class CommitRecord(NamedTuple):
    """The last commit of a partition, and the events before it. Times are in milliseconds.

    - `commit`: the last commit.
    - `since_ms`, `since_version`: when and with which version the offset got its value.
    - `highest`, `rewound_ms`: the offset from which it last went back, and when that was seen; 0 if never.
    - `lag`: the last known lag, or `UNKNOWN_LAG`.
    - `behind_ms`: since when the lag is above the allowed one; 0 if it is not.
    - `rising_ms`: since when the lag was never seen falling.
    - `early`, `late`: two earlier (time, offset), for the rate. The early one is up to one period old.
    """

    commit: Commit
    since_ms: int
    since_version: int
    highest: int
    rewound_ms: int
    lag: int
    behind_ms: int
    rising_ms: int
    early: tuple[int, int]
    late: tuple[int, int]

    @property
    def commit_every_ms(self) -> int | None:
        """The average time between two commits since the znode was created. None if there was only one."""
        commit = self.commit
        if commit.version < 1 or not commit.created_ms < commit.committed_ms:
            return None
        return (commit.committed_ms - commit.created_ms) // commit.version

    def consumed_per_second(self, now_ms: int) -> float | None:
        """The rate at which the offset has moved in the last period. None if it was not observed for a second."""
        ms, offset = self.early
        if now_ms - ms < 1000 or self.commit.offset < offset:
            return None
        return (self.commit.offset - offset) * 1000 / (now_ms - ms)


def observe(
    record: CommitRecord | None, commit: Commit, lag: int | None, *, now_ms: int, period_ms: int, allowed_lag: int = 0
) -> CommitRecord:
    """Return the record after one more observation.

    >>> commit = Commit(offset=5, version=3, committed_ms=40_000, created_ms=10_000)
    >>> first = observe(None, commit, lag=2, now_ms=60_000, period_ms=225_000)
    >>> first.since_ms, first.behind_ms, first.rising_ms, first.commit_every_ms
    (40000, 40000, 60000, 10000)
    >>> moved = commit._replace(offset=7, version=4, committed_ms=70_000)
    >>> second = observe(first, moved, lag=0, now_ms=75_000, period_ms=225_000)
    >>> second.since_ms, second.behind_ms, second.consumed_per_second(75_000)
    (70000, 0, 0.13333333333333333)
    """
    number = UNKNOWN_LAG if lag is None else lag
    behind = number > allowed_lag
    if record is None or _is_recreated(record.commit, commit):
        return CommitRecord(
            commit,
            since_ms=commit.committed_ms,
            since_version=commit.version,
            highest=commit.offset,
            rewound_ms=0,
            lag=number,
            behind_ms=commit.committed_ms if behind else 0,
            rising_ms=now_ms,
            early=(now_ms, commit.offset),
            late=(now_ms, commit.offset),
        )
    is_late = 2 * (now_ms - record.late[0]) >= period_ms
    if commit == record.commit and number == record.lag and not is_late:
        return record
    is_first_lag = record.lag == UNKNOWN_LAG
    moved, back = commit.offset != record.commit.offset, commit.offset < record.commit.offset
    # While it has not recovered, a second step back does not lower the offset to recover.
    was_behind_highest = record.commit.offset < record.highest
    highest = max(commit.offset, record.highest if was_behind_highest or back else record.commit.offset)
    return CommitRecord(
        commit,
        since_ms=commit.committed_ms if moved else record.since_ms,
        since_version=commit.version if moved else record.since_version,
        highest=highest,
        rewound_ms=now_ms if back else record.rewound_ms if commit.offset < highest else 0,
        lag=number if lag is not None else record.lag,
        behind_ms=_behind_ms(record, commit, now_ms) if behind or (lag is None and record.behind_ms) else 0,
        rising_ms=now_ms if UNKNOWN_LAG < number < record.lag or is_first_lag else record.rising_ms,
        early=record.late if is_late else record.early,
        late=(now_ms, commit.offset) if is_late else record.late,
    )


def _is_recreated(before: Commit, now: Commit) -> bool:
    """Return True if the znode was deleted and created again. An audit does not record when it was created."""
    return now.version < before.version or (before.created_ms != now.created_ms and before.created_ms != 0)


def _behind_ms(record: CommitRecord, commit: Commit, now_ms: int) -> int:
    """Return since when it is behind. If no lag was known before, it may be since the last commit."""
    return record.behind_ms or (commit.committed_ms if record.lag == UNKNOWN_LAG else now_ms)


# The log end of one partition over time: when a message was written, and how many are written per second.
#
# Between two observations the log end is assumed to grow evenly, so a time is exact within the interval of
# observations. The number of points is limited: older ones are thinned out.


MOST_POINTS: Final = 64
RECENT_POINTS: Final = 32


class LogHistory:
    """The log ends that were seen, each with its time in milliseconds.

    >>> history = LogHistory()
    >>> history.add(1_000, 100); history.add(11_000, 200)
    >>> history.written_ms(149), history.written_ms(199), history.written_ms(200), history.written_ms(99)
    (6000, 11000, None, None)
    >>> history.produced_per_second(11_000, period_ms=60_000)
    10.0
    """

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times = array("q")
        self._ends = array("q")

    @property
    def first_end(self) -> int | None:
        """The oldest log end. The time of messages before it is unknown."""
        return self._ends[0] if self._ends else None

    def add(self, now_ms: int, end: int) -> None:
        """Add the current log end. If it has gone back, the topic was recreated, and older points mean nothing."""
        times, ends = self._times, self._ends
        if ends and end < ends[-1]:
            del times[:], ends[:]
        if len(ends) > 1 and ends[-2] == ends[-1] == end:
            times[-1] = now_ms  # the first and the last time of a pause are enough
            return
        times.append(now_ms)
        ends.append(end)
        if len(ends) > MOST_POINTS:
            older = len(ends) - RECENT_POINTS
            self._times = times[:older:2] + times[older:]
            self._ends = ends[:older:2] + ends[older:]

    def add_message(self, ms: int, offset: int) -> None:
        """Add the time of a message that is older than all points, as a broker reported it."""
        if self._ends and offset < self._ends[0] and ms <= self._times[0]:
            self._times = array("q", [ms, ms]) + self._times
            self._ends = array("q", [offset, offset + 1]) + self._ends

    def written_ms(self, offset: int) -> int | None:
        """Return when the message at this offset was written. None if it does not exist yet, or is older than this."""
        after = bisect_right(self._ends, offset)
        if not 0 < after < len(self._ends):
            return None
        start, end = self._times[after - 1], self._times[after]
        first, last = self._ends[after - 1], self._ends[after]
        return start + (offset + 1 - first) * (end - start) // (last - first)

    def produced_per_second(self, now_ms: int, *, period_ms: int) -> float | None:
        """Return how many messages were written per second in the last period, or None if that was not observed."""
        if not self._times:
            return None
        oldest = max(0, bisect_right(self._times, now_ms - period_ms) - 1)
        ms, end = self._times[oldest], self._ends[oldest]
        if now_ms - ms < 1000:
            return None
        since = max(ms, now_ms - period_ms)
        if since > ms and oldest + 1 < len(self._times):  # two points may have the same time
            after, grown = self._times[oldest + 1], self._ends[oldest + 1] - end
            end += grown * (since - ms) // (after - ms)
        return (self._ends[-1] - end) * 1000 / (now_ms - since)


def catch_up_seconds(lag: int, consumed: float | None, produced: float | None) -> float | None:
    """Return the time until the lag is zero, if both rates stay, or None if it is unknown, or if it will never be.

    >>> catch_up_seconds(300, 15.0, 5.0), catch_up_seconds(0, None, None), catch_up_seconds(300, 5.0, 5.0)
    (30.0, 0.0, None)
    """
    if lag == 0:
        return 0.0
    if consumed is None or produced is None or consumed <= produced:
        return None
    return lag / (consumed - produced)
