"""Read the offsets of a snapshot or an audit for restoring them, with the problems of unreadable ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core.table_columns import Table
from ..core.znodes.codecs import check_offset
from ..core.znodes.paths import GroupPaths
from ..core.znodes.topic_partition import TopicPartition, check_partition, check_topic
from ..core.znodes.values import ForbiddenNode, MalformedNode, UnreadableNode
from ..exceptions import InvalidInputError
from .layout import ChosenSnapshot, SnapshotReader

Topics: TypeAlias = Mapping[str, Collection[int] | None]
"""Topics with the selected partitions; None selects all."""


@dataclass(frozen=True, slots=True)
class RestorableTopic:
    """The offsets and problems of one topic of a group. `topic` is None for problems above the topics."""

    group: str
    topic: str | None
    offsets: Mapping[TopicPartition, int]
    problems: tuple[UnreadableNode, ...]


def restorable_of(
    layout: SnapshotReader, choice: ChosenSnapshot, *, groups: Collection[str] | None, topics: Topics | None
) -> Iterator[RestorableTopic]:
    """Iterate over the offsets of a chosen snapshot. Raise DamagedFileError if a file is missing or truncated."""
    layout.check_intact(Table.OFFSETS, choice.name, layout.summary(choice.name))
    rows = layout.offsets([choice.name], ("cluster", *_COLUMNS), groups)
    if choice.cluster is not None:
        rows = rows.filter(pc.equal(rows.column("cluster"), choice.cluster))
    return restorable_topics(rows, topics)


def restorable_topics(rows: Any, topics: Topics | None = None) -> Iterator[RestorableTopic]:
    """Iterate over the rows of an `offsets` table of Arrow by group and topic; `raw` and `problem` may be missing.

    Raise InvalidInputError for an invalid name or a duplicate partition.
    """
    missing = {name: pa.nulls(len(rows)) for name in _COLUMNS if name not in rows.column_names}
    rows = pa.table({name: missing[name] if name in missing else rows.column(name) for name in _COLUMNS})
    if topics is not None:
        rows = rows.filter(selected(rows, topics))
    # Arrow sorts null last, but the problems of a group come before its topics.
    rows = rows.append_column("order", pc.fill_null(rows.column("topic"), ""))
    rows = rows.sort_by([(name, "ascending") for name in ("group", "order", "partition")]).drop_columns("order")
    found = (row for batch in rows.to_batches(_BATCH_ROWS) for row in zip(*batch.to_pydict().values(), strict=True))
    for (group, topic), each in groupby(found, itemgetter(0, 1)):
        yield _topic(group, topic, [row[2:] for row in each])


_COLUMNS: Final = ("group", "topic", "partition", "offset", "problem", "raw")
_BATCH_ROWS: Final = 10_000


def selected(rows: Any, topics: Topics) -> Any:
    """Select the wanted partitions, and the problems of directories above them, which may hide partitions."""
    topic, partition = rows.column("topic"), rows.column("partition")
    hidden = pc.and_(pc.is_null(partition), pc.is_null(rows.column("raw")))
    wanted = pc.is_null(topic)
    for name, numbers in topics.items():
        is_topic = pc.equal(topic, name)
        if numbers is not None:
            chosen = pc.is_in(partition.cast(pa.int64()), value_set=pa.array(numbers, pa.int64()))
            is_topic = pc.and_(is_topic, pc.or_(chosen, hidden))
        wanted = pc.or_(wanted, pc.fill_null(is_topic, False))
    return wanted


def _topic(group: str, topic: str | None, rows: Sequence[tuple[Any, ...]]) -> RestorableTopic:
    above = GroupPaths(group).offsets if topic is None else GroupPaths(group).offset_topic(topic)
    found: dict[TopicPartition, int] = {}
    problems = []
    for partition, offset, problem, raw in rows:
        if problem is not None or None in (topic, partition, offset):
            problems.append(_problem(above, partition, problem, raw))
            continue
        at = TopicPartition.checked(check_topic(topic), check_partition(partition))
        if at in found:
            raise InvalidInputError(f"the table has two offsets for {at} of group {group!r}")
        found[at] = check_offset(offset)
    return RestorableTopic(group, topic, found, tuple(problems))


def _problem(above: str, partition: int | None, problem: str | None, raw: bytes | None) -> UnreadableNode:
    """Recreate the unreadable node. A table written by other programs may lack its problem."""
    if problem is None:
        return MalformedNode(f"{above}/{partition}", bytes(raw or b""), "the row has neither an offset nor a problem")
    end = problem.find(": ", len(above))
    path, reason = (above, problem) if end < 0 else (problem[:end], problem[end + 2 :])
    return ForbiddenNode(path, reason) if raw is None else MalformedNode(path, bytes(raw), reason)
