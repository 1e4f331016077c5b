"""What the server remembers between two sweeps: of each group, and of the logs of all partitions."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Final

from ...core.commit_record import CommitRecord, LogHistory
from ...core.health import Hold, Verdict
from ...core.kafka_values import OffsetRange
from ...core.znodes.topic_partition import TopicPartition
from .values import Counters, EventKind, GroupEvent, Trend, TrendPoint

# What the server remembers of one group between two sweeps: commits, owners, lag, and recent events.
#
# Everything is limited in size, so the memory does not grow with time.


TREND_POINTS: Final = 40
OLDER_POINTS: Final = 144
OLDER_MS: Final = 600_000
"""Older points are one for this time: together for a day."""
EVENTS: Final = 100

HeldSince = tuple[Hold, int]
"""The hold of a partition, and since when, in milliseconds; 0 if unknown."""


class GroupHistory:
    """The past of one group."""

    __slots__ = (
        "_commits",
        "_counters",
        "_events",
        "_members",
        "_older",
        "_owners",
        "_trend",
        "_verdict",
        "holds",
        "records",
    )

    def __init__(self) -> None:
        self.records: dict[TopicPartition, CommitRecord] = {}
        self.holds: dict[TopicPartition, HeldSince] = {}
        """The partitions that are not held as they should be."""
        self._members: frozenset[str] | None = None
        self._owners: dict[TopicPartition, str] = {}
        self._verdict: Verdict | None = None
        self._events: deque[GroupEvent] = deque(maxlen=EVENTS)
        self._older = array("q")
        self._trend: deque[TrendPoint] = deque(maxlen=TREND_POINTS)
        self._counters = Counters()
        self._commits: int | None = None

    @property
    def is_new(self) -> bool:
        """True before the first sweep that saw the group."""
        return self._members is None

    @property
    def events(self) -> tuple[GroupEvent, ...]:
        """The last events, oldest first."""
        return tuple(self._events)

    @property
    def trend(self) -> Trend:
        """The last total lags."""
        return Trend(self._older, tuple(self._trend))

    @property
    def counters(self) -> Counters:
        """The number of events since the server has started."""
        return self._counters

    def see_members(self, members: Iterable[str], owners: Mapping[TopicPartition, str], now_ms: int) -> None:
        """Compare the members and the owners with those of the last sweep."""
        seen = frozenset(members)
        if self._members is not None:
            joined, left = sorted(seen - self._members), sorted(self._members - seen)
            self._add(now_ms, EventKind.JOINED, joined)
            self._add(now_ms, EventKind.LEFT, left)
            changed = self._see_owners(owners, now_ms)
            counted = self._counters
            self._counters = Counters(
                counted.joined + len(joined), counted.left + len(left), counted.owner_changes + changed
            )
        self._members, self._owners = seen, dict(owners)

    def _see_owners(self, owners: Mapping[TopicPartition, str], now_ms: int) -> int:
        changed = [at for at in sorted({**self._owners, **owners}) if self._owners.get(at) != owners.get(at)]
        for at in changed:
            owner = owners.get(at)
            kind = EventKind.RELEASED if owner is None else EventKind.CLAIMED
            self._events.append(GroupEvent(now_ms, kind, owner or self._owners[at], at))
        return len(changed)

    def _add(self, now_ms: int, kind: EventKind, names: Iterable[str]) -> None:
        self._events.extend(GroupEvent(now_ms, kind, name) for name in names)

    def see_verdict(self, verdict: Verdict, now_ms: int) -> None:
        """Note a change of the status."""
        if self._verdict is not None and self._verdict.status is not verdict.status:
            text = f"{self._verdict.status} → {verdict.status}: {verdict.reason}"
            self._events.append(GroupEvent(now_ms, EventKind.STATUS, text))
        self._verdict = verdict

    def see_totals(self, lag: int | None, commits: int, now_ms: int) -> None:
        """Note the total lag, and the number of commits since the nodes were created."""
        since_last = 0 if self._commits is None else max(0, commits - self._commits)
        self._commits = commits
        if len(self._trend) == TREND_POINTS:
            self._older = _with_older(self._older, self._trend[0])
        self._trend.append(TrendPoint(now_ms, lag, since_last))

    def keep_only(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that the group does not have any more."""
        if len(self.records) > (count := len(kept := set(partitions))) or len(self.holds) > count:
            for known in (self.records, self.holds):
                for at in [at for at in known if at not in kept]:
                    del known[at]


