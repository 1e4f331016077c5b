"""Offsets as text, to be read by zkgroups and by other tools. Reading is strict: anything doubtful is an error.

    json       one document: {"schema": 1, "offsets": [{"group": "g", "topic": "t", "partition": 0, "offset": 5}]}
    jsonl      such an object in each line
    csv        group,topic,partition,offset, with these names in the first line; a name that a spreadsheet would take
               for a formula gets a leading apostrophe (`csv_cells.py`)
    kafka-csv  the same without the first line and the apostrophes: kafka-consumer-groups.sh --reset-offsets
               --from-file reads it; also topic,partition,offset, if the group is given elsewhere
    path       /consumers/g/offsets/t/0:5, as Kafka's ExportZkOffsets wrote it
    spark      the offsets of one group as Spark's option startingOffsets: {"t": {"0": 5}}

What was written is read back as it was, for every name that ZooKeeper allows. An offset may be None in json and jsonl:
something that has none, or none that could be read. The other formats have no way to say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ...exceptions import InvalidInputError
from ..znodes.names import check_group, check_partition, check_topic, parse_partition
from ..znodes.offset_codec import MAX_OFFSET, check_offset
from ..znodes.paths import CONSUMERS, GroupPaths, Part
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import CommittedOffset
from .csv_cells import guarded, plain

SCHEMA: Final = 1
"""The version of the JSON."""

FIELDS: Final = ("group", "topic", "partition", "offset")


class Form(StrEnum):
    """The formats; the table is at the top of this file."""

    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    KAFKA_CSV = "kafka-csv"
    PATH = "path"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class Record:
    """The offset of one partition, as a line has it; `group` is None where the format has none."""

    group: str | None
    at: TopicPartition
    offset: int | None
    note: str | None = None
    """What is to be said about it; only in JSON, and only for people."""


class _Broken(Exception):
    """Strictly private: what cannot be read, and why."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")


# Writing


def record(found: CommittedOffset) -> Record:
    """An offset that is committed."""
    return Record(found.group, found.at, found.offset)


def write(records: Iterable[Record], form: Form) -> Iterator[str]:
    r"""The lines of a file, without their ends; all but `spark` are written as the offsets come.

    >>> at = TopicPartition("orders", 0)
    >>> list(write([Record('a "b", c', at, 5), Record(None, at, 5)], Form.KAFKA_CSV))
    ['"a ""b"", c",orders,0,5', 'orders,0,5']
    """
    return _WRITERS[form](records)


def _write_json(records: Iterable[Record]) -> Iterator[str]:
    yield f'{{"schema": {SCHEMA}, "offsets": ['
    before: str | None = None
    for each in records:
        if before is not None:
            yield f"{before},"
        before = json.dumps(_fields(each))
    if before is not None:
        yield before
    yield "]}"


def _write_jsonl(records: Iterable[Record]) -> Iterator[str]:
    return (json.dumps({"schema": SCHEMA, **_fields(each)}) for each in records)


def _fields(each: Record) -> dict[str, Any]:
    note = {} if each.note is None else {"note": each.note}
    return {
        "group": each.group,
        "topic": each.at.topic,
        "partition": each.at.partition,
        "offset": each.offset,
    } | note


def _write_csv(records: Iterable[Record]) -> Iterator[str]:
    yield ",".join(FIELDS)
    for each in records:
        group, topic = _quoted(guarded(_group(each))), _quoted(guarded(each.at.topic))
        yield f"{group},{topic},{each.at.partition},{_offset(each)}"


def _write_kafka_csv(records: Iterable[Record]) -> Iterator[str]:
    for each in records:
        yield _of_one_group(each) if each.group is None else f"{_quoted(_group(each))},{_of_one_group(each)}"


def _of_one_group(each: Record) -> str:
    return f"{_quoted(each.at.topic)},{each.at.partition},{_offset(each)}"


def _write_paths(records: Iterable[Record]) -> Iterator[str]:
    return (f"{GroupPaths(_group(each)).offset(each.at)}:{_offset(each)}" for each in records)


def _write_spark(records: Iterable[Record]) -> Iterator[str]:
    topics: dict[str, dict[str, int]] = {}
    groups: set[str | None] = set()
    for each in records:
        groups.add(each.group)
        if len(groups) > 1:
            raise InvalidInputError("the format spark has the offsets of one group only")
        topics.setdefault(each.at.topic, {})[str(each.at.partition)] = _offset(each)
    yield json.dumps(topics)


