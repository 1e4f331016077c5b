"""Failures 2 and 3, rule 3: if any answer or request is lost, everything happens once, and no call raises an error.

A script of all operations of an instance is repeated until the connection was cut at every single request. After
each step the tree must equal the tree after the same step of an undisturbed run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from kazoo.protocol.serialization import Transaction
from kazoo.security import OPEN_ACL_UNSAFE

from zkgroups import Acl, AclPolicy, Instance, Registry, TopicPartition
from zkgroups.deadline import Deadline
from zkgroups.exceptions import (
    NoPermissionError,
    OutcomeUnknownError,
)
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.requests import run_transaction
from zkgroups.zookeeper.requests.node import Node
from zkgroups.zookeeper.requests.pinned_request import (
    FinalChange,
    TransactionOutcome,
    final_changes,
    outcome_of,
    outcome_of_all,
)
from zkgroups.zookeeper.requests.transaction import Check, Create, Delete, Operation, Set

from .conftest import LONG_SESSION, Connect
from .helpers import ME, OWNER, P0, P1, P2, left_behind, member, prepare
from .tree import Tree, dump

pytestmark = pytest.mark.zookeeper


def steps(registry: Registry) -> Iterator[str]:
    """All operations of an instance, from its registration to the deletion of its group."""
    group = registry.group("billing")
    me = group.instance("me")
    me.register(["orders"])
    yield "register"
    one = me.claim(P0)
    yield "claim"
    two = me.claim_many([P1, P2])
    yield "claim many"
    one.commit(5)
    yield "first commit"
    one.commit(7)
    yield "second commit"
    two.commit({P1: 10, P2: 20})
    yield "commit many"
    me.update(["orders", "refunds"])
    yield "update"
    group.offsets.set(TopicPartition("refunds", 0), 3)
    yield "commit without a claim"
    one.release()
    yield "release"
    two.commit({P1: 11, P2: 21})
    yield "commit after a release"
    two.release()
    yield "release many"
    yield from leave(registry, me)


def leave(registry: Registry, me: Instance) -> Iterator[str]:
    me.claim(P1)
    me.deregister()
    yield "deregister while holding"
    registry.group("billing").copy("billing-2")
    yield "copy"
    registry.group("billing").offsets.reset({P0: 1})
    yield "reset"
    registry.group("billing").offsets.delete([P0])
    yield "delete an offset"
    registry.group("billing").delete()
    yield "delete the group"


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations contain the time. Freeze it, so that runs can be compared byte by byte."""
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)


@dataclass(frozen=True)
class Step:
    """The tree after an undisturbed step, and the number of requests of the step."""

    name: str
    tree: Tree
    requests: int


@pytest.fixture
def model(proxied: Registry, proxy: TcpProxy, raw: Any, still: None) -> list[Step]:
    """An undisturbed run."""
    found = []
    before = proxy.requests
    for name in steps(proxied):
        found.append(Step(name, dump(raw), proxy.requests - before))
        before = proxy.requests
    raw.delete("/consumers", recursive=True)
    return found


