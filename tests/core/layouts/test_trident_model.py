"""Trident as a model: transactions are emitted, committed and cleaned up, and it is killed at any moment.

What zkgroups reads is the first message that no committed transaction has: the place where Trident continues.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zkgroups import TopicPartition
from zkgroups.core.layouts.layout import LayoutNode, LayoutOffset
from zkgroups.core.layouts.parse_layout import parse_layout

from .written import Tree, layout_nodes, numbers, trident_batch

ZERO = TopicPartition("orders", 0)
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
