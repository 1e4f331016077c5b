"""Ask the brokers for the lag of groups, and how long ago the first unread message was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Self

from zkgroups import GroupDescription, PartitionDescription, TopicPartition
from zkgroups.core.layouts.layout import Layout
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.offsets.lag import (
    GroupLag,
    LogRanges,
    PartitionLag,
    TopicPartitions,
    group_lag,
    partitions_of_group,
    subscribes_by_pattern,
)
from zkgroups.exceptions import NotConnectedError

from ..shared.arguments import ChosenPartitions, is_chosen

if TYPE_CHECKING:
    from zkgroups.kafka import Brokers


# Ask the brokers for the lag of groups, for several commands.


def read_lags(
    brokers: Brokers,
    groups: Sequence[GroupDescription],
    topics: ChosenPartitions | None = None,
    layout: Layout = LEGACY,
) -> list[GroupLag]:
    """Compute the lags of all groups at once. The offsets were read before the log ends, so that no lag is negative."""
    named = {topic for group in groups for topic in group.subscribed}
    known = brokers.partitions(None if subscribes_by_pattern(groups) else named)
    partitions = _chosen(groups, known, topics, layout)
    logs = brokers.ranges({each.at for some in partitions for each in some})
    return [group_lag(group, some, logs, layout) for group, some in zip(groups, partitions, strict=True)]


def lags_without_brokers(
    groups: Sequence[GroupDescription], topics: ChosenPartitions | None = None, layout: Layout = LEGACY
) -> list[GroupLag]:
    """Return the partitions in the znodes of all groups. Their lags are unknown."""
    partitions = _chosen(groups, {}, topics, layout)
    return [group_lag(group, some, {}, layout) for group, some in zip(groups, partitions, strict=True)]


def _chosen(
    groups: Sequence[GroupDescription], known: TopicPartitions, topics: ChosenPartitions | None, layout: Layout
) -> list[list[PartitionDescription]]:
    return [
        [each for each in partitions_of_group(group, known, layout) if is_chosen(each.at, topics)] for group in groups
    ]


def check_leaders(brokers: Brokers, logs: LogRanges) -> None:
    """Raise an error if the brokers know a partition, but no leader has told its log range."""
    unknown = [at for at, found in logs.items() if found is None]
    known = brokers.partitions({at.topic for at in unknown}) if unknown else {}
    if without := sorted(at for at in unknown if at.partition in known.get(at.topic, ())):
        more = f" (and {len(without) - 1} more)" if len(without) > 1 else ""
        raise NotConnectedError(f"no leader of {without[0]}{more} answered")


def logs_of(lags: Sequence[GroupLag]) -> LogRanges:
    """Return the log ranges that were read."""
    return {each.partition.at: each.log for lag in lags for each in lag.partitions}


# Ask the brokers how long ago the first unread message of each group and partition was written.


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
    """Return the first unread offset that the log still has, or None if there is none, or if it is unknown."""
    if not lag.lag or lag.log is None or lag.partition.offset is None:
        return None
    return max(lag.partition.offset.offset, lag.log.start)


def _seconds(time_ms: int | None, now_ms: int) -> int | None:
    return None if time_ms is None else max(0, now_ms - time_ms) // 1000
