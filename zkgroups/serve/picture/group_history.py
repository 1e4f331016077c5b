"""What the server remembers of one group between two sweeps: commits, owners, lag, and recent events.

Everything is limited in size, so the memory does not grow with time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from ...core.health.commit_record import CommitRecord
from ...core.health.partition_health import Hold
from ...core.health.verdicts import Verdict
from ...core.znodes.topic_partition import TopicPartition
from .values import Counters, EventKind, GroupEvent, TrendPoint

TREND_POINTS: Final = 40
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
    def trend(self) -> tuple[TrendPoint, ...]:
        """The last total lags, oldest first."""
        return tuple(self._trend)

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
        self._trend.append(TrendPoint(now_ms, lag, since_last))

    def keep_only(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that the group does not have any more."""
        if len(self.records) > (count := len(kept := set(partitions))) or len(self.holds) > count:
            for known in (self.records, self.holds):
                for at in [at for at in known if at not in kept]:
                    del known[at]