def _with_older(older: array[int], point: TrendPoint) -> array[int]:
    """Return the older points with one more, which is added to the last one if both are of the same ten minutes."""
    lag, commits = -1 if point.lag is None else point.lag, point.commits
    kept = older[-3 * (OLDER_POINTS - 1) :]
    if older and older[-3] // OLDER_MS == point.ms // OLDER_MS:
        kept, lag, commits = older[:-3], max(lag, older[-2]), commits + older[-1]
    kept.extend((point.ms, lag, commits))
    return kept


# The logs of all partitions as the brokers last reported them, with their past.


class LogEnds:
    """The last known log of each partition. `is_fresh` tells whether it was read after the offsets of this sweep."""

    def __init__(self) -> None:
        self.ranges: dict[TopicPartition, OffsetRange] = {}
        self.partitions: Mapping[str, tuple[int, ...]] = {}
        """The topics that the brokers know, each with its partitions."""
        self.is_fresh = False
        self._histories: dict[TopicPartition, LogHistory] = {}
        self._asked: set[TopicPartition] = set()

    def update(
        self,
        ranges: Mapping[TopicPartition, OffsetRange | None],
        now_ms: int,
        *,
        without_past: Collection[TopicPartition] = (),
    ) -> None:
        """Store the answer of the brokers. A partition that they do not know has no log."""
        for at, log in ranges.items():
            if log is None:
                self.ranges.pop(at, None)
                continue
            self.ranges[at] = log
            if at in without_past:
                continue
            history = self._histories.get(at)
            if history is None:
                history = self._histories[at] = LogHistory()
            history.add(now_ms, log.end)
        self.is_fresh = True

    def log(self, at: TopicPartition, offset: int | None) -> OffsetRange | None:
        """Return the log of a partition, or None if it is unknown, or if it is old and the offset is past its end."""
        found = self.ranges.get(at)
        if found is None or self.is_fresh or offset is None or offset <= found.end:
            return found
        return None

    def history(self, at: TopicPartition) -> LogHistory | None:
        """Return the past of a log, or None if it was never read."""
        return self._histories.get(at)

    def add_message(self, at: TopicPartition, ms: int | None, offset: int) -> None:
        """Store the time of a message, as a broker reported it. None: it has no time."""
        history = self._histories.get(at)
        if ms is not None and history is not None:
            history.add_message(ms, offset)

    def to_ask(self, unread: Iterable[tuple[TopicPartition, int]], most: int) -> dict[TopicPartition, int]:
        """Return the oldest unread messages whose times are unknown, each partition once. They count as asked."""
        oldest: dict[TopicPartition, int] = {}
        for at, offset in unread:
            if at in self._asked or (history := self._histories.get(at)) is None:
                continue
            if history.first_end is not None and offset < history.first_end:
                oldest[at] = min(offset, oldest.get(at, offset))
        chosen = dict(list(oldest.items())[:most])
        self._asked |= chosen.keys()
        return chosen

    def forget_asked(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask again for the times of messages in these partitions."""
        self._asked.difference_update(partitions)

    def keep_only(self, wanted: Set[TopicPartition], others: Set[TopicPartition] = frozenset()) -> None:
        """Forget partitions that no group has any more. Of `others`, keep the logs, but not their past."""
        for at in self.ranges.keys() - wanted - others:
            del self.ranges[at]
        for at in self._histories.keys() - wanted:
            del self._histories[at]
        self._asked &= self._histories.keys()
