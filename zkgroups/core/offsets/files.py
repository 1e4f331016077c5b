"""Offsets as text: the formats in which they are exported and imported, and a script for Kafka's own tool."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ...exceptions import InvalidInputError
from ..znodes.codecs import MAX_OFFSET, check_offset
from ..znodes.paths import CONSUMERS, GroupPaths, Part
from ..znodes.topic_partition import TopicPartition, check_group, check_partition, check_topic, parse_partition
from ..znodes.values import CommittedOffset

# Escape text in CSV that a spreadsheet would take for a formula.
#
# Spreadsheets take a cell that begins with `=`, `+`, `-` or `@` for a formula, and a formula may run programs. Some
# also accept the full-width forms of these signs, and ignore tabs and line ends before them. Such text gets a leading
# apostrophe. Text with apostrophes before such a sign gets one more, so `unescape_formula` can always undo it.


_FORMULA: Final = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def escape_formula(text: str) -> str:
    """Return the text, with a leading apostrophe if a spreadsheet would take it for a formula.

    >>> escape_formula("-x"), escape_formula("'-x"), escape_formula("billing"), escape_formula("'t is")
    ("'-x", "''-x", 'billing', "'t is")
    """
    return f"'{text}" if _FORMULA.match(text) else text


def unescape_formula(cell: str) -> str:
    """Return the text that `escape_formula` was given.

    >>> unescape_formula("'-x"), unescape_formula("''-x"), unescape_formula("-x"), unescape_formula("'t is")
    ('-x', "'-x", '-x', "'t is")
    """
    return cell.removeprefix("'") if _FORMULA.match(cell) else cell


# The text formats in which offsets are exported and imported.
#
#     json       one document: {"schema": 1, "offsets": [{"group": "g", "topic": "t", "partition": 0, "offset": 5}]}
#     jsonl      one such object per line
#     csv        group,topic,partition,offset, with a header line; a leading apostrophe keeps a spreadsheet from taking
#                a name for a formula
#     kafka-csv  group,topic,partition,offset without a header or apostrophes, for kafka-consumer-groups.sh
#                --reset-offsets --from-file; also topic,partition,offset, if the group is given elsewhere
#     path       /consumers/g/offsets/t/0:5, as written by Kafka's ExportZkOffsets
#     spark      the offsets of one group as Spark's option startingOffsets: {"t": {"0": 5}}
#
# Reader and writer keep one rule: every name that ZooKeeper allows survives a round trip. In json and jsonl,
# an offset may be null if none is committed or if the node is malformed. The other formats cannot express this.


SCHEMA: Final = 1
"""The version of the JSON formats."""

FIELDS: Final = ("group", "topic", "partition", "offset")


class FileFormat(StrEnum):
    """The formats, as described at the top of this file."""

    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    KAFKA_CSV = "kafka-csv"
    PATH = "path"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """One offset in a file. `group` is None in a format without groups."""

    group: str | None
    at: TopicPartition
    offset: int | None
    note: str | None = None
    """A remark for human readers. Only JSON has it."""

    @classmethod
    def of(cls, committed: CommittedOffset) -> OffsetRecord:
        """Return the record of a committed offset."""
        return cls(committed.group, committed.at, committed.offset)


# Read offsets from text, in any of these formats.
#
# The reader is strict: it rejects the whole file if one line is invalid or ambiguous.


class _ParseError(Exception):
    """A place in the file, and the problem there. `parse_offsets` adds the name of the file."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")


