"""Trident as a model: transactions are emitted, committed and cleaned up, and it is killed at any moment.

What zkgroups reads is the first message that no committed transaction has: the place where Trident continues.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zkgroups import TopicPartition

from .written import Tree, numbers, read, trident_batch

ZERO = TopicPartition("orders", 0)


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

    def tree(self) -> Tree:
        tree = {"/t/a/coordinator": b""}
        if self._current is not None:
            tree["/t/a/coordinator/currtx"] = str(self._current).encode()
        for transaction, ends in self._batches.items():
            tree[f"/t/a/user/partition_0/{transaction}"] = trident_batch(ZERO, *ends)
        return tree


STEPS = st.lists(
    st.tuples(st.just("emit"), st.integers(0, 5), st.booleans())
    | st.tuples(st.just("commit"), st.integers(0, 1), st.booleans()),
    max_size=30,
)


@given(steps=STEPS, opaque=st.booleans(), pending=st.integers(1, 4))
def test_the_offset_is_the_first_message_that_is_not_committed(
    steps: list[tuple[str, int, bool]], opaque: bool, pending: int
) -> None:
    stream = Stream(opaque=opaque, pending=pending)
    for what, number, flag in steps:
        if what == "emit":
            stream.emit(number)
        else:
            stream.commit(acknowledged=bool(number), cleaned=flag)
        found = numbers(read("trident:/t", stream.tree(), "a"))
        assert found in ({}, {ZERO: stream.processed})
        assert found or not stream.processed
