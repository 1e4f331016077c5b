"""The size of a transaction is known before it is sent, and a server with a small limit is learned from. No server."""

from __future__ import annotations

import pytest
from kazoo.protocol import serialization

from zkgroups.zookeeper.requests import request_size
from zkgroups.zookeeper.requests.pinned_request import _on_the_wire
from zkgroups.zookeeper.requests.request_limit import (
    MAX_BATCH_BYTES,
    MAX_REQUEST_BYTES,
    SMALLEST_LIMIT,
    RequestLimit,
)
from zkgroups.zookeeper.requests.request_size import ENVELOPE_BYTES, batches, fits, size
from zkgroups.zookeeper.requests.transaction import Check, Create, Delete, Operation, Set

OPERATIONS = [
    Create("/größe", b"abc"),
    Create("/x", b"", ephemeral=True),
    Set("/x", b"12", 3),
    Delete("/x"),
    Check("/xy", 3),
]
UNIT = [Set("/x", b"12", 3)]
COST = size(UNIT[0])


@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_the_size_of_an_operation_is_exact(operation: Operation) -> None:
    empty, one = (len(serialization.Transaction(each).serialize()) for each in ([], [_on_the_wire("", operation)]))
    assert size(operation) == one - empty


def test_operations_fit_up_to_the_limit() -> None:
    total = ENVELOPE_BYTES + sum(map(size, OPERATIONS))
    assert fits(OPERATIONS, limit=total)
    assert not fits(OPERATIONS, limit=total - 1)
    assert fits(OPERATIONS, chroot="/é", limit=total + 3 * len(OPERATIONS))
    assert not fits(OPERATIONS, chroot="/é", limit=total + 3 * len(OPERATIONS) - 1)


@pytest.mark.parametrize(("spare", "expected"), [(0, [2, 2, 1]), (COST - 1, [2, 2, 1]), (COST, [3, 2])])
def test_units_are_grouped_up_to_the_limit(spare: int, expected: list[int]) -> None:
    overhead = [Check("/fence", 1)]
    limit = ENVELOPE_BYTES + size(overhead[0]) + 2 * COST + spare
    found = list(batches([UNIT] * 5, overhead=overhead, limit=limit))
    assert [len(batch) for batch in found] == expected
    longer = list(batches([UNIT] * 5, overhead=overhead, chroot="/abc", limit=limit + 3 * 4))
    assert [len(batch) for batch in longer[:1]] == [2]


def test_a_unit_is_never_split_or_left_out() -> None:
    large = [Set("/x", bytes(1000), 3)] * 2
    assert list(batches([UNIT, large, UNIT], limit=100)) == [[UNIT], [large], [UNIT]]
    assert list(batches([], limit=100)) == []


def test_the_number_of_operations_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_size, "MAX_BATCH_OPERATIONS", 4)
    assert [len(batch) for batch in batches([UNIT * 2] * 5)] == [2, 2, 1]
    assert [len(batch) for batch in batches([UNIT * 3] * 2)] == [1, 1]


def test_a_lost_request_halves_the_limit_of_its_session_only() -> None:
    limit = RequestLimit()
    assert (limit.bytes(1), limit.most(1)) == (MAX_BATCH_BYTES, MAX_REQUEST_BYTES)
    limit.lost_twice(40_000, session_id=1)
    assert (limit.bytes(1), limit.most(1)) == (20_000, 20_000)
    assert (limit.bytes(2), limit.most(2)) == (MAX_BATCH_BYTES, MAX_REQUEST_BYTES)
    limit.lost_twice(60_000, session_id=1)
    assert limit.bytes(1) == 20_000
    limit.lost_twice(SMALLEST_LIMIT, session_id=1)
    assert limit.bytes(1) == SMALLEST_LIMIT


def test_an_answered_request_raises_the_limit_again() -> None:
    limit = RequestLimit()
    limit.lost_twice(40_000, session_id=1)
    for size_, session_id in ((20_000, 1), (30_000, 2)):
        limit.accepted(size_, session_id=session_id)
        assert limit.bytes(1) == 20_000
    limit.accepted(30_000, session_id=1)
    assert limit.bytes(1) == 30_000
    limit.accepted(39_999, session_id=1)
    assert limit.bytes(1) == 39_999
    limit.accepted(40_000, session_id=1)
    assert limit.bytes(1) == MAX_BATCH_BYTES
