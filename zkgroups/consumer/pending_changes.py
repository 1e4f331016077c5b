"""Changes of the group that a member has heard of, and when it handles them.

Watches report released partitions one by one. They are collected for a moment and claimed together. Any other change
makes the member look at the group, that is, read all of it. Looks that follow each other too closely are delayed.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ..core.znodes.topic_partition import TopicPartition
from ..deadline import uptime

Partitions = frozenset[TopicPartition]

IN_A_ROW: Final = 3
"""How many looks may follow each other without a pause. The next one waits, so that it sees many changes together."""

BREATHER: Final = 4
"""The least average time from look to look, in durations of a look. The time is at most LONGEST_BREATHER."""

LONGEST_BREATHER: Final = 0.5
"""In seconds."""

GATHER: Final = 0.005
"""How long to collect released partitions, in seconds."""


class PendingChanges:
    """The changes that one member has still to handle. Other threads only call `released` and `changed`."""

    def __init__(self) -> None:
        self._heard: deque[Partitions] = deque()  # on kazoo's threads
        self._released: Partitions = frozenset()
        self._released_at = 0.0  # when the first of them was collected
        self._changed = False
        self._since: float | None = None  # when the member began to handle a change
        self._next_look = 0.0
        self._looked: deque[float] = deque(maxlen=IN_A_ROW)

    def released(self, partitions: Partitions) -> None:
        """Note that these partitions were released."""
        self._heard.append(partitions)

    def changed(self) -> None:
        """Note that the member must look at the group."""
        self._changed = True

    def due(self, latest: float) -> float:
        """Return when the next change can be taken, at most `latest`."""
        if self._changed:
            latest = min(latest, self._next_look)
        if self._released:
            latest = min(latest, self._released_at + GATHER)
        return latest

    def take_released(self, waiting: Partitions) -> Partitions:
        """Return the released partitions if the member waits for no others, or they were collected long enough."""
        heard = frozenset[TopicPartition]().union(*(self._heard.popleft() for _ in range(len(self._heard))))
        if heard and not self._released:
            self._released_at = uptime()
        self._released |= heard
        if not self._released >= waiting and uptime() < self._released_at + GATHER:
            return frozenset()
        released, self._released = self._released, frozenset()
        return released

    def take_change(self) -> bool:
        """Return True if the member must look at the group now."""
        if not self._changed or uptime() < self._next_look:
            return False
        self._changed = False
        return True

    def begin_look(self) -> float:
        """Note that a look begins, which sees all changes so far. Return the time."""
        now = uptime()
        if self._since is None:
            self._since = now
        self._changed = False
        return now

    def end_look(self, began: float) -> None:
        """Note that a look has succeeded, and choose when the next one may begin."""
        took = uptime() - began
        self._looked.append(uptime())
        if len(self._looked) == IN_A_ROW:
            self._next_look = self._looked[0] + IN_A_ROW * min(BREATHER * took, LONGEST_BREATHER)

    def settle(self) -> float | None:
        """Note that all changes are handled. Return for how many seconds the member has handled them, if at all."""
        since, self._since = self._since, None
        return None if since is None else uptime() - since
