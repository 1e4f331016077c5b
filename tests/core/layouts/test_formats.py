"""Each format in detail: which value is which offset, and which is none. Trident is also compared with a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import CommittedOffset, ForbiddenNode, TopicPartition
from zkgroups.core.layouts.layout import LayoutNode, LayoutOffset
from zkgroups.core.layouts.template import parse_layout

from .written import Tree, json_bytes, layout_nodes, numbers, read, reasons, storm_value, trident_batch

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
TEMPLATE = "/x/{group}/{topic}/{partition}"


def one(layout: str, path: str, data: bytes) -> int | str:
    """The offset of the only node, or the reason why it has none."""
    [found] = read(layout, {path: data}, "a")
    return found.found.offset if isinstance(found.found, CommittedOffset) else found.found.reason


# The number


@pytest.mark.parametrize(
    ("stored", "data", "expected"),
    [
        ("next", b"41", 41),
        ("last", b"41", 42),
        ("last", b"0", 1),
        ("last", b"-1", "negative"),
        ("next", b"-1", "negative"),
        ("last", b"9223372036854775806", 2**63 - 1),
        ("last", b"9223372036854775807", "larger than 2^63-1"),
        ("next", b"", "empty"),
        ("next", b"41 ", "not a decimal number"),
    ],
)
def test_the_last_message_is_one_less_than_the_next(stored: str, data: bytes, expected: object) -> None:
    assert one(f"{TEMPLATE} --stored {stored}", "/x/a/orders/0", data) == expected


@pytest.mark.parametrize(
    ("value", "data", "expected"),
    [
        ("json:at", b'{"at":41}', 41),
        ("json:at", b'{"at":"41"}', 41),
        ("json:at", b'{"at":true}', "its field 'at' is not a whole number"),
        ("json:at", b'{"at":41.0}', "its field 'at' is not a whole number"),
        ("json:at", b'{"at":1e400}', "its field 'at' is not a whole number"),
        ("json:at", b'{"at":null}', "it has no field 'at'"),
        ("json:at", b'{"offset":1}', "it has no field 'at'"),
        ("json:at", b"[41]", "not a JSON object"),
        ("json:at", b"{" * 100_000, "not a JSON object"),
        ("json:at", b'{"at":' + b"9" * 5000 + b"}", "not a JSON object"),
        ("json:at", b'{"at":9223372036854775808}', "larger than 2^63-1"),
        ("json:at", b'{"at":"\\ud800"}', "not a decimal number"),
        ("regex:at=([0-9]+)", b"v=1;at=41;x", 41),
        ("regex:at=([0-9]+)", b"at=", "the expression does not match"),
        ("regex:at=([0-9]*)", b"at=x", "empty"),
        ("regex:a|([0-9]+)", b"a41", "the expression does not match"),
        ("regex:at=([0-9]+)", b"at=41\xff", "not UTF-8"),
    ],
)
def test_the_number_is_found_in_the_value(value: str, data: bytes, expected: object) -> None:
    assert one(f"{TEMPLATE} --value {value}", "/x/a/orders/0", data) == expected


def test_an_expression_needs_linear_time() -> None:
    """With Python's own expressions, this would never end."""
    assert one(f"{TEMPLATE} --value regex:(a+)+b", "/x/a/orders/0", b"a" * 500_000) == "the expression does not match"


# Names


def test_names_that_do_not_match_hold_no_offset_but_a_misnamed_partition_is_reported() -> None:
    layout = parse_layout("kafka-1.1.0")
    path = "/consumers/a/offset/orders/01"
    assert layout.templates[0].match(path) is None
    place = layout.place(path)
    assert place is not None
    assert (place.topic, place.partition, place.name, place.is_misnamed) == ("orders", None, "01", True)
    [found] = layout.offsets("a", [LayoutNode(0, {}, path, b"5", is_misnamed=True)])
    assert reasons([found]) == {path: "its name is not a partition"}
    assert parse_layout("storm:/s").place("/s/a/orders/offsets_1") is None