def _group(each: Record) -> str:
    return check_group(each.group)


def _offset(each: Record) -> int:
    return check_offset(each.offset)


def _quoted(name: str) -> str:
    """In quotes unless it is as plain as the names of Kafka: no reader is then in doubt."""
    return name if re.fullmatch("[a-zA-Z0-9._-]+", name) else '"' + name.replace('"', '""') + '"'


_WRITERS: Final[Mapping[Form, Callable[[Iterable[Record]], Iterator[str]]]] = {
    Form.JSON: _write_json,
    Form.JSONL: _write_jsonl,
    Form.CSV: _write_csv,
    Form.KAFKA_CSV: _write_kafka_csv,
    Form.PATH: _write_paths,
    Form.SPARK: _write_spark,
}


# Reading


def read(text: str, form: Form | None = None, *, source: str = "the file") -> list[Record]:
    r"""What was written, in its order; the first line that is broken is an error, as is an offset that is there twice.

    >>> read("/consumers/billing/offsets/orders/0:5\n")
    [Record(group='billing', at=TopicPartition(topic='orders', partition=0), offset=5, note=None)]
    """
    text = text.removeprefix("\ufeff")  # what some editors put at the start of a file
    seen: dict[tuple[str | None, TopicPartition], Record] = {}
    where = ""
    try:
        for where, values in _READERS[form or recognised(text)](text):
            found = _record(values)
            if (found.group, found.at) in seen:
                raise _Broken(where, f"{found.at} is there twice")
            seen[found.group, found.at] = found
    except _Broken as error:
        raise InvalidInputError(f"{source}, {error}") from error
    except InvalidInputError as error:
        raise InvalidInputError(f"{source}, {where}: {error}") from error
    return list(seen.values())


def recognised(text: str) -> Form:
    """The format that a file is in, by how it begins.

    >>> recognised('{"orders": {"0": 5}}'), recognised("orders,0,5")
    (<Form.SPARK: 'spark'>, <Form.KAFKA_CSV: 'kafka-csv'>)
    """
    start = text.lstrip()
    if start.startswith("/"):
        return Form.PATH
    if not start.startswith("{"):
        first = start.partition("\n")[0].rstrip("\r").split(",")
        return Form.CSV if {"topic", "partition", "offset"} <= set(first) else Form.KAFKA_CSV
    first_line = _json_or_none(start.partition("\n")[0])
    if isinstance(first_line, dict) and isinstance(first_line.get("topic"), str):
        return Form.JSONL
    # A topic may be called "offsets", but its partitions are no list; and our own JSON goes on for many lines.
    return Form.JSON if re.search(r'"offsets"\s*:\s*\[', start[:200]) else Form.SPARK


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


_Values = Mapping[str, Any]
"""The fields of an offset as they stand in the file."""


def _read_json(text: str) -> Iterator[tuple[str, _Values]]:
    document = _json(text, 1)
    offsets = document.get("offsets") if isinstance(document, dict) else None
    if not isinstance(offsets, list):
        raise _Broken("line 1", 'there is no list of "offsets"')
    _check_schema("line 1", document)
    for number, values in enumerate(offsets, 1):
        yield _object(f"offset {number}", values)


def _read_jsonl(text: str) -> Iterator[tuple[str, _Values]]:
    for number, line in _lines(text):
        where, values = _object(f"line {number}", _json(line, number))
        _check_schema(where, values)
        yield where, values


def _check_schema(where: str, values: _Values) -> None:
    if values.get("schema", SCHEMA) != SCHEMA:
        raise _Broken(where, f"schema {values['schema']!r:.40} is none that is known here")


def _object(where: str, values: Any) -> tuple[str, _Values]:
    if not isinstance(values, dict):
        raise _Broken(where, "is no object")
    if missing := [field for field in FIELDS if field not in values]:
        raise _Broken(where, f"has no {missing[0]}")
    return where, values


def _read_csv(text: str) -> Iterator[tuple[str, _Values]]:
    lines = _lines(text)
    number, line = next(lines, (1, ""))
    header = _split(line, number)
    if missing := [field for field in FIELDS if header.count(field) not in ({0, 1} if field == "group" else {1})]:
        raise _Broken(f"line {number}", f"names no column {missing[0]}, or several")
    for number, line in lines:
        where, values = _named(number, header, _split(line, number))
        names = {field: plain(values[field]) for field in ("group", "topic") if field in values}
        yield where, {**values, **names}


