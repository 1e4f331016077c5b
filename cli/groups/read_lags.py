"""Ask the brokers for the lag of groups, for several commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from zkgroups import GroupDescription, PartitionDescription
from zkgroups.core.offsets.lag import (
    GroupLag,
    LogRanges,
    TopicPartitions,
    group_lag,
    partitions_of_group,
    subscribes_by_pattern,
)
from zkgroups.exceptions import NotConnectedError

from ..shared.arguments import ChosenPartitions, is_chosen

if TYPE_CHECKING:
    from zkgroups.kafka import Brokers

LAG_UNKNOWN: Final = "log ends and lag are unknown"
"""What is missing without brokers."""


def read_lags(
    brokers: Brokers, groups: Sequence[GroupDescription], topics: ChosenPartitions | None = None
) -> list[GroupLag]:
    """Compute the lags of all groups at once. The offsets were read before the log ends, so that no lag is negative."""
    named = {topic for group in groups for topic in group.subscribed}
    partitions = _chosen(groups, brokers.partitions(None if subscribes_by_pattern(groups) else named), topics)
    logs = brokers.ranges({each.at for some in partitions for each in some})
    return [group_lag(group, some, logs) for group, some in zip(groups, partitions, strict=True)]


def lags_without_brokers(groups: Sequence[GroupDescription], topics: ChosenPartitions | None = None) -> list[GroupLag]:
    """Return the partitions in the znodes of all groups. Their lags are unknown."""
    return [group_lag(group, some, {}) for group, some in zip(groups, _chosen(groups, {}, topics), strict=True)]


def _chosen(
    groups: Sequence[GroupDescription], known: TopicPartitions, topics: ChosenPartitions | None
) -> list[list[PartitionDescription]]:
    return [[each for each in partitions_of_group(group, known) if is_chosen(each.at, topics)] for group in groups]


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