def test_directories_have_a_place_but_no_name() -> None:
    layout = parse_layout("legacy")
    places = {
        path: layout.place(path) for path in ("/consumers/a/offsets/orders", "/consumers/a/offsets", "/consumers/a")
    }
    assert [(place.topic, place.name) for place in places.values() if place] == [("orders", ""), (None, ""), (None, "")]
    assert layout.place("/consumers/a/ids/x") is None
    assert layout.place("/consumers") is None


def test_a_longer_number_in_a_name_is_no_partition() -> None:
    assert read(TEMPLATE, {"/x/a/orders/2147483648": b"5"}, "a") == []


# Two nodes for one partition


def test_of_two_nodes_the_one_that_was_written_last_counts() -> None:
    """A topology was changed to have its topic in the path, or back."""
    old, new = json_bytes(storm_value(ONE, 41)), json_bytes(storm_value(ONE, 17))
    paths = ("/s/a/partition_1", "/s/a/orders/partition_1")
    for first, second in (paths, paths[::-1]):
        assert numbers(read("storm:/s", {first: old, second: new}, "a")) == {ONE: 17}


def test_a_later_malformed_node_hides_the_earlier_offset() -> None:
    tree = {"/s/a/partition_1": json_bytes(storm_value(ONE, 41)), "/s/a/orders/partition_1": b"x"}
    assert reasons(read("storm:/s", tree, "a")) == {"/s/a/orders/partition_1": "not a JSON object"}


# Storm


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 41),
        ({"offset": 0}, 0),
        ({"offset": -2}, "negative"),
        ({"offset": None}, "it has no field 'offset'"),
        ({"topic": None}, "it names no topic"),
        ({"topic": 7}, "it names no topic"),
        ({"topic": "a/b"}, "'a/b' cannot be a topic name: it contains a slash"),
        ({"partition": 5}, 41),
    ],
)
def test_the_value_of_a_spout(changes: dict[str, object], expected: object) -> None:
    data = json_bytes(storm_value(ONE, 41) | changes)
    assert one("storm:/s", "/s/a/partition_1", data) == expected


def test_a_topic_in_the_path_must_be_that_of_the_value() -> None:
    data = json_bytes(storm_value(ONE, 41))
    assert "another topic than 'orders'" in str(one("storm:/s", "/s/a/refunds/partition_1", data))
    assert one("storm:/s", "/s/a/orders/partition_1", b'{"offset":41}') == 41


# Trident


def trident(current: bytes | None, *batches: tuple[int, int, int], coordinator: bool = True) -> Tree:
    """Batches of partition 0: transaction, first message, next message."""
    tree = {"/t/a/coordinator": b""} if coordinator else {}
    tree |= {} if current is None else {"/t/a/coordinator/currtx": current}
    tree["/t/a/user/partition_0"] = b"7"
    return tree | {f"/t/a/user/partition_0/{tx}": trident_batch(ZERO, *ends) for tx, *ends in batches}


@pytest.mark.parametrize(
    ("current", "expected"), [(b"11", 30), (b"10", 20), (b"9", 10), (b"8", 0), (b"99", 30), (None, 0)]
)
def test_the_highest_committed_transaction_counts(current: bytes | None, expected: int) -> None:
    """Transactions are numbers: 10 comes after 9. Without any committed one, Trident starts at the lowest batch."""
    tree = trident(current, (9, 10, 20), (10, 20, 30), (8, 0, 10))
    assert numbers(read("trident:/t", tree, "a")) == {ZERO: expected}


def test_without_a_coordinator_the_highest_transaction_counts() -> None:
    tree = trident(None, (9, 10, 20), (10, 20, 30), coordinator=False)
    assert numbers(read("trident:/t", tree, "a")) == {ZERO: 30}


@pytest.mark.parametrize("current", [b"", b"x", b"7.0", b'"7"', b"[7]", b"\xff"])
def test_without_a_readable_current_transaction_no_offset_of_the_group_is_known(current: bytes) -> None:
    found = read("trident:/t", trident(current, (9, 10, 20)), "a")
    assert reasons(found) == {"/t/a/coordinator/currtx": "not the number of a transaction"}
    place = parse_layout("trident:/t").place("/t/a/coordinator/currtx")
    assert place is not None
    assert (place.group, place.at) == ("a", None)