def parse_offsets(text: str, file_format: FileFormat | None = None, *, source: str = "the file") -> list[OffsetRecord]:
    r"""Return the offsets in the text, in order. Detect the format if none is given.

    An invalid line is an error, and so is a second offset for the same partition. `source` names the text in errors.

    >>> parse_offsets("/consumers/billing/offsets/orders/0:5\n")
    [OffsetRecord(group='billing', at=TopicPartition(topic='orders', partition=0), offset=5, note=None)]
    """
    text = text.removeprefix("\ufeff")  # a byte order mark, which some editors write
    seen: dict[tuple[str | None, TopicPartition], OffsetRecord] = {}
    where = ""
    try:
        for where, values in _PARSERS[file_format or detect_format(text)](text):
            record = _record(values)
            if (record.group, record.at) in seen:
                raise _ParseError(where, f"{record.at} already has an offset in an earlier line")
            seen[record.group, record.at] = record
    except _ParseError as error:
        raise InvalidInputError(f"{source}, {error}") from error
    except InvalidInputError as error:
        raise InvalidInputError(f"{source}, {where}: {error}") from error
    return list(seen.values())


def detect_format(text: str) -> FileFormat:
    """Return the format of a file, judged by its beginning.

    >>> detect_format('{"orders": {"0": 5}}'), detect_format("orders,0,5")
    (<FileFormat.SPARK: 'spark'>, <FileFormat.KAFKA_CSV: 'kafka-csv'>)
    """
    start = text.lstrip()
    if start.startswith("/"):
        return FileFormat.PATH
    if not start.startswith("{"):
        first = start.partition("\n")[0].rstrip("\r").split(",")
        return FileFormat.CSV if {"topic", "partition", "offset"} <= set(first) else FileFormat.KAFKA_CSV
    first_line = _json_or_none(start.partition("\n")[0])
    if isinstance(first_line, dict) and isinstance(first_line.get("topic"), str):
        return FileFormat.JSONL
    # In the format spark, a topic may be named "offsets", but its value is an object and not a list. A JSON document of
    # zkgroups spans many lines, so its first line alone cannot be parsed.
    return FileFormat.JSON if re.search(r'"offsets"\s*:\s*\[', start[:200]) else FileFormat.SPARK


def may_be_cut(text: str, file_format: FileFormat | None = None) -> bool:
    r"""Return whether the last offset in a valid text may lack digits, because the text ends without a newline.

    In JSON, a text that was cut is not valid.

    >>> may_be_cut("orders,0,12"), may_be_cut("orders,0,12\n"), may_be_cut('{"orders": {"0": 12}}')
    (True, False, False)
    """
    has_lines = (file_format or detect_format(text)) in (FileFormat.CSV, FileFormat.KAFKA_CSV, FileFormat.PATH)
    return has_lines and not text.rstrip(" \t\r").endswith("\n")


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


_Values = Mapping[str, Any]
"""The fields of one offset, before they are checked."""


def _parse_json(text: str) -> Iterator[tuple[str, _Values]]:
    document = _json(text, 1)
    offsets = document.get("offsets") if isinstance(document, dict) else None
    if not isinstance(offsets, list):
        raise _ParseError("line 1", 'the list "offsets" is missing')
    _check_schema("line 1", document)
    for number, values in enumerate(offsets, 1):
        yield _object(f"offset {number}", values)


def _parse_jsonl(text: str) -> Iterator[tuple[str, _Values]]:
    for number, line in _lines(text):
        where, values = _object(f"line {number}", _json(line, number))
        _check_schema(where, values)
        yield where, values


def _check_schema(where: str, values: _Values) -> None:
    if values.get("schema", SCHEMA) != SCHEMA:
        raise _ParseError(where, f"schema {values['schema']!r:.40} is not supported: only {SCHEMA} is")


def _object(where: str, values: Any) -> tuple[str, _Values]:
    if not isinstance(values, dict):
        raise _ParseError(where, "not a JSON object")
    if missing := [field for field in FIELDS if field not in values]:
        raise _ParseError(where, f"the field {missing[0]} is missing")
    return where, values


