"""Attempts to break rule 5: an offset never goes back by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lasting import lasting_client
from zkgroups import Consumergroup, Registry
from zkgroups.exceptions import (
    OffsetConflictError,
    OffsetWouldGoBackError,
)

from .conftest import Connect
from .rules import OFFSET, P0, P1, member

pytestmark = pytest.mark.zookeeper


def test_rule_5_a_claim_commits_backward_only_with_backward(registry: Registry, raw: Any) -> None:
    claim = member(registry).claim(P0)
    claim.commit(5)
    with pytest.raises(OffsetWouldGoBackError, match="is 5 and would go back to 4"):
        claim.commit(4)
    assert raw.get(OFFSET)[0] == b"5"
    claim.commit(4, backward=True)
    assert raw.get(OFFSET)[0] == b"4"


def test_rule_5_the_first_commit_of_a_claim_does_not_go_behind_its_predecessor(registry: Registry, raw: Any) -> None:
    raw.create(OFFSET, b"50", makepath=True)
    claim = member(registry).claim(P0)
    with pytest.raises(OffsetWouldGoBackError):
        claim.commit(49)
    assert raw.get(OFFSET)[0] == b"50"


def test_rule_5_one_offset_that_would_go_back_stops_the_whole_batch(registry: Registry, raw: Any) -> None:
    claims = member(registry).claim_many([P0, P1])
    claims.commit({P0: 5, P1: 5})
    with pytest.raises(OffsetWouldGoBackError, match="orders/1"):
        claims.commit({P0: 6, P1: 4})
    assert raw.get(OFFSET)[0] == b"5"


def test_rule_5_a_foreign_commit_in_between_is_a_conflict_and_is_not_overwritten(registry: Registry, raw: Any) -> None:
    claim = member(registry).claim(P0)
    claim.commit(5)
    raw.set(OFFSET, b"100")
    with pytest.raises(OffsetConflictError, match="is now 100"):
        claim.commit(6)
    with pytest.raises(OffsetWouldGoBackError):
        claim.commit(6)
    assert raw.get(OFFSET)[0] == b"100"
    claim.commit(101)
    assert raw.get(OFFSET)[0] == b"101"


def test_rule_5_an_offset_set_without_a_claim_goes_back_only_with_backward(group: Consumergroup, raw: Any) -> None:
    group.offsets.set(P0, 5)
    with pytest.raises(OffsetWouldGoBackError):
        group.offsets.set(P0, 4)
    group.offsets.set(P0, 4, backward=True)
    assert raw.get(OFFSET)[0] == b"4"


@pytest.mark.parametrize("there_before", [False, True])
def test_rule_5_an_offset_recreated_by_another_tool_under_a_claim_is_not_overwritten(
    registry: Registry, raw: Any, there_before: bool
) -> None:
    """The recreated node has version 0, like the first one."""
    if there_before:
        raw.create(OFFSET, b"3", makepath=True)
    claim = member(registry).claim(P0)
    claim.commit(5)
    raw.delete(OFFSET)
    raw.create(OFFSET, b"9")
    with pytest.raises(OffsetConflictError, match="is now 9"):
        claim.commit(6)
    assert raw.get(OFFSET)[0] == b"9"
    claim.commit(10)


def test_an_offset_recreated_and_written_as_often_is_overwritten_with_a_warning(
    registry: Registry, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit that docs/guarantees.md names: versions are all that ZooKeeper compares."""
    claim = member(registry).claim(P0)
    claim.commit(5)
    raw.delete(OFFSET)
    raw.create(OFFSET, b"8")
    while raw.get(OFFSET)[1].version < 1:
        raw.set(OFFSET, b"9")
    claim.commit(6)
    claim.commit(7)
    assert raw.get(OFFSET)[0] == b"7"
    assert [record.message for record in caplog.records if "recreated" in record.message] == [
        f"{OFFSET} was deleted and recreated by another client; its offset was overwritten with 6"
    ]


@pytest.mark.parametrize("written", [1, 3])
def test_rule_5_an_ephemeral_offset_node_of_another_client_is_replaced(
    registry: Registry, raw: Any, zookeeper_hosts: str, caplog: pytest.LogCaptureFixture, written: int
) -> None:
    raw.ensure_path(OFFSET.rpartition("/")[0])
    with lasting_client(zookeeper_hosts) as other:
        other.create(OFFSET, b"3", ephemeral=True)
        for _ in range(1, written):
            other.set(OFFSET, b"4")
        claim = member(registry).claim(P0)
        with pytest.raises(OffsetWouldGoBackError):
            claim.commit(2)
        claim.commit(5)
        claim.commit(6)
    data, stat = raw.get(OFFSET)
    assert (data, stat.ephemeralOwner) == (b"6", 0)
    claim.commit(7)
    assert raw.get(OFFSET)[0] == b"7"
    assert "recreated" not in caplog.text


def test_rule_5_a_recreated_offset_does_not_count_as_the_one_that_was_read(
    registry: Registry, connect: Connect, raw: Any
) -> None:
    """Both nodes have version 0. A forced delete makes members read the offsets again."""
    claim = member(registry).claim(P0)
    claim.commit(10)
    operator = connect().group("billing").offsets
    operator.delete([P0], force=True)
    operator.set(P0, 1000)
    with pytest.raises(OffsetWouldGoBackError):
        claim.commit(20)
    assert raw.get(OFFSET)[0] == b"1000"
    claim.commit(1001)