def _read_kafka_csv(text: str) -> Iterator[tuple[str, _Values]]:
    width = 0
    for number, line in _lines(text):
        fields = _split(line, number)
        width = width or len(fields)
        if width not in {3, 4}:
            raise _Broken(f"line {number}", f"has {width} fields, not 3 or 4")
        yield _named(number, FIELDS[-width:], fields)


def _named(number: int, names: Sequence[str], fields: Sequence[str]) -> tuple[str, _Values]:
    where = f"line {number}"
    if len(fields) != len(names):
        raise _Broken(where, f"has {len(fields)} fields, not {len(names)}")
    values: dict[str, Any] = dict(zip(names, fields, strict=True))
    return where, values | _numbers(where, values["partition"].strip(" "), values["offset"].strip(" "))


_FIELD: Final = re.compile(r'"((?:[^"]|"")*)"|([^",]*)')


def _split(line: str, number: int) -> list[str]:
    """The fields of a line. Python's own reader knows no limit but one for the whole process, and lets much pass."""
    fields: list[str] = []
    end = -1
    while end < len(line):
        found = _FIELD.match(line, end + 1)
        if found is None or line[found.end() : found.end() + 1] not in {"", ","}:
            raise _Broken(f"line {number}", "has a quote in the wrong place")
        fields.append(found[2] if found[1] is None else found[1].replace('""', '"'))
        end = found.end()
    return fields


def _read_paths(text: str) -> Iterator[tuple[str, _Values]]:
    for number, line in _lines(text):
        where = f"line {number}"
        path, _, offset = line.rpartition(":")
        names = path.split("/")
        if len(names) != 6 or names[0] or f"/{names[1]}" != CONSUMERS or names[3] != Part.OFFSETS:
            raise _Broken(where, "is not like /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET")
        yield where, {"group": names[2], "topic": names[4], **_numbers(where, names[5], offset)}


def _read_spark(text: str) -> Iterator[tuple[str, _Values]]:
    topics = _json(text, 1)
    if not isinstance(topics, dict) or not all(isinstance(offsets, dict) for offsets in topics.values()):
        raise _Broken("line 1", 'is not like {"TOPIC": {"PARTITION": OFFSET}}')
    for topic, offsets in topics.items():
        for partition, offset in offsets.items():
            where = f"topic {topic!r}, partition {partition!r}"
            if offset in (-1, -2) and isinstance(offset, int):
                raise _Broken(
                    where, f"{offset} means the {'latest' if offset == -1 else 'earliest'}, which is no offset"
                )
            if offset is None:
                raise _Broken(where, "has no offset")
            yield where, {"group": None, "topic": topic, "partition": _partition(where, partition), "offset": offset}


_READERS: Final[Mapping[Form, Callable[[str], Iterator[tuple[str, _Values]]]]] = {
    Form.JSON: _read_json,
    Form.JSONL: _read_jsonl,
    Form.CSV: _read_csv,
    Form.KAFKA_CSV: _read_kafka_csv,
    Form.PATH: _read_paths,
    Form.SPARK: _read_spark,
}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers. Names may have what only Unicode takes for the end of one."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip(" \t\r"):
            yield number, line.removesuffix("\r")


def _json(text: str, number: int) -> Any:
    """A value of JSON; a name that is there twice would hide the first one."""
    try:
        return json.loads(text, parse_constant=_no_json, object_pairs_hook=_unambiguous)
    except json.JSONDecodeError as error:
        raise _Broken(f"line {number + error.lineno - 1}", f"is no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise _Broken(f"line {number}", f"is no JSON: {error}") from error


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise ValueError(f"{name!r:.80} is there twice")
    return found


def _numbers(where: str, partition: str, offset: str) -> dict[str, Any]:
    if not re.fullmatch(f"[0-9]{{1,{len(str(MAX_OFFSET))}}}", offset):
        raise _Broken(where, f"{offset!r:.40} is no offset")
    return {"partition": _partition(where, partition), "offset": int(offset)}


def _partition(where: str, text: str) -> int:
    number = parse_partition(text)
    if number is None:
        raise _Broken(where, f"{text!r:.40} is not the number of a partition")
    return number


def _record(values: _Values) -> Record:
    group, offset = values.get("group"), values["offset"]
    return Record(
        None if group is None else check_group(group),
        TopicPartition(check_topic(values["topic"]), check_partition(values["partition"])),
        None if offset is None else check_offset(offset),
    )