def _parse_csv(text: str) -> Iterator[tuple[str, _Values]]:
    lines = _lines(text)
    number, line = next(lines, (1, ""))
    header = _split(line, number)
    if missing := [field for field in FIELDS if header.count(field) not in ({0, 1} if field == "group" else {1})]:
        raise _ParseError(f"line {number}", f"the header must name the column {missing[0]} exactly once")
    for number, line in lines:
        where, values = _named(number, header, _split(line, number))
        names = {field: unescape_formula(values[field]) for field in ("group", "topic") if field in values}
        yield where, {**values, **names}


def _parse_kafka_csv(text: str) -> Iterator[tuple[str, _Values]]:
    width = 0
    for number, line in _lines(text):
        fields = _split(line, number)
        width = width or len(fields)
        if width not in {3, 4}:
            raise _ParseError(f"line {number}", f"3 or 4 fields expected, found {width}")
        yield _named(number, FIELDS[-width:], fields)


def _named(number: int, names: Sequence[str], fields: Sequence[str]) -> tuple[str, _Values]:
    where = f"line {number}"
    if len(fields) != len(names):
        raise _ParseError(where, f"{len(names)} fields expected, found {len(fields)}")
    values: dict[str, Any] = dict(zip(names, fields, strict=True))
    return where, values | _numbers(where, values["partition"].strip(" "), values["offset"].strip(" "))


_FIELD: Final = re.compile(r'"((?:[^"]|"")*)"|([^",]*)')


def _split(line: str, number: int) -> list[str]:
    """Return the fields of a CSV line.

    Python's `csv` accepts misplaced quotes, and its limit on the length of a field applies to the whole process.
    """
    fields: list[str] = []
    end = -1
    while end < len(line):
        found = _FIELD.match(line, end + 1)
        if found is None or line[found.end() : found.end() + 1] not in {"", ","}:
            raise _ParseError(f"line {number}", "misplaced quote")
        fields.append(found[2] if found[1] is None else found[1].replace('""', '"'))
        end = found.end()
    return fields


def _parse_paths(text: str) -> Iterator[tuple[str, _Values]]:
    for number, line in _lines(text):
        where = f"line {number}"
        path, _, offset = line.rpartition(":")
        names = path.split("/")
        if len(names) != 6 or names[0] or f"/{names[1]}" != CONSUMERS or names[3] != Part.OFFSETS:
            raise _ParseError(where, "/consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET expected")
        yield where, {"group": names[2], "topic": names[4], **_numbers(where, names[5], offset)}


def _parse_spark(text: str) -> Iterator[tuple[str, _Values]]:
    topics = _json(text, 1)
    if not isinstance(topics, dict) or not all(isinstance(offsets, dict) for offsets in topics.values()):
        raise _ParseError("line 1", '{"TOPIC": {"PARTITION": OFFSET}} expected')
    for topic, offsets in topics.items():
        for partition, offset in offsets.items():
            where = f"topic {topic!r}, partition {partition!r}"
            if offset in (-1, -2) and isinstance(offset, int):
                meaning = "latest" if offset == -1 else "earliest"
                raise _ParseError(where, f"{offset} means {meaning} in Spark, and cannot be imported as an offset")
            if offset is None:
                raise _ParseError(where, "the offset is null")
            yield where, {"group": None, "topic": topic, "partition": _partition(where, partition), "offset": offset}


_PARSERS: Final[Mapping[FileFormat, Callable[[str], Iterator[tuple[str, _Values]]]]] = {
    FileFormat.JSON: _parse_json,
    FileFormat.JSONL: _parse_jsonl,
    FileFormat.CSV: _parse_csv,
    FileFormat.KAFKA_CSV: _parse_kafka_csv,
    FileFormat.PATH: _parse_paths,
    FileFormat.SPARK: _parse_spark,
}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line that is not blank, with its number.

    `str.splitlines` would also split at Unicode line separators, which names may contain.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip(" \t\r"):
            yield number, line.removesuffix("\r")


