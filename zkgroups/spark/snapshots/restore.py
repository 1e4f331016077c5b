"""Read the offsets of a snapshot or an audit for restoring them, with the problems of unreadable ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ...core.znodes.names import check_partition, check_topic
from ...core.znodes.offset_codec import check_offset
from ...core.znodes.paths import GroupPaths
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import ForbiddenNode, MalformedNode, UnreadableNode
from ...exceptions import InvalidInputError
from ..errors import translated

Topics: TypeAlias = Mapping[str, Collection[int] | None]
"""Topics with the selected partitions; None selects all."""


@dataclass(frozen=True, slots=True)
class RestorableTopic:
    """The offsets and problems of one topic of a group. `topic` is None for problems above the topics."""

    group: str
    topic: str | None
    offsets: Mapping[TopicPartition, int]
    problems: tuple[UnreadableNode, ...]


def restorable_topics(
    rows: DataFrame, *, groups: Collection[str] | None = None, topics: Topics | None = None
) -> Iterator[RestorableTopic]:
    """Iterate over the rows of an `offsets` table by group and topic; `raw` and `problem` may be missing.

    Only one topic is in memory at a time. Raise InvalidInputError for an invalid name or a duplicate partition.
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
    # One row per topic, because the time to fetch a row hardly depends on its size.
    together = rows.groupBy("group", "topic").agg(
        f.collect_list(f.when(good, f.col("partition"))).alias("partitions"),
        f.collect_list(f.when(good, f.col("offset"))).alias("offsets"),
        f.collect_list(f.when(~good, f.struct("partition", "problem", "raw"))).alias("problems"),
    )
    with translated("the saved offsets cannot be read"):
        for row in together.sort("group", "topic").toLocalIterator():
            yield _topic(**row.asDict())


_MAY_BE_MISSING: Final = {"raw": "binary", "problem": "string"}


def _of(topics: Topics) -> Column:
    """Select the wanted partitions, and the problems of directories above them, which may hide partitions."""
    hidden = f.col("partition").isNull() & f.col("raw").isNull()
    wanted = f.col("topic").isNull()
    for topic, numbers in topics.items():
        is_topic = f.col("topic") == topic
        wanted |= is_topic if numbers is None else is_topic & (f.col("partition").isin(list(numbers)) | hidden)
    return wanted


def _topic(
    group: str, topic: str | None, partitions: Iterable[int], offsets: Iterable[int], problems: Iterable[Any]
) -> RestorableTopic:
    above = GroupPaths(group).offsets if topic is None else GroupPaths(group).offset_topic(topic)
    found: dict[TopicPartition, int] = {}
    for partition, offset in sorted(zip(partitions, offsets, strict=True)):
        at = TopicPartition.checked(check_topic(topic), check_partition(partition))
        if at in found:
            raise InvalidInputError(f"the table has two offsets for {at} of group {group!r}")
        found[at] = check_offset(offset)
    return RestorableTopic(group, topic, found, tuple(_problem(above, **row.asDict()) for row in problems))


def _problem(above: str, partition: int | None, problem: str | None, raw: bytes | None) -> UnreadableNode:
    """Recreate the unreadable node. A table written by other programs may lack its problem."""
    if problem is None:
        return MalformedNode(f"{above}/{partition}", bytes(raw or b""), "the row has neither an offset nor a problem")
    end = problem.find(": ", len(above))
    path, reason = (above, problem) if end < 0 else (problem[:end], problem[end + 2 :])
    return ForbiddenNode(path, reason) if raw is None else MalformedNode(path, bytes(raw), reason)