def test_a_forbidden_coordinator_hides_all_offsets_of_the_group() -> None:
    layout = parse_layout("trident:/t")
    nodes = layout_nodes(layout, trident(b"10", (9, 10, 20)))["a"]
    hidden = [
        node._replace(forbidden=ForbiddenNode(node.path)) if node.path.endswith("currtx") else node for node in nodes
    ]
    [found] = layout.offsets("a", hidden)
    assert isinstance(found.found, ForbiddenNode)


def test_a_transaction_without_a_batch_is_malformed() -> None:
    """Storm writes null if it could not fetch the first batch."""
    tree = trident(b"10") | {"/t/a/user/partition_0/9": b"null"}
    assert reasons(read("trident:/t", tree, "a")) == {"/t/a/user/partition_0/9": "not a JSON object"}


def test_a_partition_of_trident_with_a_forbidden_batch_has_no_offset() -> None:
    layout, hidden = parse_layout("trident:/t"), "/t/a/user/partition_0/9"
    also_hidden = hidden.replace("9", "10")
    other = {"/t/a/user/partition_1/9": trident_batch(TopicPartition("orders", 1), 0, 5)}
    nodes = layout_nodes(layout, trident(b"10", (8, 0, 10), (9, 10, 20), (10, 20, 30)) | other)["a"]
    forbidden = ForbiddenNode(hidden)
    nodes = [
        node._replace(forbidden=ForbiddenNode(node.path)) if node.path in (hidden, also_hidden) else node
        for node in nodes
    ]
    assert [(each.partition, getattr(each.found, "offset", each.found)) for each in layout.offsets("a", nodes)] == [
        (0, forbidden),
        (1, 5),
    ]


# Spark


def test_a_node_may_have_several_topics_and_its_children_more() -> None:
    tree = {"/spark/a": b"orders:0:41, orders:1:17,refunds:0:5", "/spark/a/new": b"0:3"}
    assert numbers(read("spark:/spark/a --stored until", tree, "a")) == {
        ZERO: 41,
        ONE: 17,
        TopicPartition("refunds", 0): 5,
        TopicPartition("new", 0): 3,
    }


@pytest.mark.parametrize(
    ("path", "data", "reason"),
    [
        ("/spark/a", b"0:41", "it names no topic"),
        ("/spark/a/orders", b"", "empty"),
        ("/spark/a/orders", b"0:41,", "'' is not PARTITION:OFFSET"),
        ("/spark/a/orders", b"0:41,1", "'1' is not PARTITION:OFFSET"),
        ("/spark/a/orders", b"0:41,0:42", "it names a partition twice"),
        ("/spark/a/orders", b"0:-1", "negative"),
        ("/spark/a/orders", b"0:x", "not a decimal number"),
        ("/spark/a/orders", b"00:1", "'00:1' is not PARTITION:OFFSET"),
        ("/spark/a/orders", b"refunds:0:1", "its name is 'orders', but it holds offsets of 'refunds'"),
        ("/spark/a/orders", b"\xff", "not UTF-8"),
    ],
)
def test_a_node_with_a_malformed_entry_is_malformed_as_a_whole(path: str, data: bytes, reason: str) -> None:
    [found] = read("spark:/spark/a --stored until", {path: data}, "a")
    assert (found.topic, found.partition) == ("orders" if path.endswith("orders") else None, None)
    assert reasons([found])[path].startswith(reason)


@pytest.mark.parametrize("data", [b"", b"10.0.0.7"])
def test_the_data_of_a_directory_is_no_offset(data: bytes) -> None:
    """Curator writes the address of its host into new directories."""
    tree = {"/spark/a": data, "/spark/a/orders": b"0:41"}
    assert numbers(read("spark:/spark/a --stored from", tree, "a")) == {ZERO: 41}


