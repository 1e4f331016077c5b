"""What there is to put back: offsets of a snapshot or of an audit, and in their place what was wrong with others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ...core.znodes.codec import check_offset
from ...core.znodes.paths import GroupPaths, check_partition, check_topic
from ...core.znodes.values import ForbiddenNode, MalformedNode, TopicPartition, UnreadableNode
from ...exceptions import InvalidInputError
from ..errors import translated

Topics: TypeAlias = Mapping[str, Collection[int] | None]
"""Topics, each with the partitions that are wanted; None for all of them."""


@dataclass(frozen=True, slots=True)
class KeptTopic:
    """What is kept of one topic of a group; `topic` is None for what is wrong above all topics."""

    group: str
    topic: str | None
    offsets: Mapping[TopicPartition, int]
    problems: tuple[UnreadableNode, ...]


def kept(
    rows: DataFrame, *, groups: Collection[str] | None = None, topics: Topics | None = None
) -> Iterator[KeptTopic]:
    """The rows of the table `offsets`, or of one without `raw` and `problem`, in the order of groups and topics.

    They come as they are read: what is in memory does not grow with their number, but for that of one topic. What names
    no znode, or is there twice, is an error.
    """
    for name, kind in _MAY_BE_MISSING.items():
        if name not in rows.columns:
            rows = rows.withColumn(name, f.lit(None).cast(kind))
    if groups is not None:
        rows = rows.where(f.col("group").isin(list(groups)))
    if topics is not None:
        rows = rows.where(_of(topics))
    good = f.col("problem").isNull() & f.col("topic").isNotNull() & f.col("partition").isNotNull()
    good &= f.col("offset").isNotNull()
    # Spark hands over a row of a whole topic in no more time than a row of one partition.
    together = rows.groupBy("group", "topic").agg(
        f.collect_list(f.when(good, f.col("partition"))).alias("partitions"),
        f.collect_list(f.when(good, f.col("offset"))).alias("offsets"),
        f.collect_list(f.when(~good, f.struct("partition", "problem", "raw"))).alias("problems"),
    )
    with translated("the offsets that are kept cannot be read"):
        for row in together.sort("group", "topic").toLocalIterator():
            yield _topic(**row.asDict())


_MAY_BE_MISSING: Final = {"raw": "binary", "problem": "string"}


def _of(topics: Topics) -> Column:
    """What hides a topic, or all of them, hides what is wanted; another name is another partition."""
    hidden = f.col("partition").isNull() & f.col("raw").isNull()
    wanted = f.col("topic").isNull()
    for topic, numbers in topics.items():
        its = f.col("topic") == topic
        wanted |= its if numbers is None else its & (f.col("partition").isin(list(numbers)) | hidden)
    return wanted


def _topic(
    group: str, topic: str | None, partitions: Iterable[int], offsets: Iterable[int], problems: Iterable[Any]
) -> KeptTopic:
    above = GroupPaths(group).offsets if topic is None else GroupPaths(group).offset_topic(topic)
    found: dict[TopicPartition, int] = {}
    for partition, offset in sorted(zip(partitions, offsets, strict=True)):
        at = TopicPartition.checked(check_topic(topic), check_partition(partition))
        if at in found:
            raise InvalidInputError(f"{at} of group {group!r} is there twice")
        found[at] = check_offset(offset)
    return KeptTopic(group, topic, found, tuple(_problem(above, **row.asDict()) for row in problems))


def _problem(above: str, partition: int | None, problem: str | None, raw: bytes | None) -> UnreadableNode:
    """The node that was read; a row that others have written may say less of it."""
    if problem is None:
        return MalformedNode(f"{above}/{partition}", bytes(raw or b""), "there is neither an offset nor a problem")
    end = problem.find(": ", len(above))
    path, reason = (above, problem) if end < 0 else (problem[:end], problem[end + 2 :])
    return ForbiddenNode(path, reason) if raw is None else MalformedNode(path, bytes(raw), reason)
