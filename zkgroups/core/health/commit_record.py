"""What is known about the commits of one partition: a few numbers, however long it is observed.

The record stores the times of events and no durations. So it changes only with the partition, and one observation of a
quiet partition costs almost nothing. The first observation is primed from the times of the znode itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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
    - `early`, `late`: two earlier (time, offset), for the rate. The early one is up to one window old.
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
        """The rate at which the offset has moved in the last window. None if it was not observed for a second."""
        ms, offset = self.early
        if now_ms - ms < 1000 or self.commit.offset < offset:
            return None
        return (self.commit.offset - offset) * 1000 / (now_ms - ms)


def observe(
    record: CommitRecord | None, commit: Commit, lag: int | None, *, now_ms: int, window_ms: int, allowed_lag: int = 0
) -> CommitRecord:
    """Return the record after one more observation.

    >>> commit = Commit(offset=5, version=3, committed_ms=40_000, created_ms=10_000)
    >>> first = observe(None, commit, lag=2, now_ms=60_000, window_ms=225_000)
    >>> first.since_ms, first.behind_ms, first.rising_ms, first.commit_every_ms
    (40000, 40000, 60000, 10000)
    >>> moved = commit._replace(offset=7, version=4, committed_ms=70_000)
    >>> second = observe(first, moved, lag=0, now_ms=75_000, window_ms=225_000)
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
    is_late = 2 * (now_ms - record.late[0]) >= window_ms
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
