"""How far a group got from one snapshot to the next, and how fast: as lines, one for each partition or each topic.

Snapshots may be many, and partitions, too. Those that are no points of a line are not read, but for which groups are in
them; and there are no more points than a picture can show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from ...core.znodes.topic_partition import TopicPartition
from ...exceptions import InvalidOptionError, NotFoundError
from ..errors import translated
from ..source.tables import SCHEMAS, Table
from .layout import Layout, snapshot_name, snapshot_time
from .restore import Topics

FEW: Final = 10
"""So many partitions can be told apart; where there are more, a line is of a topic."""

TIMES: Final = 400
POINTS: Final = 400_000
"""There are no more of either."""


class By(StrEnum):
    """What a line is of."""

    TOPIC = "topic"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a snapshot found of a partition; `created` tells one node from another."""

    offset: int
    commit_count: int
    created: object = None


@dataclass(frozen=True, slots=True)
class Point:
    """Where a line is, and how much a second it moved since the point before; None is unknown."""

    offset: int | None
    messages: float | None = None
    commits: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """What became of a partition, or of all partitions of a topic together, at the times of the timeline."""

    name: str
    points: Sequence[Point]

    @property
    def moved(self) -> int:
        """How far it got from its first offset to its last."""
        offsets = self._offsets
        return offsets[-1] - offsets[0] if offsets else 0

    @property
    def went_back(self) -> bool:
        """Whether it ever did."""
        return any(now < before for before, now in pairwise(self._offsets))

    @property
    def _offsets(self) -> list[int]:
        return [point.offset for point in self.points if point.offset is not None]


@dataclass(frozen=True, slots=True)
class Timeline:
    """What became of one group; `snapshots` is how many have seen it, of which there may be more than `times`."""

    group: str
    cluster: str
    by: By
    snapshots: int
    times: Sequence[float]
    lines: Sequence[Line]


Sightings: TypeAlias = Mapping[TopicPartition, Mapping[float, Sighting]]
"""What was found of each partition at which time, in seconds since 1970."""


