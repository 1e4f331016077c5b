"""Write offsets as text, in any format of `file_formats.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from ...exceptions import InvalidInputError
from ..znodes.names import check_group
from ..znodes.offset_codec import check_offset
from ..znodes.paths import GroupPaths
from .csv_cells import escape_formula
from .file_formats import FIELDS, SCHEMA, FileFormat, OffsetRecord


def format_offsets(records: Iterable[OffsetRecord], file_format: FileFormat) -> Iterator[str]:
    r"""Yield the lines of a file, without line ends. Every format but `spark` is written while records arrive.

    >>> from zkgroups import TopicPartition
    >>> at = TopicPartition("orders", 0)
    >>> list(format_offsets([OffsetRecord('a "b", c', at, 5), OffsetRecord(None, at, 5)], FileFormat.KAFKA_CSV))
    ['"a ""b"", c",orders,0,5', 'orders,0,5']
    """
    return _FORMATTERS[file_format](records)


def _format_json(records: Iterable[OffsetRecord]) -> Iterator[str]:
    yield f'{{"schema": {SCHEMA}, "offsets": ['
    before: str | None = None
    for each in records:
        if before is not None:
            yield f"{before},"
        before = json.dumps(_fields(each))
    if before is not None:
        yield before
    yield "]}"


def _format_jsonl(records: Iterable[OffsetRecord]) -> Iterator[str]:
    return (json.dumps({"schema": SCHEMA, **_fields(each)}) for each in records)


def _fields(record: OffsetRecord) -> dict[str, Any]:
    note = {} if record.note is None else {"note": record.note}
    return {
        "group": record.group,
        "topic": record.at.topic,
        "partition": record.at.partition,
        "offset": record.offset,
    } | note


def _format_csv(records: Iterable[OffsetRecord]) -> Iterator[str]:
    yield ",".join(FIELDS)
    for each in records:
        group, topic = _quoted(escape_formula(_group(each))), _quoted(escape_formula(each.at.topic))
        yield f"{group},{topic},{each.at.partition},{_offset(each)}"


def _format_kafka_csv(records: Iterable[OffsetRecord]) -> Iterator[str]:
    for each in records:
        yield _without_group(each) if each.group is None else f"{_quoted(_group(each))},{_without_group(each)}"


def _without_group(record: OffsetRecord) -> str:
    return f"{_quoted(record.at.topic)},{record.at.partition},{_offset(record)}"


def _format_paths(records: Iterable[OffsetRecord]) -> Iterator[str]:
    return (f"{GroupPaths(_group(each)).offset(each.at)}:{_offset(each)}" for each in records)


def _format_spark(records: Iterable[OffsetRecord]) -> Iterator[str]:
    topics: dict[str, dict[str, int]] = {}
    groups: set[str | None] = set()
    for each in records:
        groups.add(each.group)
        if len(groups) > 1:
            raise InvalidInputError("the format spark holds one group only: choose one group, or another format")
        topics.setdefault(each.at.topic, {})[str(each.at.partition)] = _offset(each)
    yield json.dumps(topics)


def _group(record: OffsetRecord) -> str:
    return check_group(record.group)


def _offset(record: OffsetRecord) -> int:
    return check_offset(record.offset)


def _quoted(name: str) -> str:
    """Quote every name that would not be valid as a topic in Kafka, so that every CSV reader understands it."""
    return name if re.fullmatch("[a-zA-Z0-9._-]+", name) else '"' + name.replace('"', '""') + '"'


_FORMATTERS: Final[Mapping[FileFormat, Callable[[Iterable[OffsetRecord]], Iterator[str]]]] = {
    FileFormat.JSON: _format_json,
    FileFormat.JSONL: _format_jsonl,
    FileFormat.CSV: _format_csv,
    FileFormat.KAFKA_CSV: _format_kafka_csv,
    FileFormat.PATH: _format_paths,
    FileFormat.SPARK: _format_spark,
}
