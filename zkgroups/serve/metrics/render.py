"""Write all metrics of a picture as bytes, once for each picture and format.

Millions of samples are formatted, so loops are over whole groups, and each partition's labels are formatted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from ..._version import VERSION
from ..picture.values import GroupPicture, Picture
from ..settings import Granularity, MetricNames, MetricSettings
from . import kafka_exporter, lag_exporter, own
from .exposition import Family, Format, Number, SeriesNames, TopicTotals, labels, lines, totals_by_topic

COMPATIBLE: Final[Mapping[MetricNames, SeriesNames]] = {
    MetricNames.KAFKA_EXPORTER: kafka_exporter.NAMES,
    MetricNames.LAG_EXPORTER: lag_exporter.NAMES,
}

_COARSER: Final = list(Granularity)


class Rendered(NamedTuple):
    """The metrics without those that change with each scrape, and the numbers of series.

    Each part has the samples of one family. It is formatted when it is needed, because all together take a hundred
    megabytes.
    """

    parts: Iterator[bytes]
    series: int
    left_out: int


def render(picture: Picture, settings: MetricSettings, format: Format) -> Rendered:
    """Return all metrics of a picture. Above the limit, coarser ones are rendered, and the rest is counted."""
    sets = (COMPATIBLE[settings.names], own.NAMES)
    wanted = _count(picture, sets, settings.granularity)
    chosen, count, most_groups = _within_limit(picture, sets, settings, wanted)
    found = (_series(picture, names, chosen, format, most_groups) for names in sets)
    info = kafka_exporter.BUILD_INFO if settings.names is MetricNames.KAFKA_EXPORTER else None
    shown = "" if info is None else info.header(format) + lines(info, [(labels(version=VERSION), 1)])
    last = shown + own.of_server(picture, format, left_out=wanted - count)
    parts = (part.encode() for part in chain(chain.from_iterable(found), [last]))
    return Rendered(parts, count, wanted - count)


def _within_limit(
    picture: Picture, sets: Iterable[SeriesNames], settings: MetricSettings, wanted: int
) -> tuple[Granularity, int, int]:
    """Return the finest level within the limit, its number of series, and the number of groups to render."""
    count = wanted
    for level in _COARSER[_COARSER.index(settings.granularity) :]:
        count = _count(picture, sets, level)
        if count <= settings.most_series:
            return level, count, len(picture.groups)
    groups = settings.most_series * len(picture.groups) // max(1, count)
    return Granularity.GROUP, groups * (count // max(1, len(picture.groups))), groups


def _count(picture: Picture, sets: Iterable[SeriesNames], level: Granularity) -> int:
    """Return the number of series at this level, as if every value were known."""
    count = 0
    for names in sets:
        groups = list(names.chosen(picture))
        count += len(groups) * (len(names.groups) + len(names.details)) + len(picture.topics) * len(names.all_topics)
        if level is not Granularity.GROUP and names.topics:
            count += len(names.topics) * sum(len({each.at.topic for each in group.partitions}) for group in groups)
        if level is Granularity.PARTITION:
            count += len(names.partitions) * sum(len(group.partitions) for group in groups)
            count += len(names.logs) * sum(len(topic.logs) for topic in picture.topics.values())
    return count


def _series(
    picture: Picture, names: SeriesNames, level: Granularity, format: Format, most_groups: int
) -> Iterator[str]:
    groups = list(islice(names.chosen(picture), most_groups))
    cluster = picture.cluster
    if level is Granularity.PARTITION:
        yield from _of_partitions(cluster, names, groups, format)
        logs = [
            (names.log_labels(cluster, topic, number), log)
            for topic, found in (picture.topics.items() if names.logs else ())
            for number, log in found.logs.items()
        ]
        yield from _families(names.logs, logs, format)
    if level is not Granularity.GROUP:
        topics: list[tuple[str, TopicTotals]] = [
            (names.topic_labels(cluster, group.name, topic), totals)
            for group in groups
            for topic, totals in totals_by_topic(group).items()
        ]
        yield from _families(names.topics, topics, format)
    yield from _families(names.groups, [(names.group_labels(cluster, group.name), group) for group in groups], format)
    for family, samples in names.details:
        yield family.header(format) + lines(family, (sample for group in groups for sample in samples(group)))
    all_topics = [(labels(topic=name), topic) for name, topic in picture.topics.items()]
    yield from _families(names.all_topics, all_topics if names.all_topics else [], format)


def _of_partitions(cluster: str, names: SeriesNames, groups: Sequence[GroupPicture], format: Format) -> Iterator[str]:
    """Format the samples of partitions, family by family, with labels that are formatted once."""
    shown = [names.partition_labels(cluster, group) for group in groups] if names.partitions else []
    for family, value in names.partitions:
        samples = (
            lines(family, zip(labels, map(value, group.partitions), strict=True))
            for labels, group in zip(shown, groups, strict=True)
        )
        yield "".join([family.header(format), *samples])


def _families(
    families: Iterable[tuple[Family, Callable[[Any], Number | None]]],
    subjects: list[tuple[str, Any]],
    format: Format,
) -> Iterator[str]:
    for family, value in families:
        yield family.header(format) + lines(family, [(shown, value(subject)) for shown, subject in subjects])
