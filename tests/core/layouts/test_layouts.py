"""What holds for all layouts: their text, what is read and written back, and how they are detected in a tree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups import CommittedOffset, ForbiddenNode, MalformedNode, TopicPartition
from zkgroups.core.layouts.detection import DetectedLayout, SampledNode, detect
from zkgroups.core.layouts.layout import LayoutNode, OneOffsetPerNode, Stored
from zkgroups.core.layouts.template import layout_of, parse_layout
from zkgroups.core.znodes.codecs import MAX_OFFSET, DecodingError
from zkgroups.core.znodes.topic_partition import MAX_PARTITION
from zkgroups.exceptions import InvalidOptionError

from ..strategies import NAMES, TOPICS, anything_json
from .written import WRITERS, Tree, json_bytes, layout_nodes, numbers, read, storm_of_one_topic

ALL = pytest.mark.parametrize("text", WRITERS)

PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(0, MAX_PARTITION))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, MAX_OFFSET - 5), min_size=1, max_size=5)
GROUPS = NAMES.filter(lambda name: not set("{}") & set(name))


@ALL
@given(group=GROUPS, offsets=OFFSETS)
def test_offsets_are_read_as_they_were_written_also_with_the_text_of_the_layout(
    text: str, group: str, offsets: dict[TopicPartition, int]
) -> None:
    """Plans, snapshots and the data source pass layouts on as text. A path tells its group and partition."""
    if "last" in text:
        offsets = {at: offset for at, offset in offsets.items() if offset}
    layout = parse_layout(text)
    assert (layout.text, parse_layout(layout.text)) == (text, layout)
    written = WRITERS[text](group, offsets)
    assert numbers(read(text, {"/consumers": b"", "/kafkastorm/other": b"", **written}, group)) == offsets
    for path in written:
        place = layout.place(path)
        assert place is not None
        assert place.group == group
        assert place.at is None or place.at in offsets
    assert layout.place("/elsewhere/a/b/c/d/e") is layout.place("/") is None


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


# Texts

TEMPLATE = "/x/{group}/{topic}/{partition}"


@pytest.mark.parametrize(
    ("written", "text", "root"),
    [
        ("legacy", "legacy", "/consumers"),
        ("kafka-1.1.0", "kafka-1.1.0", "/consumers"),
        ("storm:/", "storm:/", "/"),
        ("storm:/a/b/", "storm:/a/b", "/a/b"),
        ("trident:/transactional", "trident:/transactional", "/transactional"),
        ("spark:/a --stored from", "spark:/a --stored from", "/a"),
        (TEMPLATE, TEMPLATE, "/x"),
        (f"{TEMPLATE} --stored next --value decimal", TEMPLATE, "/x"),
        (f"{TEMPLATE} --value json:at --stored last", f"{TEMPLATE} --stored last --value json:at", "/x"),
        (f"{TEMPLATE} --value regex:at --stored ([0-9]+)", f"{TEMPLATE} --value regex:at --stored ([0-9]+)", "/x"),
        ("/a b/{topic}_{partition}", "/a b/{topic}_{partition}", "/a b"),
    ],
)
def test_layouts_have_one_text(written: str, text: str, root: str) -> None:
    layout = parse_layout(written)
    assert (layout.text, layout.root) == (text, root)


REFUSED = {
    "": "it must be legacy, kafka-1.1.0, storm:/PATH",
    "strom:/a": "or a path such as /x/{group}",
    "kafka-1.1.1": "it must be legacy",
    "storm": "it must be legacy",
    "storm:kafkastorm": "a path must begin with a slash",
    "storm:/a/{group}": "its path must not have {group}",
    "trident:/a//b": "has no characters",
    "storm:/a/../b": "is a relative path",
    "spark:/a": "--stored from or --stored until",
    "spark:/a --stored next": "--stored from or --stored until",
    "spark:/ --stored until": "it needs the path of a node",
    "spark:/a/{topic} --stored until": "its path must not have {topic}",
    "storm:/a --stored last": "the layout storm:/a always stores the next message",
    "legacy --value decimal": "only a path with fields has a format of values",
    "/x/{group}/{partition}": "the path needs {topic}",
    "/x/{group}/{topic}": "the path needs {partition}",
    "/{topic}/{partition}": "without {group}, it must begin with a name",
    "/x/{topic}/{topic}/{partition}": "each field may occur only once",
    "/x/{group}/{topic}{partition}": "two fields without a text between them",
    "/x/{group}.{topic}/{partition}": "has a group and a topic, so it does not say where one ends",
    "/x/{groups}/{topic}/{partition}": "{groups} is not a field",
    "/x/{topic/{partition}": "has a brace without its counterpart",
    "/x/{group}/{topic}/{partition}/{transaction}": "only trident has transactions",
    f"{TEMPLATE} --stored until": "its numbers are --stored next or --stored last",
    f"{TEMPLATE} --stored first": "it must be next, last, from or until",
    f"{TEMPLATE} --stored last --value decimal --stored last": "it has --stored twice",
    "/x/{group}/{topic}-{topic}/{partition}": "'{topic}-{topic}' has a field twice",
    f"{TEMPLATE} --stored last --stored last": "must not contain --stored",
    f"{TEMPLATE} --value regex:([0-9]+) --stored last --stored next": "it must not end with --stored",
    f"{TEMPLATE} --value int": "it must be decimal, json:FIELD or regex:EXPRESSION",
    f"{TEMPLATE} --value json:": "it must be decimal",
    f"{TEMPLATE} --value regex:(": "it is not an expression of RE2: missing )",
    f"{TEMPLATE} --value regex:(?=a)(.)": "it is not an expression of RE2: invalid perl operator",
    f"{TEMPLATE} --value regex:[0-9]+": "parentheses around the number",
    f"{TEMPLATE} --value regex:(a)([0-9]+)": "parentheses around the number, and no others",
    f"{TEMPLATE} --value regex:({'(a{100}){100}' * 3}){{100}}": "it is not an expression of RE2",
}


def test_an_invalid_layout_is_refused_with_a_reason() -> None:
    for written, message in REFUSED.items():
        with pytest.raises(InvalidOptionError) as error:
            parse_layout(written)
        assert message in str(error.value)


@given(
    st.text(max_size=40) | st.lists(st.sampled_from([*WRITERS, " --stored last", " --value ", "{x}", "/"])).map("".join)
)
@example(f"{TEMPLATE} --value regex:([0-9]+) --stored until --stored last")
def test_any_text_is_a_layout_or_refused(text: str) -> None:
    try:
        layout = parse_layout(text)
    except InvalidOptionError:
        return
    assert parse_layout(layout.text) == layout


def test_without_a_group_in_the_path_the_last_name_of_the_root_is_the_group() -> None:
    assert parse_layout("spark:/jobs/orders --stored until").own_group == "orders"
    assert parse_layout("/jobs/offsets/{topic}/{partition}").own_group == "offsets"
    assert parse_layout("/jobs/{group}/{topic}/{partition}").own_group is None


def test_the_parts_of_a_layout_may_be_given_one_by_one() -> None:
    layout = layout_of(TEMPLATE, stored="last", value="json:at")
    assert (layout.location, layout.stored) == (TEMPLATE, Stored.LAST)
    assert layout == parse_layout(f"{TEMPLATE} --stored last --value json:at")


# Detection

ORDERS = {TopicPartition("orders", number): 40 + number for number in range(3)}
REFUNDS = {TopicPartition("refunds", 0): 7}


def found(tree: Tree, topics: tuple[str, ...] = ()) -> list[DetectedLayout]:
    return detect([SampledNode(path, data) for path, data in tree.items()], topics)


def options(tree: Tree, topics: tuple[str, ...] = ()) -> list[str]:
    return [" ".join(each.options) for each in found(tree, topics)]


@pytest.mark.parametrize("text", [text for text in WRITERS if not text.startswith("/app")])
def test_each_layout_is_found_and_reads_all_of_its_offsets(text: str) -> None:
    groups = {"billing": ORDERS, "invoices": REFUNDS}
    tree = {path: data for group, offsets in groups.items() for path, data in WRITERS[text](group, offsets).items()}
    [detected] = found(tree, ("orders", "refunds"))
    assert {group: numbers(read(detected.layout.text, tree, group)) for group in groups} == groups


def test_the_options_of_each_system() -> None:
    tree = {path: data for write in WRITERS.values() for path, data in write("billing", ORDERS).items()}
    shown = options(tree, ("orders",))
    assert [each for each in shown if "/app" not in each] == [
        "--layout kafka-1.1.0",
        "",
        "--layout spark:/spark/billing --stored from|until",
        "--layout storm:/kafkastorm",
        "--layout trident:/transactional",
    ]


def test_groups_of_kafka_below_a_chroot_are_found_with_the_chroot() -> None:
    [detected] = found({"/kafka/eu/consumers/a/offset/orders/0": b"5"})
    assert (detected.name, detected.chroot, detected.options) == (
        "kafka-1.1.0",
        "/kafka/eu",
        ("--layout", "kafka-1.1.0"),
    )
    assert detected.layout == parse_layout("/kafka/eu/consumers/{group}/offset/{topic}/{partition}")


def test_a_name_that_differs_is_the_group() -> None:
    values = {f"/apps/{app}/state/orders/{number}": b"5" for app in ("a", "b", "c") for number in range(2)}
    assert options(values) == ["--layout /apps/{group}/state/{topic}/{partition}"]
    assert options({"/apps/a/state/orders/0": b"5"}) == ["--layout /apps/a/state/{topic}/{partition}"]


def test_the_name_that_differs_most_is_the_group() -> None:
    tree = {f"/{place}/{app}/orders/0": b"5" for place in ("eu", "us") for app in ("a", "b", "c")}
    assert options(tree) == ["--layout /eu/{group}/{topic}/{partition}", "--layout /us/{group}/{topic}/{partition}"]


def test_a_field_with_any_name_is_taken_only_if_it_is_the_only_number_and_the_topic_is_known() -> None:
    one, two = b'{"last":40,"at":"2026-01-31"}', b'{"last":40,"port":9092}'
    assert options({"/jobs/nightly/orders/0": one}, ("orders",)) == [
        "--layout /jobs/nightly/{topic}/{partition} --value json:last"
    ]
    assert options({"/jobs/nightly/orders/0": two}, ("orders",)) == []
    assert options({"/jobs/nightly/orders/0": one}) == []


def test_known_topics_are_found_anywhere_in_the_path() -> None:
    tree = {f"/apps/orders/{group}/p{number}": b'{"position":5}' for group in "ab" for number in range(2)}
    assert options(tree, ("orders",)) == ["--layout /apps/{topic}/{group}/p{partition} --value json:position"]
    assert options({"/apps/a/orders-3": b"5", "/apps/b/orders-3": b"5"}, ("orders",)) == [
        "--layout /apps/{group}/{topic}-{partition}"
    ]


def test_numbers_elsewhere_are_no_offsets_if_the_topics_are_known() -> None:
    tree = {"/locks/leader/lock-0000000017": b"5", "/app/version/1": b"7"}
    assert options(tree, ("orders",)) == []
    assert len(options(tree)) == 1, "without topics, only a number with a leading zero is none"


def test_other_nodes_of_a_system_are_not_taken_for_another_layout() -> None:
    tree = WRITERS["trident:/transactional"]("billing", ORDERS)
    assert options(tree) == ["--layout trident:/transactional"]


def test_owners_and_registrations_are_no_offsets() -> None:
    tree = {
        "/consumers/a/owners/orders/0": b"17",
        "/consumers/a/ids/host-1": b"5",
        "/consumers/a/details/orders/0": b"1",
    }
    assert options(tree) == []


PATHS = st.lists(TOPICS | st.sampled_from(["consumers", "offset", "user", "partition_1", "7"]), min_size=1, max_size=6)


@given(st.dictionaries(PATHS.map(lambda names: "/" + "/".join(names)), VALUES | st.just(b"5"), max_size=8))
@example({"/a/user/partition_0/b": b'{"offset":1,"nextOffset":2}'})
def test_any_tree_can_be_looked_at(tree: Tree) -> None:
    for detected in found(tree):
        assert parse_layout(detected.layout.text) == detected.layout
        assert any(detected.layout.place(path) for path in tree)
