"""Failures 2 and 3, rule 3: if any answer or request is lost, everything happens once, and no call raises an error.

A script of all operations of an instance is repeated until the connection was cut at every single request. After
each step the tree must equal the tree after the same step of an undisturbed run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import Transaction

from tests.testing.waiting import eventually
from zkgroups import Instance, Registry, TopicPartition
from zkgroups.deadline import Deadline
from zkgroups.exceptions import ClaimedByOtherError, NotConnectedError, OutcomeUnknownError
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.kazoo_compat.request_queue import LONGEST_QUEUE
from zkgroups.zookeeper.member_instance import MemberInstance
from zkgroups.zookeeper.ownership import claim_partitions, release_partitions
from zkgroups.zookeeper.requests import request_size, run_transaction
from zkgroups.zookeeper.requests.transaction import Create, Delete

from ..releases import needs_multiread
from .conftest import GIVES_UP, Connect
from .events import expire
from .tree import Tree, dump

pytestmark = pytest.mark.zookeeper

P0, P1, P2 = (TopicPartition("orders", n) for n in range(3))


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


Arm = Callable[[TcpProxy, int], Any]

WAYS = [
    pytest.param(lambda proxy, n: proxy.cut_before_reply(n), id="answer lost"),
    pytest.param(lambda proxy, n: proxy.cut_before_request(n), id="request lost"),
    pytest.param(lambda proxy, n: proxy.cut_after_reply(n), id="connection lost in between"),
]


def assert_each_happens_once(
    model: list[Step], registry: Registry, raw: Any, arm: Callable[[Step], Any | None], where: str
) -> None:
    """One run, with the faults that `arm` sets before the steps."""
    doing = steps(registry)
    for expected in model:
        fault = arm(expected)
        assert next(doing) == expected.name
        assert fault is None or fault.wait(), f"{where} of {expected.requests} of {expected.name!r} was never made"
        assert dump(raw) == expected.tree, f"after {expected.name!r}, cut at {where}"
    assert list(doing) == []
    raw.delete("/consumers", recursive=True)


@pytest.mark.parametrize("arm", WAYS)
def test_rule_3_with_a_lost_connection_in_every_step_everything_happens_once(
    arm: Arm, model: list[Step], proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    """The connection is cut once in every step: in the n-th run at the n-th request of the step."""
    assert sum(step.requests for step in model) > 30
    for n in range(1, max(step.requests for step in model) + 1):
        assert_each_happens_once(
            model, proxied, raw, lambda step, n=n: arm(proxy, n) if n <= step.requests else None, f"request {n}"
        )


@pytest.mark.soak
@pytest.mark.parametrize("arm", WAYS)
def test_rule_3_with_one_lost_connection_anywhere_in_a_run_everything_happens_once(
    arm: Arm, model: list[Step], proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    for lost in model:
        for n in range(1, lost.requests + 1):
            assert_each_happens_once(
                model,
                proxied,
                raw,
                lambda step, lost=lost, n=n: arm(proxy, n) if step is lost else None,
                f"request {n} of {lost.name!r}",
            )


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


def test_rule_3_a_deletion_lost_as_the_first_request_of_a_session_is_not_taken_for_done(
    proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    """After an expiry, the client does not know yet which transactions the server had done before."""
    raw.create("/node")
    expire(proxied)
    session = proxied._context.session
    assert eventually(lambda: session.connected and session.id is not None)
    assert not proxied.client.last_zxid
    proxy.cut_before_request(1)
    with suppress(NotConnectedError):
        session.transact([Delete("/node", 0)], deadline=Deadline(30))
        assert raw.exists("/node") is None


def test_rule_3_an_unknown_outcome_is_reported_in_a_lasting_outage(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = impatient.group("billing").instance("me")
    me.register(["orders"])
    claim = me.claim(P0)
    claim.commit(1)
    proxy.cut_before_reply(1)
    proxy.refuse()
    with pytest.raises(OutcomeUnknownError, match="orders/0"):
        claim.commit(2)
    proxy.heal()
    assert raw.get("/consumers/billing/offsets/orders/0")[0] == b"2"


def test_rule_3_a_request_that_timed_out_before_it_was_sent_is_not_sent_later(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = impatient.group("billing").instance("me")
    me.register(["orders"])
    claim = me.claim(P0)
    claim.commit(1)
    proxy.refuse()
    proxy.cut()
    assert eventually(lambda: not impatient.client.connected)
    with pytest.raises(NotConnectedError, match="orders/0 was not changed"):
        claim.commit(2)
    proxy.heal()
    claim.commit(3)  # kazoo sends in the order of the calls, so an earlier commit would have changed the version
    assert raw.get("/consumers/billing/offsets/orders/0")[1].version == 2  # the first commit created and wrote it


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


def test_calls_do_not_block_in_a_long_outage_and_few_requests_are_sent_afterwards(
    proxied: Registry, proxy: TcpProxy
) -> None:
    """Without corrections, kazoo blocks the caller of the 279th request until the outage is over."""
    client = proxied.client
    proxy.refuse()
    proxy.cut()
    assert eventually(lambda: not client.connected)
    asked = [client.exists_async("/") for _ in range(1000)]
    assert sum(not each.ready() for each in asked) == LONGEST_QUEUE
    refused = [each.exception for each in asked if each.ready()]
    assert all(isinstance(error, ConnectionLoss) for error in refused)
    proxy.heal()
    assert all(each.get(timeout=60) for each in asked if not isinstance(each.exception, ConnectionLoss))


def test_calls_in_a_long_outage_take_their_timeout_and_no_longer(impatient: Registry, proxy: TcpProxy) -> None:
    me = impatient.group("billing").instance("me")
    me.register(["orders"])
    claim = me.claim(P0)
    claim.commit(0)
    proxy.refuse()
    proxy.cut()
    assert eventually(lambda: not impatient.client.connected)
    for _ in range(1000):
        impatient.client.exists_async("/")
    with pytest.raises(
        NotConnectedError, match=f"within {GIVES_UP:g} s; /consumers/billing/offsets/orders/0 was not changed"
    ):
        claim.commit(1)
    with pytest.raises(NotConnectedError, match=f"within {GIVES_UP:g} s"):
        impatient.sync()
    impatient.close()
    assert impatient.client._connection.connection_stopped.is_set()


def test_a_claim_with_an_unknown_outcome_can_be_claimed_again_and_is_not_left_behind(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = impatient.group("billing").instance("me")
    me.register(["orders"])
    me.claim(P0).release()
    for again in (True, False):
        proxy.cut_before_reply(1)
        proxy.refuse()
        with pytest.raises(OutcomeUnknownError):
            me.claim(P0)
        proxy.heal()
        assert raw.exists("/consumers/billing/owners/orders/0")
        if again:
            with me.claim(P0, timeout=30) as claim:
                assert claim.verify()
    me.deregister()
    assert raw.get_children("/consumers/billing/owners/orders") == []
    assert raw.get_children("/consumers/billing/ids") == []


@needs_multiread
def test_claims_with_unknown_outcomes_are_cleaned_up_together(impatient: Registry, proxy: TcpProxy, raw: Any) -> None:
    me = impatient.group("billing").instance("me")
    me.register(["orders"])
    me.claim(P0).release()
    many = [TopicPartition("orders", n) for n in range(100)]
    proxy.cut_before_reply(1)
    proxy.refuse()
    with pytest.raises(OutcomeUnknownError):
        me.claim_many(many)
    proxy.heal()
    assert eventually(lambda: impatient.client.connected)
    before = proxy.requests
    claims = me.claim_many(many)
    assert proxy.requests - before < len(many)
    assert claims.verify() == many


@pytest.mark.parametrize("release", ["claim", "release", "deregister", "hold"])
def test_partitions_whose_release_failed_are_not_held_and_can_be_claimed_again(
    impatient: Registry,
    proxy: TcpProxy,
    connect: Connect,
    raw: Any,
    monkeypatch: pytest.MonkeyPatch,
    release: str,
) -> None:
    """There are two transactions. Another instance has claimed the partition of the second one."""
    monkeypatch.setattr(request_size, "MAX_BATCH_OPERATIONS", 2)
    other = connect().group("billing").instance("other")
    other.register(["orders"])
    other.claim(P2)
    me = MemberInstance(impatient.group("billing").paths, impatient._context, "me")
    me.register(["orders"])

    def lose_the_connection(*arguments: Any) -> None:
        proxy.refuse()
        proxy.cut()
        assert eventually(lambda: not impatient.client.connected)
        release_partitions.release_partitions(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(claim_partitions, "release_partitions", lose_the_connection)
        with pytest.raises(ClaimedByOtherError) as caught:
            me.claim_many([P0, P1, P2])
    assert not me.claims
    assert any("2 of 2 partitions" in note for note in caught.value.__notes__)
    assert sorted(raw.get_children("/consumers/billing/owners/orders")) == ["0", "1", "2"]
    proxy.heal()
    assert eventually(lambda: impatient.client.connected)
    other.release_all()
    if release == "claim":
        assert me.claim_many([P0, P1, P2]).verify() == [P0, P1, P2]
        return
    if release == "hold":  # as a member does, which reads its own partitions
        assert set(me.find_owners([P0, P1], {"me", "other"})[0]) == {P0, P1}
        assert me.claim(P2).verify()
        assert len(me.claims_on(list(me.claims)).verify()) == 3
        return
    me.release_all() if release == "release" else me.deregister()
    assert raw.get_children("/consumers/billing/owners/orders") == []
