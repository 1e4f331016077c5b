"""Compute a group's progress from snapshot to snapshot, with a line for each partition or topic.

If there are more snapshots than a plot can show, a sample of them is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import InvalidOptionError, NotFoundError
from ..storage.files import parse_timestamp, timestamp_text
from ..tables.table_reader import lags
from .layout import SnapshotReader
from .restore import Topics, selected

FEW: Final = 10
"""The number of distinguishable lines. With more partitions, a line stands for a topic."""

TIMES: Final = 400
POINTS: Final = 400_000
"""The limits of a plot."""


class LineKind(StrEnum):
    """What a line stands for."""

    TOPIC = "topic"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class RecordedOffset:
    """The offset of a partition in a snapshot. `created` changes if the node is recreated. The lag may be unknown."""

    offset: int
    commit_count: int
    created: object = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """The offset and the lag at one time, and the rates per second since the previous point; None if unknown."""

    offset: int | None
    messages: float | None = None
    commits: float | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """The points of a partition, or of a topic with all its partitions, at the times of the timeline."""

    name: str
    points: Sequence[Point]

    @property
    def moved(self) -> int:
        """The difference between the first and the last offset."""
        offsets = self._offsets
        return offsets[-1] - offsets[0] if offsets else 0

    @property
    def went_back(self) -> bool:
        """Whether any offset is lower than the one before."""
        return any(now < before for before, now in pairwise(self._offsets))

    @property
    def _offsets(self) -> list[int]:
        return [point.offset for point in self.points if point.offset is not None]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The lines of one group. `snapshots` is the number of snapshots with the group, of which `times` are a sample."""

    group: str
    cluster: str
    by: LineKind
    snapshots: int
    times: Sequence[float]
    lines: Sequence[Line]


RecordedOffsets: TypeAlias = Mapping[TopicPartition, Mapping[float, RecordedOffset]]
"""The recorded offsets of each partition by time, in seconds since 1970."""


