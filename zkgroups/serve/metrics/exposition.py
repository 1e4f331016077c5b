"""The text format of Prometheus, and OpenMetrics.

A family is a name with a type and a help text, followed by all of its samples. The formats differ in the name of
counters, in the content type, and in the last line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ...core.kafka_values import OffsetRange
from ..picture.values import GroupPicture, PartitionPicture, Picture, TopicPicture

Number = int | float


class Kind(Enum):
    """The type of a family."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Format(Enum):
    """The format of a whole answer, by its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

    @property
    def end(self) -> str:
        """The end of an answer."""
        return "# EOF\n" if self is Format.OPENMETRICS else ""

    @classmethod
    def accepted(cls, accept: str) -> Format:
        """Choose by the header `Accept`.

        >>> Format.accepted("application/openmetrics-text;version=1.0.0,text/plain;q=0.5").name
        'OPENMETRICS'
        >>> Format.accepted("*/*").name
        'TEXT'
        """
        return cls.OPENMETRICS if "application/openmetrics-text" in accept else cls.TEXT


class Family(NamedTuple):
    """The name of a family without the suffix of counters, its type, and its help."""

    name: str
    kind: Kind
    help: str

    @property
    def sample(self) -> str:
        """The name in each line."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name

    def header(self, format: Format) -> str:
        """Return the lines before the samples.

        >>> print(Family("x", Kind.COUNTER, "Things.").header(Format.TEXT), end="")
        # HELP x_total Things.
        # TYPE x_total counter
        """
        name = self.name if format is Format.OPENMETRICS else self.sample
        return f"# HELP {name} {self.help}\n# TYPE {name} {self.kind.value}\n"


def escaped(value: str) -> str:
    r"""Escape a label value.

    >>> print(escaped('a"b\\c'))
    a\"b\\c
    """
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value


def labels(**pairs: str) -> str:
    """Format labels, as they follow the name of a sample.

    >>> labels(group="billing", topic="orders")
    '{group="billing",topic="orders"} '
    """
    shown = ",".join(f'{name}="{escaped(value)}"' for name, value in pairs.items())
    return f"{{{shown}}} " if shown else " "


def lines(family: Family, samples: Iterable[tuple[str, Number | None]]) -> str:
    """Format the samples of a family, each with its formatted labels. Samples without a value are left out."""
    name = family.sample
    return "".join([f"{name}{labels}{value}\n" for labels, value in samples if value is not None])


# The levels of metrics, and what a set of names must offer on each level.
#
# level one sample for each labels of kafka_exporter group group consumergroup topic group and topic consumergroup,
# topic partition group and partition consumergroup, topic, partition log partition, whoever reads it topic, partition


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
