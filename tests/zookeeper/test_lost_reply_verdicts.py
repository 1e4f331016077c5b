"""What the nodes show about a transaction whose reply was lost: carried out, not carried out, or unknown."""

from __future__ import annotations

import pytest

from zkgroups.zookeeper.requests.lost_replies import TransactionOutcome, final_changes, outcome_of, outcome_of_all
from zkgroups.zookeeper.requests.node import Node
from zkgroups.zookeeper.requests.transaction import Check, Create, Delete, Operation, Set

SESSION, BEFORE = 7, 100
CARRIED_OUT, NOT_CARRIED_OUT, UNKNOWN = TransactionOutcome
EPHEMERAL, PERSISTENT = Create("/x", b"mine", ephemeral=True), Create("/x", b"mine")
SET, DELETE = Set("/x", b"mine", 3), Delete("/x", 3)


def node(
    data: bytes = b"mine", *, czxid: int = BEFORE, mzxid: int = BEFORE, version: int = 3, session: int = 0
) -> Node:
    """A node that existed before the request, and was not changed since."""
    return Node("/x", data, czxid, mzxid, 0, 0, version, session)


@pytest.mark.parametrize(
    ("operation", "found", "outcome"),
    [
        (EPHEMERAL, node(czxid=BEFORE + 1, session=SESSION), CARRIED_OUT),
        (EPHEMERAL, None, NOT_CARRIED_OUT),
        (EPHEMERAL, node(czxid=BEFORE, session=SESSION), NOT_CARRIED_OUT),
        (EPHEMERAL, node(czxid=BEFORE + 1, session=SESSION + 1), NOT_CARRIED_OUT),
        (EPHEMERAL, node(b"other", czxid=BEFORE + 1, session=SESSION), NOT_CARRIED_OUT),
        (PERSISTENT, node(czxid=BEFORE + 1), CARRIED_OUT),
        (PERSISTENT, None, NOT_CARRIED_OUT),
        (PERSISTENT, node(czxid=BEFORE), NOT_CARRIED_OUT),
        (PERSISTENT, node(b"other", czxid=BEFORE + 1), NOT_CARRIED_OUT),
        (DELETE, None, CARRIED_OUT),
        (DELETE, node(czxid=BEFORE + 1), CARRIED_OUT),
        (DELETE, node(czxid=BEFORE), NOT_CARRIED_OUT),
        (SET, node(mzxid=BEFORE + 1, version=4), CARRIED_OUT),
        (SET, node(), NOT_CARRIED_OUT),
        (SET, None, UNKNOWN),
        (SET, node(czxid=BEFORE + 1, mzxid=BEFORE + 1, version=4), UNKNOWN),
        (SET, node(mzxid=BEFORE, version=4), UNKNOWN),
        (SET, node(b"other", mzxid=BEFORE + 1, version=4), UNKNOWN),
        (SET, node(mzxid=BEFORE + 1, version=5), UNKNOWN),
    ],
)
def test_one_operation_is_judged_by_its_node(
    operation: Operation, found: Node | None, outcome: TransactionOutcome
) -> None:
    assert outcome_of(operation, found, session_id=SESSION, zxid_before=BEFORE) is outcome


NEW, WRITTEN, UNCHANGED = node(czxid=BEFORE + 1), node(mzxid=BEFORE + 1, version=4), node()


@pytest.mark.parametrize(
    ("operations", "found", "outcome"),
    [
        ([PERSISTENT, SET, DELETE], [NEW, WRITTEN, None], CARRIED_OUT),
        ([PERSISTENT, PERSISTENT], [None, None], NOT_CARRIED_OUT),
        ([PERSISTENT, SET], [NEW, UNCHANGED], NOT_CARRIED_OUT),
        ([PERSISTENT, DELETE], [NEW, UNCHANGED], NOT_CARRIED_OUT),
        ([SET, SET], [WRITTEN, UNCHANGED], NOT_CARRIED_OUT),
        ([PERSISTENT, SET], [None, WRITTEN], UNKNOWN),
        ([PERSISTENT, PERSISTENT], [NEW, None], UNKNOWN),
        ([SET, SET], [WRITTEN, None], UNKNOWN),
    ],
)
def test_a_transaction_counts_as_carried_out_only_if_all_its_nodes_show_it(
    operations: list[Operation], found: list[Node | None], outcome: TransactionOutcome
) -> None:
    assert outcome_of_all(operations, found, session_id=SESSION, zxid_before=BEFORE) is outcome


def test_the_last_change_of_each_path_is_judged() -> None:
    operations = [
        Check("/fence", 1),
        Create("/created and written", b"1"),
        Set("/created and written", b"2", 0),
        Create("/created and deleted"),
        Delete("/created and deleted"),
        Delete("/replaced", 1),
        Create("/replaced", b"3"),
        Set("/written", b"4", 7),
    ]
    assert final_changes(operations) == {
        "/created and written": Create("/created and written", b"2"),
        "/replaced": Create("/replaced", b"3"),
        "/written": Set("/written", b"4", 7),
    }