@pytest.mark.parametrize(
    ("arm", "most"),
    [
        pytest.param(lambda proxy, n: proxy.cut_before_reply(n), 99, id="answer lost"),
        pytest.param(lambda proxy, n: proxy.cut_before_request(n), 3, id="request lost"),
        pytest.param(lambda proxy, n: proxy.cut_after_reply(n), 2, id="connection lost in between"),
    ],
)
def test_rule_3_with_a_lost_connection_in_every_step_everything_happens_once(
    arm: Callable[[TcpProxy, int], Any], most: int, model: list[Step], proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    """The connection is cut once in every step: in the n-th run at the n-th request of the step."""
    assert sum(step.requests for step in model) > 30
    for n in range(1, min(most, max(step.requests for step in model)) + 1):
        doing = steps(proxied)
        for expected in model:
            fault = arm(proxy, n) if n <= expected.requests else None
            assert next(doing) == expected.name
            assert fault is None or fault.wait(), f"request {n} of {expected.name!r} was not made"
            assert dump(raw) == expected.tree, f"after {expected.name!r}, cut at request {n}"
        assert list(doing) == []
        raw.delete("/consumers", recursive=True)


def test_rule_3_a_request_that_never_arrived_is_sent_again_once(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    me = proxied.group("billing").instance("me")
    me.register(["orders"])
    proxied.group("billing").create()
    me.claim(P0).release()
    before = proxy.requests_by_type[Transaction.type]
    fault = proxy.cut_before_request(1)
    claim = me.claim(P0)
    assert fault.fired
    assert claim.verify()
    assert proxy.requests_by_type[Transaction.type] - before == 2  # the lost one, and one more


def test_a_request_that_cannot_be_split_is_not_too_large_because_the_connection_was_lost_twice(
    proxied: Registry, proxy: TcpProxy, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = proxied._context.session
    look = run_transaction.was_carried_out
    faults = [proxy.cut_before_request(1)]

    def look_and_lose_again(*arguments: Any) -> bool:
        found = look(*arguments)
        if len(faults) < 2:
            faults.append(proxy.cut_before_request(1))
        return found

    monkeypatch.setattr(run_transaction, "was_carried_out", look_and_lose_again)
    before = session.request_limit
    session.transact([Create("/large", bytes(7_000))], deadline=Deadline(60))
    assert [fault.fired for fault in faults] == [True, True]
    assert raw.get("/large")[0] == bytes(7_000)
    assert session.request_limit == before


UNREADABLE = [Acl("world", "anyone", "wa")]


@pytest.fixture
def blind(zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, registry: Registry) -> Registry:
    """A registry through the proxy, which may read none of its own nodes except directories."""
    prepare(registry)
    hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
    acl = AclPolicy(ephemerals=UNREADABLE, offsets=UNREADABLE)
    return connect(hosts, acl=acl, session_timeout=LONG_SESSION)


def blind_member(blind: Registry, raw: Any) -> Instance:
    """The registry may read its own registration, which claims require."""
    me = member(blind)
    raw.set_acls(ME, OPEN_ACL_UNSAFE)
    return me


def test_a_forbidden_claim_with_a_lost_answer_is_not_left_behind_silently(
    blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind_member(blind, raw)
    fault = proxy.cut_before_reply(1)
    with pytest.raises(OutcomeUnknownError, match="you have no permission to read the node"):
        me.claim(P0)
    assert fault.fired
    assert me.claims == {}
    with pytest.raises(NoPermissionError):
        me.claim(P0)
    told_of_and_taken_away(me, OWNER, raw, left=[ME, OWNER])


def told_of_and_taken_away(me: Instance, path: str, raw: Any, *, left: list[str]) -> None:
    """Leaving raises an error for a node that cannot be deleted, and deletes it as soon as that is possible.

    Owner nodes are deleted before the registration, so it stays with them.
    """
    with pytest.raises(NoPermissionError) as caught:
        me.deregister()
    assert caught.value.path == path
    assert left_behind(raw) == left
    raw.set_acls(path, OPEN_ACL_UNSAFE)
    me.deregister()
    assert left_behind(raw) == []


SESSION, BEFORE = 7, 100


CARRIED_OUT, NOT_CARRIED_OUT, UNKNOWN = TransactionOutcome


EPHEMERAL, PERSISTENT = Create("/x", b"mine", ephemeral=True), Create("/x", b"mine")


SET, DELETE = Set("/x", b"mine", 3), Delete("/x", 3)


CREATED_AND_SET = FinalChange(PERSISTENT, 1)


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
        # another client has created an ephemeral node instead, or has created the node and not written it
        (PERSISTENT, node(czxid=BEFORE + 1, session=SESSION + 1), NOT_CARRIED_OUT),
        (CREATED_AND_SET, node(czxid=BEFORE + 1, version=0), NOT_CARRIED_OUT),
        (CREATED_AND_SET, node(czxid=BEFORE + 1, version=1), CARRIED_OUT),
        (SET, node(), NOT_CARRIED_OUT),
        (SET, None, UNKNOWN),
        (SET, node(czxid=BEFORE + 1, mzxid=BEFORE + 1, version=4), UNKNOWN),
        # another client has written the node before the request, seen by this client or not
        (SET, node(mzxid=BEFORE, version=4), NOT_CARRIED_OUT),
        (SET, node(b"other", mzxid=BEFORE, version=9), NOT_CARRIED_OUT),
        (SET, node(b"other", mzxid=BEFORE + 1, version=4), NOT_CARRIED_OUT),
        (SET, node(b"other", mzxid=BEFORE + 1, version=3), NOT_CARRIED_OUT),
        # perhaps before the request, perhaps after it
        (SET, node(mzxid=BEFORE + 1, version=5), UNKNOWN),
        (SET, node(b"other", mzxid=BEFORE + 1, version=5), UNKNOWN),
    ],
)
def test_one_operation_is_judged_by_its_node(
    operation: FinalChange | Operation, found: Node | None, outcome: TransactionOutcome
) -> None:
    change = operation if isinstance(operation, FinalChange) else final_changes([operation])["/x"]
    assert outcome_of(change, found, session_id=SESSION, zxid_before=BEFORE) is outcome


NEW, WRITTEN, UNCHANGED = node(czxid=BEFORE + 1), node(mzxid=BEFORE + 1, version=4), node()


LATER = node(mzxid=BEFORE + 2, version=4)


EXISTED, WRITTEN_SINCE = node(b"other"), node(b"other", mzxid=BEFORE + 2, version=5)


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
        ([SET, SET], [WRITTEN, WRITTEN_SINCE], UNKNOWN),
        # a node shows that the request was refused, whatever the others show
        ([SET, SET], [WRITTEN_SINCE, EXISTED], NOT_CARRIED_OUT),
        ([PERSISTENT, SET], [EXISTED, WRITTEN_SINCE], NOT_CARRIED_OUT),
        # one transaction has one zxid: another client has written the same data to one of them
        ([SET, SET], [WRITTEN, LATER], UNKNOWN),
    ],
)
def test_a_transaction_counts_as_carried_out_only_if_all_its_nodes_show_it(
    operations: list[Operation], found: list[Node | None], outcome: TransactionOutcome
) -> None:
    changes = [final_changes([operation])["/x"] for operation in operations]
    assert outcome_of_all(changes, found, session_id=SESSION, zxid_before=BEFORE) is outcome


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
        "/created and written": (Create("/created and written", b"2"), 1),
        "/replaced": (Create("/replaced", b"3"), 0),
        "/written": (Set("/written", b"4", 7), 8),
    }
