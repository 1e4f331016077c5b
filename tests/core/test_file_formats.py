"""Offset files: every name survives a round trip, and an invalid file is rejected."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups import CommittedOffset, TopicPartition
from zkgroups.core.offsets.files import FileFormat, OffsetRecord, detect_format, format_offsets, parse_offsets
from zkgroups.core.znodes.codecs import MAX_OFFSET
from zkgroups.core.znodes.topic_partition import MAX_NAME_BYTES, MAX_PARTITION
from zkgroups.exceptions import InvalidInputError

from .groups import AT
from .strategies import ALLOWED, NAMES

ODD = st.text(st.sampled_from("\",\\' #%:;={}[]\u2028\u2029\ufeff\u00a0­é0-7+."), min_size=1, max_size=8).filter(
    lambda name: name not in {".", ".."}
)
WORDS = st.sampled_from(["offsets", "topic", "partition", "offset", "group", "schema", "null", "0", "consumers"])
ANY_NAME = NAMES | ODD | WORDS | st.text(ALLOWED, min_size=1, max_size=3).filter(lambda name: name not in {".", ".."})
RECORDS = st.lists(
    st.builds(
        OffsetRecord,
        ANY_NAME,
        st.builds(TopicPartition, ANY_NAME, st.integers(0, 3) | st.integers(0, MAX_PARTITION)),
        st.integers(0, MAX_OFFSET) | st.integers(0, 3),
    ),
    unique_by=lambda each: (each.group, each.at),
    max_size=6,
)
LONG = "ü," * (MAX_NAME_BYTES // 3)


def file_text(records: Sequence[OffsetRecord], file_format: FileFormat) -> str:
    return "".join(f"{line}\n" for line in format_offsets(records, file_format))


@pytest.mark.parametrize(
    "file_format", [file_format for file_format in FileFormat if file_format is not FileFormat.SPARK]
)
@given(RECORDS)
@example([OffsetRecord("g", AT, 5), OffsetRecord("G", AT, 6)])
@example([OffsetRecord(LONG, TopicPartition(LONG, 0), 5)])
@example([OffsetRecord("{", TopicPartition("[", 0), 5)])
def test_records_survive_a_round_trip(file_format: FileFormat, records: list[OffsetRecord]) -> None:
    text = file_text(records, file_format)
    assert parse_offsets(text, file_format) == records
    assert text.count("\n") >= len(records)
    if records:
        assert detect_format(text) is file_format
        assert parse_offsets("\ufeff" + text.replace("\n", "\r\n")) == records


FORMULAS = ["=1+1", "+1", "-1", "@SUM(1)", "\uff1d1+1", "'=1+1", "''-x"]


def test_csv_escapes_names_that_are_formulas_and_restores_them() -> None:
    records = [OffsetRecord(name, TopicPartition(name, 0), 5) for name in FORMULAS]
    text = file_text(records, FileFormat.CSV)
    cells = [cell for row in list(csv.reader(io.StringIO(text)))[1:] for cell in row[:2]]
    assert cells == [cell for name in FORMULAS for cell in [f"'{name}"] * 2]
    assert parse_offsets(text) == records


def test_kafka_csv_does_not_escape_names() -> None:
    records = [OffsetRecord(name, TopicPartition(name, 0), 5) for name in FORMULAS]
    text = file_text(records, FileFormat.KAFKA_CSV)
    assert [row[0] for row in csv.reader(io.StringIO(text))] == FORMULAS
    assert parse_offsets(text, FileFormat.KAFKA_CSV) == records


@given(RECORDS)
def test_spark_records_survive_a_round_trip_without_their_group(records: list[OffsetRecord]) -> None:
    one = [replace(each, group="billing") for each in records]
    one = list({each.at: each for each in one}.values())
    text = file_text(one, FileFormat.SPARK)
    assert sorted(parse_offsets(text), key=lambda each: each.at) == sorted(
        (replace(each, group=None) for each in one), key=lambda each: each.at
    )
    assert {(topic, int(p)): n for topic, ps in json.loads(text).items() for p, n in ps.items()} == {
        (each.at.topic, each.at.partition): each.offset for each in one
    }


def test_an_empty_file_has_no_records() -> None:
    assert [parse_offsets(text) for text in ("", *(file_text([], each) for each in FileFormat))] == [[]] * 7


def test_each_format_is_the_one_that_other_tools_expect() -> None:
    records = [OffsetRecord("billing", AT, 5), OffsetRecord("billing", TopicPartition('a "b", c', 7), 0)]
    assert file_text(records, FileFormat.PATH) == (
        '/consumers/billing/offsets/orders/0:5\n/consumers/billing/offsets/a "b", c/7:0\n'
    )
    assert file_text(records, FileFormat.KAFKA_CSV) == 'billing,orders,0,5\nbilling,"a ""b"", c",7,0\n'
    assert file_text(records, FileFormat.CSV) == "group,topic,partition,offset\n" + file_text(
        records, FileFormat.KAFKA_CSV
    )
    assert json.loads(file_text(records, FileFormat.SPARK)) == {"orders": {"0": 5}, 'a "b", c': {"7": 0}}
    assert json.loads(file_text(records, FileFormat.JSON))["offsets"][0] == {
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "offset": 5,
    }
    assert json.loads(file_text(records, FileFormat.JSONL).splitlines()[1])["topic"] == 'a "b", c'


def test_only_json_can_hold_a_missing_offset_with_a_note() -> None:
    missing = OffsetRecord("billing", AT, None, "nothing was committed")
    for file_format in FileFormat:
        if file_format not in (FileFormat.JSON, FileFormat.JSONL):
            with pytest.raises(InvalidInputError):
                file_text([missing], file_format)
            continue
        text = file_text([missing], file_format)
        assert '"note"' in text
        assert parse_offsets(text, file_format) == [replace(missing, note=None)]


def test_spark_refuses_a_second_group() -> None:
    with pytest.raises(InvalidInputError, match="one group only: choose"):
        file_text([OffsetRecord("a", AT, 5), OffsetRecord("b", AT, 5)], FileFormat.SPARK)


def test_a_record_is_made_from_a_committed_offset() -> None:
    assert OffsetRecord.of(CommittedOffset("billing", AT, 5, version=7)) == OffsetRecord("billing", AT, 5)


# Reading files of other tools


def test_kafka_csv_may_leave_out_the_group() -> None:
    assert parse_offsets("orders,0,5\norders,1, 6\n\n") == [
        OffsetRecord(None, AT, 5),
        OffsetRecord(None, TopicPartition("orders", 1), 6),
    ]


def test_csv_columns_are_found_by_name() -> None:
    text = 'offset,note,partition,"topic",group\r\n5,"a ""b"", c",0,orders,billing\r\n'
    assert parse_offsets(text, FileFormat.CSV) == [OffsetRecord("billing", AT, 5)]
    assert parse_offsets("topic,partition,offset\norders,0,5\n") == [OffsetRecord(None, AT, 5)]


def test_json_may_be_indented_and_have_unknown_fields() -> None:
    offset = {"group": "billing", "topic": "orders", "partition": 0, "offset": 5, "version": 3, "note": None}
    for indent in (None, 2):
        assert parse_offsets(json.dumps({"schema": 1, "offsets": [offset]}, indent=indent)) == [
            OffsetRecord("billing", AT, 5)
        ]
    assert parse_offsets(json.dumps({"schema": 1, **offset})) == [OffsetRecord("billing", AT, 5)]
    assert parse_offsets('\n {"offsets": {"0": 5}}') == [OffsetRecord(None, TopicPartition("offsets", 0), 5)]


GOOD = {
    FileFormat.PATH: "/consumers/g/offsets/t/0:5",
    FileFormat.KAFKA_CSV: "g,t,0,5",
    FileFormat.JSONL: '{"group": "g", "topic": "t", "partition": 0, "offset": 5}',
}
BAD_OFFSETS = ["5.0", "-1", "true", '"5"', "NaN", '5, "offset": 6', "9" * 5000]
BAD = {
    FileFormat.PATH: ["/", "/consumers/g/offsets/t/0", "consumers/g/offsets/t/0:5", "/consumers/g/owners/t/0:5"]
    + [f"{path}/0:5" for path in ("/consumers/g/offsets/t/x", "/kafka/consumers/g/offsets/t", "/consumers//offsets/t")]
    + ["/consumers/../offsets/t/0:5", "/consumers/g/offsets/t/01:5"]
    + [f"/consumers/g/offsets/t/0:{offset}" for offset in ("-1", " 5", "", "٥", "9223372036854775808")],
    FileFormat.KAFKA_CSV: ["g,t,0", "g,t,-1,5", "g,,0,5", "g,a/b,0,5", "g,t,99999999999,5"]
    + [f"g,t,0,{offset}" for offset in ("5,6", "-1", "", "5.0", "9" * 5000)]
    + ['g,"t,0,5', 'g,"t"x,0,5', 'g,t"x,0,5', 'g"other,0,5'],
    FileFormat.JSONL: ["{", "[]", "5", "[" * 100_000, GOOD[FileFormat.JSONL].replace(', "offset": 5', "")]
    + [GOOD[FileFormat.JSONL].replace("5}", f"{offset}}}") for offset in BAD_OFFSETS]
    + [GOOD[FileFormat.JSONL].replace(*each) for each in (('"t"', "null"), ('"g"', '"a/ids"'), ("0", '"0"'))]
    + [GOOD[FileFormat.JSONL].replace("{", '{"schema": 2, ')],
}


@pytest.mark.parametrize("file_format", GOOD)
def test_an_invalid_line_is_an_error_with_its_number(file_format: FileFormat) -> None:
    assert len(parse_offsets(f"\n{GOOD[file_format]}\n", file_format)) == 1
    for line in BAD[file_format]:
        with pytest.raises(InvalidInputError, match=r"^plan\.csv, line 3: ") as caught:
            parse_offsets(f"\n{GOOD[file_format]}\n{line}\n", file_format, source="plan.csv")
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"offsets": [\n{"group": "g", "topic": "t",\n', "line 3"),
        ('{"offsets": [5]}', "offset 1"),
        ('{"schema": 7, "offsets": []}', "line 1"),
        ('{"offsets": [{"group": "g", "topic": "t", "partition": 0, "offset": 5}, {"group": "g"}]}', "offset 2"),
        ('{"orders": {"0": -1}}', "-1 means latest"),
        ('{"orders": {"0": -2}}', "-2 means earliest"),
        ('{"orders": {"0": null}}', "partition '0'"),
        ('{"orders": {"x": 5}}', "partition 'x'"),
        ('{"orders": {"0": 5, "0": 6}}', "line 1: invalid JSON: duplicate name '0'"),
        ('{"offsets": [], "offsets": []}', "line 1: invalid JSON: duplicate name 'offsets'"),
        ('{"orders": 5}', "line 1"),
        ("group,topic,partition,offset\ng,t,0\n", "line 2"),
        ("topic,partition,offset,offset\nt,0,5,6\n", "line 1"),
        ("group,topic,group,partition,offset\na,t,b,0,6\n", "line 1"),
        ("a,b\n", "line 1"),
    ],
)
def test_the_error_for_an_invalid_file_names_the_place(text: str, where: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_offsets(text)
    assert where in str(caught.value)


def test_a_duplicate_partition_is_an_error() -> None:
    for file_format in set(FileFormat) - {FileFormat.SPARK}:
        with pytest.raises(InvalidInputError, match="orders/0 already has an offset"):
            parse_offsets(file_text([OffsetRecord("billing", AT, 5)] * 2, file_format))