def timeline(
    layout: SnapshotReader,
    group: str,
    *,
    by: LineKind | None = None,
    topics: Topics | None = None,
    cluster: str | None = None,
    address: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Timeline:
    """Return the lines of a group, from all snapshots of its cluster or those between two times.

    The cluster may be omitted if the group exists only in one cluster, or in the one at the address.
    """
    layout.check_exists()
    first, last = ("" if since is None else timestamp_text(since), "~" if until is None else timestamp_text(until))
    names = [name for name in layout.snapshots() if first <= name <= last]
    if not names:
        raise layout.no_snapshot(" of that time" if since or until else "")
    rows = _of_group(layout, names, group, topics, _IDENTITY)
    counts = rows.group_by(["snapshot", "cluster"]).aggregate([([], "count_all")]).to_pylist()
    if not counts:
        raise NotFoundError(
            f"no snapshot in {layout} has matching offsets of group {group!r}: check the name, times and topics"
        )
    chosen = _cluster({row["cluster"] for row in counts}, group, cluster, address)
    seen = {row["snapshot"]: row["count_all"] for row in counts if row["cluster"] == chosen}
    wanted = sample_evenly(sorted(seen), min(TIMES, POINTS // max(seen.values())))
    rows = _of_group(layout, wanted, group, topics, _COLUMNS)
    found = _recorded_offsets(rows.filter(pc.equal(rows.column("cluster"), chosen)))
    times = sorted({time for each in found.values() for time in each})
    by = by or default_line_kind(found)
    return Timeline(group, chosen, by, len(seen), times, lines(found, times, by))


def _cluster(there: set[str], group: str, wanted: str | None, address: str | None) -> str:
    if wanted is not None and wanted not in there:
        others = ", ".join(sorted(there))
        raise NotFoundError(f"no snapshot of {wanted} has matching offsets of group {group!r}, only of {others}")
    if wanted is None and len(there) > 1 and address not in there:
        raise InvalidOptionError("cluster", None, f"the group is in {', '.join(sorted(there))}: choose one")
    return wanted or (address if address in there and address is not None else next(iter(there)))


# Reading

_IDENTITY: Final = ("cluster", "group", "topic", "partition", "offset", "raw")
_COLUMNS: Final = (*_IDENTITY, "commit_count", "created_at", "log_end", "read_at")


def _of_group(
    layout: SnapshotReader, names: Sequence[str], group: str, topics: Topics | None, columns: Sequence[str]
) -> Any:
    """Return the valid offsets of a group in several snapshots of any version."""
    found = layout.offsets(names, columns, [group])
    partition = found.column("partition")
    valid = pc.and_(pc.is_valid(found.column("offset")), pc.is_valid(found.column("topic")))
    found = found.filter(pc.and_(valid, pc.fill_null(pc.greater_equal(partition, 0), False)))
    return found if topics is None else found.filter(selected(found, topics))


def _recorded_offsets(rows: Any) -> RecordedOffsets:
    """Collect the offsets. The time of a snapshot is the first time that it read the group."""
    lagging = lags(rows.column("offset"), rows.column("log_end"))
    names = ("snapshot", "topic", "partition", "offset", "commit_count", "created_at")
    read_at = rows.column("read_at").cast(pa.int64())
    columns = [each.to_pylist() for each in (*map(rows.column, names), lagging, read_at)]
    times: dict[str, float] = {}
    for name, microseconds in zip(columns[0], columns[-1], strict=True):
        time = parse_timestamp(name).timestamp() if microseconds is None else microseconds / 1e6
        times[name] = min(time, times.get(name, time))
    found: defaultdict[TopicPartition, dict[float, RecordedOffset]] = defaultdict(dict)
    for name, topic, partition, offset, count, created, behind, _ in zip(*columns, strict=True):
        found[TopicPartition(topic, partition)][times[name]] = RecordedOffset(offset, count or 0, created, behind)
    return found


def sample_evenly(names: Sequence[str], most: int) -> list[str]:
    """Return the first snapshot, and the last of each of `most` equal time intervals.

    >>> sample_evenly([f"20260131T12000{second}.000Z" for second in (0, 1, 2, 7, 8, 9)], 3)
    ['20260131T120000.000Z', '20260131T120002.000Z', '20260131T120009.000Z']
    """
    if len(names) <= max(most, 2):
        return list(names)
    times = [parse_timestamp(name).timestamp() for name in names]
    width = (times[-1] - times[0]) / max(most - 1, 1)
    others = list(zip(names, times, strict=True))[1:]
    return [names[0], *{int((time - times[0]) / width - 1e-9): name for name, time in others}.values()]


# Lines


def default_line_kind(found: RecordedOffsets) -> LineKind:
    """Choose a line per partition for few partitions or one topic, otherwise a line per topic."""
    few = len(found) <= FEW or len({at.topic for at in found}) == 1
    return LineKind.PARTITION if few else LineKind.TOPIC


def lines(found: RecordedOffsets, times: Sequence[float], by: LineKind) -> list[Line]:
    """Return a line for each partition or topic, sorted."""
    partitions = {at: _partition(str(at), found[at], times) for at in sorted(found)}
    if by is LineKind.PARTITION:
        return list(partitions.values())
    topics: defaultdict[str, list[Line]] = defaultdict(list)
    for at, line in partitions.items():
        topics[at.topic].append(line)
    return [_topic(name, partitions) for name, partitions in topics.items()]


def _partition(name: str, seen: Mapping[float, RecordedOffset], times: Sequence[float]) -> Line:
    points: list[Point] = []
    for before, now in zip([None, *times], times, strict=False):
        found = seen.get(now)
        last = None if before is None else seen.get(before)
        if found is None:
            points.append(Point(None))
        elif last is None or before is None:
            points.append(Point(found.offset, lag=found.lag))
        else:
            seconds = now - before
            rate = _rate(found.offset - last.offset, seconds)
            points.append(Point(found.offset, rate, _commits(last, found, seconds), found.lag))
    return Line(name, points)


def _commits(last: RecordedOffset, found: RecordedOffset, seconds: float) -> float | None:
    """Return the commits per second. The creation of a recreated node counts as a commit."""
    same = last.created == found.created
    return _rate(found.commit_count - last.commit_count if same else found.commit_count + 1, seconds)


def _rate(difference: int, seconds: float) -> float | None:
    """Return the rate per second; None if the offset went back."""
    return difference / seconds if difference >= 0 and seconds > 0 else None


def _topic(name: str, partitions: Sequence[Line]) -> Line:
    points = zip(_offsets(partitions), *_rates(partitions), _lags(partitions), strict=True)
    return Line(name, [Point(*point) for point in points])


def _offsets(partitions: Sequence[Line]) -> Iterator[int | None]:
    """Return the sums of the offsets. A partition missing in one snapshot keeps its last offset."""
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


def _lags(partitions: Sequence[Line]) -> Iterator[int | None]:
    """Return the sums of the lags. A sum without one of them would look like a group that has caught up."""
    for points in zip(*(line.points for line in partitions), strict=True):
        lags = [point.lag for point in points if point.offset is not None]
        known = [lag for lag in lags if lag is not None]
        yield sum(known) if known and len(known) == len(lags) else None


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
