"""The levels of metrics, and what a set of names must offer on each level.

level      one sample for each                       labels of kafka_exporter
group      group                                     consumergroup
topic      group and topic                           consumergroup, topic
partition  group and partition                       consumergroup, topic, partition
log        partition, whoever reads it               topic, partition
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ...core.kafka_values import OffsetRange
from ..picture.values import GroupPicture, PartitionPicture, Picture, TopicPicture
from .exposition import Family, Number


class TopicTotals(NamedTuple):
    """The known values of one topic of a group, added up. None if none is known."""

    lag: int | None
    offset: int | None
    commits: int | None
    last_commit_ms: int | None


@dataclass(frozen=True, slots=True)
class SeriesNames:
    """One set of names: for each level its families, each with its value, and the function that formats labels."""

    partition_labels: Callable[[str, GroupPicture], list[str]]
    topic_labels: Callable[[str, str, str], str]
    group_labels: Callable[[str, str], str]
    log_labels: Callable[[str, str, int], str]
    partitions: tuple[tuple[Family, Callable[[PartitionPicture], Number | None]], ...] = ()
    topics: tuple[tuple[Family, Callable[[TopicTotals], Number | None]], ...] = ()
    groups: tuple[tuple[Family, Callable[[GroupPicture], Number | None]], ...] = ()
    logs: tuple[tuple[Family, Callable[[OffsetRange], Number]], ...] = ()
    all_topics: tuple[tuple[Family, Callable[[TopicPicture], Number | None]], ...] = ()
    details: tuple[tuple[Family, Callable[[GroupPicture], Iterable[tuple[str, Number]]]], ...] = ()
    """Families with any number of samples for each group, with their labels."""
    has_moved_groups: bool = False
    """True if groups that were moved to Kafka's own offsets keep their series."""

    def chosen(self, picture: Picture) -> Iterator[GroupPicture]:
        """Yield the groups that have series."""
        return (group for group in picture.groups.values() if self.has_moved_groups or not group.has_moved)


def totals_by_topic(group: GroupPicture) -> dict[str, TopicTotals]:
    """Add up the partitions of each topic."""
    found: dict[str, list[PartitionPicture]] = {}
    for partition in group.partitions:
        found.setdefault(partition.at.topic, []).append(partition)
    return {topic: _totals(partitions) for topic, partitions in found.items()}


def _totals(partitions: list[PartitionPicture]) -> TopicTotals:
    return TopicTotals(
        _sum(each.lag for each in partitions),
        _sum(each.offset for each in partitions),
        _sum(each.commits for each in partitions),
        max((each.committed_ms for each in partitions if each.committed_ms is not None), default=None),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
