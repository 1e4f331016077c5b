"""Ask the brokers how long ago the first unread message of each group and partition was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Self

from zkgroups import TopicPartition
from zkgroups.core.offsets.lag import GroupLag, PartitionLag

if TYPE_CHECKING:
    from zkgroups.kafka import Brokers


@dataclass(frozen=True, slots=True)
class TimeLags:
    """The age of the first unread message in seconds, by group and partition. 0 if all is read; None if unknown."""

    seconds: Mapping[tuple[str, TopicPartition], int | None]

    @classmethod
    def read(cls, brokers: Brokers, lags: Iterable[GroupLag], now_ms: int) -> Self:
        """Ask the brokers. One request names a partition once, so groups that share partitions take turns."""
        places = {(group.group, each.partition.at): each for group in lags for each in group.partitions}
        unread = {place: offset for place, each in places.items() if (offset := _first_unread(each)) is not None}
        offsets: dict[TopicPartition, set[int]] = {}
        for (_group, at), offset in unread.items():
            offsets.setdefault(at, set()).add(offset)
        times: dict[tuple[TopicPartition, int], int | None] = {}
        for turn in zip_longest(*([(at, offset) for offset in some] for at, some in offsets.items())):
            asked = dict(pair for pair in turn if pair is not None)
            found = brokers.message_times(asked, now_ms=now_ms)
            times |= {(at, offset): found[at] for at, offset in asked.items()}
        ages = {place: _seconds(times[place[1], offset], now_ms) for place, offset in unread.items()}
        return cls(ages | {place: 0 for place, each in places.items() if each.lag == 0})

    def of(self, group: GroupLag, lag: PartitionLag) -> int | None:
        """Return the age in one partition."""
        return self.seconds.get((group.group, lag.partition.at))

    def most(self, group: GroupLag) -> int | None:
        """Return the highest known age of a group."""
        return max((age for each in group.partitions if (age := self.of(group, each)) is not None), default=None)


def _first_unread(lag: PartitionLag) -> int | None:
    """Return the first unread offset that the log still has. None if there is none, or if it is unknown."""
    if not lag.lag or lag.log is None or lag.partition.offset is None:
        return None
    return max(lag.partition.offset.offset, lag.log.start)


def _seconds(time_ms: int | None, now_ms: int) -> int | None:
    return None if time_ms is None else max(0, now_ms - time_ms) // 1000
