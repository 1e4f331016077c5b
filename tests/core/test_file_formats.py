"""Offsets as text: what was written is read back, whatever the names, and nothing broken is read at all."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups.core.offsets.file_formats import Form, Record, read, recognised, record, write
from zkgroups.core.znodes.names import MAX_NAME_BYTES, MAX_PARTITION
from zkgroups.core.znodes.offset_codec import MAX_OFFSET
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import CommittedOffset
from zkgroups.exceptions import InvalidInputError

from .strategies import ALLOWED, NAMES

AT = TopicPartition("orders", 0)
ODD = st.text(st.sampled_from("\",\\' #%:;={}[]\u2028\u2029\ufeff\u00a0­é0-7+."), min_size=1, max_size=8).filter(
    lambda name: name not in {".", ".."}
)
WORDS = st.sampled_from(["offsets", "topic", "partition", "offset", "group", "schema", "null", "0", "consumers"])
ANY_NAME = NAMES | ODD | WORDS | st.text(ALLOWED, min_size=1, max_size=3).filter(lambda name: name not in {".", ".."})
RECORDS = st.lists(
    st.builds(
        Record,
        ANY_NAME,
        st.builds(TopicPartition, ANY_NAME, st.integers(0, 3) | st.integers(0, MAX_PARTITION)),
        st.integers(0, MAX_OFFSET) | st.integers(0, 3),
    ),
    unique_by=lambda each: (each.group, each.at),
    max_size=6,
)
LONG = "ü," * (MAX_NAME_BYTES // 3)


def file(records: Sequence[Record], form: Form) -> str:
    return "".join(f"{line}\n" for line in write(records, form))


@pytest.mark.parametrize("form", [form for form in Form if form is not Form.SPARK])
@given(RECORDS)
@example([Record("g", AT, 5), Record("G", AT, 6)])
@example([Record(LONG, TopicPartition(LONG, 0), 5)])
@example([Record("{", TopicPartition("[", 0), 5)])
def test_what_was_written_is_read_back_as_it_was(form: Form, records: list[Record]) -> None:
    text = file(records, form)
    assert read(text, form) == records
    assert text.count("\n") >= len(records)
    if records:
        assert recognised(text) is form
        assert read("\ufeff" + text.replace("\n", "\r\n")) == records


FORMULAS = ["=1+1", "+1", "-1", "@SUM(1)", "\uff1d1+1", "'=1+1", "''-x"]


def test_no_name_in_csv_is_a_formula_to_a_spreadsheet_and_each_is_read_back() -> None:
    records = [Record(name, TopicPartition(name, 0), 5) for name in FORMULAS]
    text = file(records, Form.CSV)
    cells = [cell for row in list(csv.reader(io.StringIO(text)))[1:] for cell in row[:2]]
    assert cells == [cell for name in FORMULAS for cell in [f"'{name}"] * 2]
    assert read(text) == records


def test_kafkas_csv_has_names_as_kafka_knows_them() -> None:
    records = [Record(name, TopicPartition(name, 0), 5) for name in FORMULAS]
    text = file(records, Form.KAFKA_CSV)
    assert [row[0] for row in csv.reader(io.StringIO(text))] == FORMULAS
    assert read(text, Form.KAFKA_CSV) == records


@given(RECORDS)
def test_what_was_written_for_spark_is_read_back_without_its_group(records: list[Record]) -> None:
    one = [replace(each, group="billing") for each in records]
    one = list({each.at: each for each in one}.values())
    text = file(one, Form.SPARK)
    assert sorted(read(text), key=lambda each: each.at) == sorted(
        (replace(each, group=None) for each in one), key=lambda each: each.at
    )
    assert {(topic, int(p)): n for topic, ps in json.loads(text).items() for p, n in ps.items()} == {
        (each.at.topic, each.at.partition): each.offset for each in one
    }


@pytest.mark.parametrize("form", list(Form))
def test_a_file_of_nothing_has_nothing(form: Form) -> None:
    assert read(file([], form)) == []
    assert read("") == []


def test_each_format_looks_as_other_tools_know_it() -> None:
    records = [Record("billing", AT, 5), Record("billing", TopicPartition('a "b", c', 7), 0)]
    assert file(records, Form.PATH) == (
        '/consumers/billing/offsets/orders/0:5\n/consumers/billing/offsets/a "b", c/7:0\n'
    )
    assert file(records, Form.KAFKA_CSV) == 'billing,orders,0,5\nbilling,"a ""b"", c",7,0\n'
    assert file(records, Form.CSV) == "group,topic,partition,offset\n" + file(records, Form.KAFKA_CSV)
    assert json.loads(file(records, Form.SPARK)) == {"orders": {"0": 5}, 'a "b", c': {"7": 0}}
    assert json.loads(file(records, Form.JSON))["offsets"][0] == {
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "offset": 5,
    }
    assert json.loads(file(records, Form.JSONL).splitlines()[1])["topic"] == 'a "b", c'


def test_json_may_say_that_there_was_no_offset_and_why() -> None:
    none = Record("billing", AT, None, "nothing was committed")
    for form in (Form.JSON, Form.JSONL):
        assert json.loads(file([none], form).splitlines()[1 if form is Form.JSON else 0])["note"]
        assert read(file([none], form)) == [replace(none, note=None)]


@pytest.mark.parametrize("form", [Form.CSV, Form.KAFKA_CSV, Form.PATH, Form.SPARK])
def test_what_has_no_offset_is_not_written_as_one(form: Form) -> None:
    with pytest.raises(InvalidInputError):
        file([Record("billing", AT, None)], form)


def test_spark_has_one_group_only() -> None:
    with pytest.raises(InvalidInputError, match="one group only"):
        file([Record("a", AT, 5), Record("b", AT, 5)], Form.SPARK)


def test_an_offset_that_is_committed_is_written_as_it_is() -> None:
    assert record(CommittedOffset("billing", AT, 5, version=7)) == Record("billing", AT, 5)


# Reading what others have written


def test_kafkas_file_of_one_group_names_none() -> None:
    assert read("orders,0,5\norders,1, 6\n\n") == [
        Record(None, AT, 5),
        Record(None, TopicPartition("orders", 1), 6),
    ]


def test_the_columns_of_a_csv_are_found_by_their_names() -> None:
    text = 'offset,note,partition,"topic",group\r\n5,"a ""b"", c",0,orders,billing\r\n'
    assert read(text, Form.CSV) == [Record("billing", AT, 5)]
    assert read("topic,partition,offset\norders,0,5\n") == [Record(None, AT, 5)]


def test_json_may_be_laid_out_in_any_way_and_have_more_fields() -> None:
    offset = {"group": "billing", "topic": "orders", "partition": 0, "offset": 5, "version": 3, "note": None}
    for indent in (None, 2):
        assert read(json.dumps({"schema": 1, "offsets": [offset]}, indent=indent)) == [Record("billing", AT, 5)]
    assert read(json.dumps({"schema": 1, **offset})) == [Record("billing", AT, 5)]
    assert read('\n {"offsets": {"0": 5}}') == [Record(None, TopicPartition("offsets", 0), 5)]


GOOD = {
    Form.PATH: "/consumers/g/offsets/t/0:5",
    Form.KAFKA_CSV: "g,t,0,5",
    Form.JSONL: '{"group": "g", "topic": "t", "partition": 0, "offset": 5}',
}


@pytest.mark.parametrize(
    ("form", "line"),
    [
        *[(Form.PATH, line) for line in ("/", "/consumers/g/offsets/t/0", "consumers/g/offsets/t/0:5")],
        (Form.PATH, "/consumers/g/owners/t/0:5"),
        (Form.PATH, "/consumers/g/offsets/t/x/0:5"),
        (Form.PATH, "/kafka/consumers/g/offsets/t/0:5"),
        (Form.PATH, "/consumers//offsets/t/0:5"),
        (Form.PATH, "/consumers/../offsets/t/0:5"),
        (Form.PATH, "/consumers/g/offsets/t/01:5"),
        (Form.PATH, "/consumers/g/offsets/t/0:-1"),
        (Form.PATH, "/consumers/g/offsets/t/0: 5"),
        (Form.PATH, "/consumers/g/offsets/t/0:"),
        (Form.PATH, "/consumers/g/offsets/t/0:٥"),
        (Form.PATH, "/consumers/g/offsets/t/0:9223372036854775808"),
        (Form.KAFKA_CSV, "g,t,0"),
        (Form.KAFKA_CSV, "g,t,0,5,6"),
        (Form.KAFKA_CSV, "g,t,0,-1"),
        (Form.KAFKA_CSV, "g,t,0,"),
        (Form.KAFKA_CSV, "g,t,0,5.0"),
        (Form.KAFKA_CSV, "g,t,-1,5"),
        (Form.KAFKA_CSV, "g,,0,5"),
        (Form.KAFKA_CSV, "g,a/b,0,5"),
        (Form.KAFKA_CSV, 'g,"t,0,5'),
        (Form.KAFKA_CSV, 'g,"t"x,0,5'),
        (Form.KAFKA_CSV, 'g,t"x,0,5'),
        (Form.KAFKA_CSV, "g,t,99999999999,5"),
        (Form.KAFKA_CSV, f"g,t,0,{'9' * 5000}"),
        (Form.JSONL, "{"),
        (Form.JSONL, "[]"),
        (Form.JSONL, "5"),
        (Form.JSONL, '{"group": "g", "topic": "t", "partition": 0}'),
        (Form.JSONL, '{"group": "g", "topic": "t", "partition": "0", "offset": 5}'),
        (Form.JSONL, '{"group": "g", "topic": "t", "partition": 0, "offset": "5"}'),
        (Form.JSONL, '{"group": "g", "topic": "t", "partition": 0, "offset": 5.0}'),
        (Form.JSONL, '{"group": "g", "topic": "t", "partition": 0, "offset": true}'),
        (Form.JSONL, '{"group": "g", "topic": "t", "partition": 0, "offset": -1}'),
        (Form.JSONL, '{"group": "g", "topic": "t", "partition": 0, "offset": NaN}'),
        (Form.JSONL, '{"group": "g", "topic": "t", "partition": 0, "offset": 5, "offset": 6}'),
        (Form.JSONL, '{"group": "g", "topic": null, "partition": 0, "offset": 5}'),
        (Form.JSONL, '{"group": "a/ids", "topic": "t", "partition": 0, "offset": 5}'),
        (Form.JSONL, '{"schema": 2, "group": "g", "topic": "t", "partition": 0, "offset": 5}'),
        (Form.JSONL, f'{{"group": "g", "topic": "t", "partition": 0, "offset": {"9" * 5000}}}'),
        (Form.JSONL, "[" * 100_000),
    ],
)
def test_a_broken_line_is_named_by_its_number_and_nothing_is_read(form: Form, line: str) -> None:
    text = f"\n{GOOD[form]}\n{line}\n"
    assert len(read(f"\n{GOOD[form]}\n", form)) == 1
    with pytest.raises(InvalidInputError, match=r"^plan\.csv, line 3: ") as caught:
        read(text, form, source="plan.csv")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"offsets": [\n{"group": "g", "topic": "t",\n', "line 3"),
        ('{"offsets": [5]}', "offset 1"),
        ('{"schema": 7, "offsets": []}', "line 1"),
        ('{"offsets": [{"group": "g", "topic": "t", "partition": 0, "offset": 5}, {"group": "g"}]}', "offset 2"),
        ('{"orders": {"0": -1}}', "-1 means the latest"),
        ('{"orders": {"0": -2}}', "-2 means the earliest"),
        ('{"orders": {"0": null}}', "partition '0'"),
        ('{"orders": {"x": 5}}', "partition 'x'"),
        ('{"orders": {"0": 5, "0": 6}}', "'0' is there twice"),
        ('{"orders": 5}', "line 1"),
        ("group,topic,partition,offset\ng,t,0\n", "line 2"),
        ("topic,partition,offset,offset\nt,0,5,6\n", "line 1"),
        ("group,topic,group,partition,offset\na,t,b,0,6\n", "line 1"),
        ("a,b\n", "line 1"),
    ],
)
def test_a_broken_file_is_an_error_that_says_where(text: str, where: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read(text)
    assert where in str(caught.value)


@pytest.mark.parametrize("form", [Form.CSV, Form.KAFKA_CSV, Form.PATH, Form.JSONL, Form.JSON])
def test_an_offset_that_is_there_twice_is_an_error(form: Form) -> None:
    with pytest.raises(InvalidInputError, match="orders/0 is there twice"):
        read(file([Record("billing", AT, 5), Record("billing", AT, 5)], form))


@given(st.text(max_size=40) | st.text(st.sampled_from('{}[]":,/0 5\ng\\'), max_size=30))
def test_whatever_a_file_has_it_is_read_or_refused(text: str) -> None:
    for form in (None, *Form):
        try:
            records = read(text, form)
        except InvalidInputError:
            continue
        assert all(each.offset is None or 0 <= each.offset <= MAX_OFFSET for each in records)