def _json(text: str, number: int) -> Any:
    """Decode JSON. Reject duplicate names in an object, of which `json.loads` would silently keep the last."""
    try:
        return json.loads(text, parse_constant=_reject_constant, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise _ParseError(f"line {number + error.lineno - 1}", f"invalid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise _ParseError(f"line {number}", f"invalid JSON: {error}") from error


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise ValueError(f"duplicate name {name!r:.80}")
    return fields


def _numbers(where: str, partition: str, offset: str) -> dict[str, Any]:
    if not re.fullmatch(f"[0-9]{{1,{len(str(MAX_OFFSET))}}}", offset):
        raise _ParseError(where, f"{offset!r:.40} is not a valid offset")
    return {"partition": _partition(where, partition), "offset": int(offset)}


def _partition(where: str, text: str) -> int:
    number = parse_partition(text)
    if number is None:
        raise _ParseError(where, f"{text!r:.40} is not a partition number")
    return number


def _record(values: _Values) -> OffsetRecord:
    group, offset = values.get("group"), values["offset"]
    return OffsetRecord(
        None if group is None else check_group(group),
        TopicPartition(check_topic(values["topic"]), check_partition(values["partition"])),
        None if offset is None else check_offset(offset),
    )


# Write offsets as text, in any of these formats.


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


# A shell script that sets the offsets of groups from files, with Kafka's own tool.


_LONGEST: Final = 100
_PLAIN: Final = re.compile(rf"(?!.*-[0-9a-f]{{12}}$)[a-z0-9_][a-z0-9._-]{{0,{_LONGEST - 1}}}")

_HEAD: Final = """\
#!/bin/sh
# Sets the offsets of consumer groups with Kafka's own tool, one call per group. The first line is a dry run:
#
#     sh {name}
#     sh {name} --execute
#
# Environment: KAFKA_CONSUMER_GROUPS is the tool, BOOTSTRAP_SERVER the brokers, COMMAND_CONFIG a file for TLS and SASL.
# The tool refuses a group with live members in Kafka, but it does not see members in ZooKeeper.

planned={brokers}
tool=${{KAFKA_CONSUMER_GROUPS:-kafka-consumer-groups.sh}}
brokers=${{BOOTSTRAP_SERVER:-$planned}}
mode=${{1:---dry-run}}
case $mode in --dry-run | --execute) ;; *) echo "usage: $0 [--dry-run | --execute]" >&2; exit 2 ;; esac
[ -n "$brokers" ] || {{ echo "$0: BOOTSTRAP_SERVER must name the brokers" >&2; exit 2; }}
# Java decodes group names with the encoding of the locale.
case ${{LC_ALL:-${{LC_CTYPE:-${{LANG:-}}}}}} in *[Uu][Tt][Ff]*8*) ;; *) LC_ALL=C.UTF-8; export LC_ALL ;; esac
folder=$(dirname -- "$0")
failed=0

reset() {{
    "$tool" --bootstrap-server "$brokers" ${{COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"}} \\
        --reset-offsets --group "$1" --from-file "$folder/$2" "$mode" </dev/null || failed=1
}}

"""


def group_file_name(group: str) -> str:
    """Return the file name for a group: valid on every file system, and unique for each group.

    >>> group_file_name("billing"), group_file_name("Billing: Süd")
    ('billing.csv', 'Billing_S_d-3d9107ed0504.csv')
    """
    if _PLAIN.fullmatch(group):
        return f"{group}.csv"
    readable = re.sub("[^A-Za-z0-9]+", "_", group)[:_LONGEST]
    return f"{readable}-{hashlib.sha256(group.encode()).hexdigest()[:12]}.csv"


def reset_script(name: str, groups: Iterable[str], brokers: str | None) -> Iterator[str]:
    """Yield the text of the script. It has one call per group, which reads the group's file in the same folder."""
    yield _HEAD.format(name=name, brokers=shlex.quote(brokers or ""))
    for group in groups:
        yield f"reset {shlex.quote(group)} {shlex.quote(group_file_name(group))}\n"
    yield "\nexit $failed\n"
