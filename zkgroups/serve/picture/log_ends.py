"""The logs of all partitions as the brokers last reported them, with their past."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...core.health.log_history import LogHistory
from ...core.kafka_values import OffsetRange
from ...core.znodes.topic_partition import TopicPartition


class LogEnds:
    """The last known log of each partition. `is_fresh` tells whether it was read after the offsets of this sweep."""

    def __init__(self) -> None:
        self.ranges: dict[TopicPartition, OffsetRange] = {}
        self.partitions: Mapping[str, tuple[int, ...]] = {}
        """The topics that the brokers know, each with its partitions."""
        self.is_fresh = False
        self._histories: dict[TopicPartition, LogHistory] = {}
        self._asked: set[TopicPartition] = set()

    def update(self, ranges: Mapping[TopicPartition, OffsetRange | None], now_ms: int) -> None:
        """Store the answer of the brokers. A partition that they do not know has no log."""
        for at, log in ranges.items():
            if log is None:
                self.ranges.pop(at, None)
                continue
            self.ranges[at] = log
            history = self._histories.get(at)
            if history is None:
                history = self._histories[at] = LogHistory()
            history.add(now_ms, log.end)
        self.is_fresh = True

    def log(self, at: TopicPartition, offset: int | None) -> OffsetRange | None:
        """Return the log of a partition. None if it is unknown, or if it is old and the offset is past its end."""
        found = self.ranges.get(at)
        if found is None or self.is_fresh or offset is None or offset <= found.end:
            return found
        return None

    def history(self, at: TopicPartition) -> LogHistory | None:
        """Return the past of a log. None if it was never read."""
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

    def keep_only(self, wanted: Collection[TopicPartition]) -> None:
        """Forget partitions that no group has any more."""
        for known in (self.ranges, self._histories):
            if len(known) > len(wanted):
                for at in [at for at in known if at not in wanted]:
                    del known[at]
        self._asked &= self._histories.keys()