def timeline(
    spark: SparkSession,
    destination: str,
    group: str,
    *,
    by: By | None = None,
    topics: Topics | None = None,
    cluster: str | None = None,
    address: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Timeline:
    """The lines of a group, from all snapshots of its cluster, or those of a stretch of time.

    A cluster need not be named if the group is in one only, or in that at the address.
    """
    layout = Layout(spark, destination)
    first, last = ("" if since is None else snapshot_name(since), "~" if until is None else snapshot_name(until))
    names = [name for name in layout.snapshots() if first <= name <= last]
    if not names:
        raise NotFoundError(f"there is no snapshot{' of that time' if since or until else ''} in {layout}")
    with translated(f"the snapshots in {layout} cannot be read"):
        rows = _of_group(_read(spark, layout, names), group, topics)
        counts = [row.asDict() for row in rows.groupBy("snapshot", "cluster").agg(f.count("*").alias("rows")).collect()]
        if not counts:
            raise NotFoundError(f"no snapshot in {layout} has such offsets of group {group!r}")
        chosen = _cluster({row["cluster"] for row in counts}, group, cluster, address)
        seen = {row["snapshot"]: row["rows"] for row in counts if row["cluster"] == chosen}
        wanted = spread(sorted(seen), min(TIMES, POINTS // max(seen.values())))
        found = _sightings(_of_group(_read(spark, layout, wanted), group, topics).where(f.col("cluster") == chosen))
    times = sorted({time for each in found.values() for time in each})
    by = by or lines_by(found)
    return Timeline(group, chosen, by, len(seen), times, lines(found, times, by))


def _cluster(there: set[str], group: str, wanted: str | None, address: str | None) -> str:
    if wanted is not None and wanted not in there:
        raise NotFoundError(f"no snapshot of {wanted} has such offsets of group {group!r}")
    if wanted is None and len(there) > 1 and address not in there:
        raise InvalidOptionError("cluster", None, f"there is such a group in {', '.join(sorted(there))}: say which")
    return wanted or (address if address in there and address is not None else next(iter(there)))


# Reading

_COLUMNS: Final = ("cluster", "group", "topic", "partition", "offset", "commit_count", "created_at", "read_at")
_SCHEMA: Final = StructType(
    [*(SCHEMAS[Table.OFFSETS][name] for name in _COLUMNS), StructField("snapshot", StringType())]
)


def _read(spark: SparkSession, layout: Layout, names: Sequence[str]) -> DataFrame:
    """The offsets of several snapshots, whatever else their version has; `snapshot` is whose."""
    paths = [layout.table(Table.OFFSETS, name) for name in names]
    as_they_are = spark.read.schema(_SCHEMA).option("__globPaths__", "false")
    return as_they_are.option("basePath", paths[0].rpartition("/")[0]).parquet(*paths)


def _of_group(rows: DataFrame, group: str, topics: Topics | None) -> DataFrame:
    found = rows.where(f.col("group") == group).where("offset is not null and topic is not null and partition >= 0")
    if topics is None:
        return found
    wanted = f.lit(False)
    for topic, numbers in topics.items():
        its = f.col("topic") == topic
        wanted |= its if numbers is None else its & f.col("partition").isin(list(numbers))
    return found.where(wanted)


def _sightings(rows: DataFrame) -> Sightings:
    """All of a group that one snapshot has was read within a moment, which is its time."""
    names = ("snapshot", "topic", "partition", "offset", "commit_count", "created_at")
    table = rows.select(*names, f.unix_micros("read_at")).toArrow()
    columns = [table.column(number).to_pylist() for number in range(table.num_columns)]
    times: dict[str, float] = {}
    for name, microseconds in zip(columns[0], columns[-1], strict=True):
        time = snapshot_time(name).timestamp() if microseconds is None else microseconds / 1e6
        times[name] = min(time, times.get(name, time))
    found: defaultdict[TopicPartition, dict[float, Sighting]] = defaultdict(dict)
    for name, topic, partition, offset, count, created, _ in zip(*columns, strict=True):
        found[TopicPartition(topic, partition)][times[name]] = Sighting(offset, count or 0, created)
    return found


def spread(names: Sequence[str], most: int) -> list[str]:
    """The first snapshot, and the last of each of so many equal stretches of time.

    >>> spread([f"20260131T12000{second}.000Z" for second in (0, 1, 2, 7, 8, 9)], 3)
    ['20260131T120000.000Z', '20260131T120002.000Z', '20260131T120009.000Z']
    """
    if len(names) <= max(most, 2):
        return list(names)
    times = [snapshot_time(name).timestamp() for name in names]
    width = (times[-1] - times[0]) / max(most - 1, 1)
    others = list(zip(names, times, strict=True))[1:]
    return [names[0], *{int((time - times[0]) / width - 1e-9): name for name, time in others}.values()]


# Lines


def lines_by(found: Sightings) -> By:
    """What a line is best of: a partition, where they are few or of one topic."""
    few = len(found) <= FEW or len({at.topic for at in found}) == 1
    return By.PARTITION if few else By.TOPIC


def lines(found: Sightings, times: Sequence[float], by: By) -> list[Line]:
    """A line for each partition, or for each topic, in their order."""
    partitions = {at: _partition(str(at), found[at], times) for at in sorted(found)}
    if by is By.PARTITION:
        return list(partitions.values())
    topics: defaultdict[str, list[Line]] = defaultdict(list)
    for at, line in partitions.items():
        topics[at.topic].append(line)
    return [_topic(name, its) for name, its in topics.items()]


def _partition(name: str, seen: Mapping[float, Sighting], times: Sequence[float]) -> Line:
    points: list[Point] = []
    for before, now in zip([None, *times], times, strict=False):
        found = seen.get(now)
        last = None if before is None else seen.get(before)
        if found is None or last is None or before is None:
            points.append(Point(None if found is None else found.offset))
        else:
            seconds = now - before
            points.append(
                Point(found.offset, _rate(found.offset - last.offset, seconds), _commits(last, found, seconds))
            )
    return Line(name, points)


def _commits(last: Sighting, found: Sighting, seconds: float) -> float | None:
    """A node that was made anew counts from its own beginning, which is a commit, too."""
    same = last.created == found.created
    return _rate(found.commit_count - last.commit_count if same else found.commit_count + 1, seconds)


def _rate(difference: int, seconds: float) -> float | None:
    """How many a second; who goes back has not read less than nothing."""
    return difference / seconds if difference >= 0 and seconds > 0 else None


def _topic(name: str, partitions: Sequence[Line]) -> Line:
    return Line(name, [Point(*point) for point in zip(_offsets(partitions), *_rates(partitions), strict=True)])


def _offsets(partitions: Sequence[Line]) -> Iterator[int | None]:
    """Together; one that was not seen for once is where it was."""
    last: dict[str, int] = {}
    for points in zip(*(line.points for line in partitions), strict=True):
        offsets = {line.name: point.offset for line, point in zip(partitions, points, strict=True)}
        known = {partition: offset for partition, offset in offsets.items() if offset is not None}
        last |= known
        yield sum(last.values()) if known else None


def _rates(partitions: Sequence[Line]) -> tuple[Iterable[float | None], Iterable[float | None]]:
    at_each = list(zip(*(line.points for line in partitions), strict=True))
    return (
        [_sum(point.messages for point in points) for points in at_each],
        [_sum(point.commits for point in points) for points in at_each],
    )


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
