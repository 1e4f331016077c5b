"""What holds for all layouts: offsets are read as they were written, and nothing that is read is trusted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import CommittedOffset, ForbiddenNode, MalformedNode, TopicPartition
from zkgroups.core.layouts.layout import LayoutNode, OneOffsetPerNode
from zkgroups.core.layouts.parse_layout import parse_layout
from zkgroups.core.znodes.decoding import DecodingError
from zkgroups.core.znodes.names import MAX_PARTITION
from zkgroups.core.znodes.offset_codec import MAX_OFFSET

from ..strategies import NAMES, TOPICS, anything_json
from .written import WRITERS, json_bytes, layout_nodes, numbers, read, storm_of_one_topic

ALL = pytest.mark.parametrize("text", WRITERS)

PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(0, MAX_PARTITION))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, MAX_OFFSET - 5), min_size=1, max_size=5)
GROUPS = NAMES.filter(lambda name: not set("{}") & set(name))


@ALL
@given(group=GROUPS, offsets=OFFSETS)
def test_offsets_are_read_as_they_were_written(text: str, group: str, offsets: dict[TopicPartition, int]) -> None:
    if "last" in text:
        offsets = {at: offset for at, offset in offsets.items() if offset}
    tree = {"/consumers": b"", "/kafkastorm/other": b"", **WRITERS[text](group, offsets)}
    assert numbers(read(text, tree, group)) == offsets


@ALL
@given(group=GROUPS, offsets=OFFSETS)
def test_the_text_of_a_layout_describes_it(text: str, group: str, offsets: dict[TopicPartition, int]) -> None:
    """Plans, snapshots and the data source pass layouts on as text."""
    layout = parse_layout(text)
    assert (layout.text, parse_layout(layout.text)) == (text, layout)
    tree = WRITERS[text](group, offsets)
    assert read(layout.text, tree, group) == read(text, tree, group)


@ALL
@given(group=GROUPS, offsets=OFFSETS)
def test_the_path_of_a_node_tells_its_group_and_partition(
    text: str, group: str, offsets: dict[TopicPartition, int]
) -> None:
    layout = parse_layout(text)
    for path in WRITERS[text](group, offsets):
        place = layout.place(path)
        assert place is not None
        assert place.group == group
        assert place.at is None or place.at in offsets
    assert layout.place("/elsewhere/a/b/c/d/e") is None
    assert layout.place("/") is None


def test_the_topic_of_a_spout_may_be_in_its_data_only() -> None:
    offsets = {TopicPartition("orders", number): 10 * number for number in range(3)}
    assert numbers(read("storm:/kafkastorm", storm_of_one_topic("spout", offsets), "spout")) == offsets
    place = parse_layout("storm:/kafkastorm").place("/kafkastorm/spout/partition_3")
    assert place is not None
    assert (place.topic, place.partition, place.at) == (None, 3, None)


# Damage

VALUES = st.binary(max_size=30) | anything_json(["offset", "nextOffset", "topic", "at"]).map(
    lambda value: json_bytes(_printable(value))
)


def _printable(value: Any) -> Any:
    """JSON without the lone surrogates that cannot be written to a node."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_printable(name): _printable(each) for name, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list) else value


@ALL
@given(data=st.data())
def test_any_data_reads_as_an_offset_or_as_a_malformed_node_and_affects_no_other_group(text: str, data: Any) -> None:
    at, other = TopicPartition("orders", 1), TopicPartition("orders", 2)
    damaged = {path: data.draw(VALUES) for path in WRITERS[text]("a", {at: 5, other: 7})}
    healthy = WRITERS[text]("b", {at: 5})
    layout = parse_layout(text)
    groups = layout_nodes(layout, damaged | healthy)
    for each in layout.offsets("a", groups.get("a", [])):
        assert each.group == "a"
        if isinstance(each.found, CommittedOffset):
            assert 0 <= each.found.offset <= MAX_OFFSET
            assert each.found.at == TopicPartition(each.topic or "", -1 if each.partition is None else each.partition)
        else:
            assert isinstance(each.found, MalformedNode)
            assert damaged[each.found.path] == each.found.data
            assert each.found.reason
    assert [each.found.offset for each in layout.offsets("b", groups["b"]) if isinstance(each.found, CommittedOffset)]


@ALL
def test_one_malformed_node_does_not_affect_others(text: str) -> None:
    one, other = TopicPartition("orders", 1), TopicPartition("refunds", 2)
    tree = WRITERS[text]("a", {one: 5, other: 7})
    broken = next(path for path in reversed(tree) if "7" not in path.rpartition("/")[2])
    found = read(text, {**tree, broken: b"{:"}, "a")
    bad = [each for each in found if isinstance(each.found, MalformedNode)]
    good = [each.found.offset for each in found if isinstance(each.found, CommittedOffset)]
    assert len(bad) == 1
    assert good == ([] if len(tree) == 1 else [5])


@ALL
def test_a_forbidden_node_is_an_offset_that_cannot_be_read(text: str) -> None:
    layout = parse_layout(text)
    tree = WRITERS[text]("a", {TopicPartition("orders", 1): 5})
    nodes = [
        LayoutNode(node.template, node.fields, node.path, forbidden=ForbiddenNode(node.path))
        for node in layout_nodes(layout, tree)["a"]
    ]
    found = list(layout.offsets("a", nodes))
    assert {type(each.found) for each in found} == {ForbiddenNode}
    assert {each.node for each in found} == {None}


# Writing back

WRITABLE = pytest.mark.parametrize("text", [t for t in WRITERS if isinstance(parse_layout(t), OneOffsetPerNode)])


@WRITABLE
@given(offset=st.integers(1, MAX_OFFSET), before=st.integers(1, 99))
def test_an_offset_that_is_written_back_is_read_as_it_is_and_all_else_stays(
    text: str, offset: int, before: int
) -> None:
    layout, at = parse_layout(text), TopicPartition("orders", 1)
    assert isinstance(layout, OneOffsetPerNode)
    [node] = layout_nodes(layout, WRITERS[text]("a", {at: before}))["a"]
    data = layout.rewritten(node.data, offset)
    assert layout.decode(node.fields, data) == ("orders", offset)
    assert layout.rewritten(data, before) in (node.data, node.data.replace(b'": ', b'":').replace(b", ", b","))


def test_nothing_processed_cannot_be_written_as_a_last_message() -> None:
    layout = parse_layout("/app/{group}/{topic}/{partition} --stored last")
    assert isinstance(layout, OneOffsetPerNode)
    with pytest.raises(DecodingError, match="nothing was processed"):
        layout.rewritten(b"5", 0)


def test_a_number_that_the_expression_would_not_find_is_not_written() -> None:
    layout = parse_layout("/x/{group}/{topic}/{partition} --value regex:at=([0-9]{2})")
    assert isinstance(layout, OneOffsetPerNode)
    assert layout.rewritten("é at=41;".encode(), 42) == "é at=42;".encode()
    with pytest.raises(DecodingError, match="does not find 100"):
        layout.rewritten(b"at=99;", 100)