# Trident as a model: transactions are emitted, committed and cleaned up, and it is killed at any moment. What zkgroups
# reads is the first message that no committed transaction has: the place where Trident continues.

TRIDENT = parse_layout("trident:/t")


class Stream:
    """The nodes of one stream with one partition. Up to `pending` transactions are in flight."""

    def __init__(self, *, opaque: bool, pending: int) -> None:
        self._opaque, self._pending = opaque, pending
        self._batches: dict[int, tuple[int, int]] = {}
        """The batches in ZooKeeper."""
        self._emitted: dict[int, tuple[int, int]] = {}
        self._current: int | None = None
        self.processed = 0
        """The next message after the last committed transaction."""
        self.zxid = 0
        self._written: dict[str, tuple[bytes, int]] = {}
        """The data of each node, and the zxid of its last write."""

    @property
    def _next_to_commit(self) -> int:
        return self._current or 1

    def emit(self, size: int) -> None:
        """Emit the next batch. A transactional spout stores it now, an opaque one when it is committed."""
        transaction = max([*self._emitted, self._next_to_commit - 1]) + 1
        if transaction < self._next_to_commit + self._pending:
            start = self._emitted[transaction - 1][1] if transaction - 1 in self._emitted else self.processed
            self._emitted[transaction] = (start, start + size)
            if not self._opaque:
                self._batches[transaction] = self._emitted[transaction]

    def commit(self, *, acknowledged: bool, cleaned: bool) -> None:
        """Commit the next transaction. It may be killed before the coordinator notes it, or before the cleanup."""
        transaction = self._next_to_commit
        if transaction in self._emitted:
            if self._opaque:
                self._batches[transaction] = self._emitted[transaction]
            if acknowledged:
                self.processed = self._emitted.pop(transaction)[1]
                self._current = transaction + 1
                if cleaned:
                    self._batches = {tx: ends for tx, ends in self._batches.items() if tx >= transaction}

    def read(self) -> list[LayoutOffset]:
        """What zkgroups finds after the last step."""
        tree = self._tree()
        for path in tree:
            if path not in self._written or self._written[path][0] != tree[path]:
                self.zxid += 1
                self._written[path] = tree[path], self.zxid
        return list(TRIDENT.offsets("a", [self._with_zxid(node) for node in layout_nodes(TRIDENT, tree)["a"]]))

    def _with_zxid(self, node: LayoutNode) -> LayoutNode:
        return node._replace(zxid=self._written[node.path][1])

    def _tree(self) -> Tree:
        tree = {"/t/a/coordinator": b""}
        for transaction, ends in self._batches.items():
            tree[f"/t/a/user/partition_0/{transaction}"] = trident_batch(ZERO, *ends)
        if self._current is not None:  # noted last
            tree["/t/a/coordinator/currtx"] = str(self._current).encode()
        return tree


STEPS = st.lists(
    st.tuples(st.just("emit"), st.integers(0, 5), st.booleans())
    | st.tuples(st.just("commit"), st.integers(0, 1), st.booleans()),
    max_size=30,
)


@given(steps=STEPS, opaque=st.booleans(), pending=st.integers(1, 4))
def test_the_offset_is_the_first_message_that_is_not_committed_and_its_zxid_rises_with_it(
    steps: list[tuple[str, int, bool]], opaque: bool, pending: int
) -> None:
    stream = Stream(opaque=opaque, pending=pending)
    before: tuple[dict[TopicPartition, int], int] = {}, 0
    for what, number, flag in steps:
        if what == "emit":
            stream.emit(number)
        else:
            stream.commit(acknowledged=bool(number), cleaned=flag)
        seen = stream.zxid
        offsets = stream.read()
        found = numbers(offsets)
        assert found in ({}, {ZERO: stream.processed})
        assert found or not stream.processed
        # Whoever asks for the offsets written since the last step gets all that have changed.
        zxid = max((each.node.zxid for each in offsets if each.node is not None), default=0)
        assert found == before[0] or zxid > seen
        before = found, zxid
