"""Two threads use one instance while the outcome of a request is unknown: neither takes the nodes of the other for
its own.

Each test forces the order of requests in which an earlier version failed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups import Claim, Instance, Registration, Registry
from zkgroups.exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    NotClaimedError,
    NotConnectedError,
    OutcomeUnknownError,
)
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.ownership.resume_claims import find_owners

from .conftest import Connect
from .events import after_the_next_read, attempt, expire
from .late_answers import PATIENCE, Announcing, Late, a_transaction
from .leaving import left_behind
from .rules import ME, OFFSET, OWNER, P0, P1, member
from .unknown import connected_again, unknown

pytestmark = pytest.mark.zookeeper

ORDERS = Registration({"orders": 1})


def test_rule_3_a_registration_is_kept_if_the_outcome_of_a_second_one_is_unknown(
    impatient: Registry, proxy: TcpProxy, raw: Any, late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient.group("billing").create()
    me = impatient.group("billing").instance("me")
    lock = Announcing()
    monkeypatch.setattr(me._ownership, "_registration_lock", lock)
    answer = late(impatient, a_transaction)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(attempt, lambda: me.register(ORDERS))
        answer.wait()
        fault = proxy.cut_before_reply(1)
        proxy.refuse()
        second = pool.submit(attempt, lambda: me.register(ORDERS))
        assert eventually(lambda: lock.awaited.is_set() or fault.fired)
        answer.deliver()
        assert isinstance(first.result(PATIENCE), Registration)
        assert isinstance(second.result(PATIENCE), AlreadyRegisteredError)
    connected_again(impatient, proxy)
    me.release_all()
    assert me.registered
    assert raw.exists(ME)


def test_rule_1_a_claim_is_held_or_its_node_may_be_deleted_but_not_both_after_a_release_that_changed_nothing(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    """Claiming again has an unknown outcome, and the release that another thread begins meanwhile cannot connect."""
    me = member(impatient)
    claim = me.claim(P0)
    created = raw.exists(OWNER).czxid
    fault = proxy.cut_before_reply(1)
    proxy.refuse()
    with ThreadPoolExecutor() as pool:
        again = pool.submit(attempt, lambda: me.claim(P0))
        assert fault.wait(PATIENCE)
        assert eventually(lambda: not impatient.client.connected)
        release = pool.submit(attempt, claim.release)
        assert isinstance(again.result(PATIENCE), OutcomeUnknownError)
        assert isinstance(release.result(PATIENCE), NotConnectedError)
    connected_again(impatient, proxy)
    with pytest.raises(AlreadyClaimedError):
        me.claim(P0)
    assert claim.verify()
    assert raw.exists(OWNER).czxid == created


def test_rule_1_releasing_an_earlier_claim_does_not_delete_the_node_of_a_later_one_of_the_same_session(
    impatient: Registry, proxy: TcpProxy, raw: Any, late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = member(impatient)
    earlier = me.claim(P0)
    unknown(earlier.release, impatient, proxy)
    lock = Announcing()
    monkeypatch.setattr(earlier._node, "_lock", lock)
    answer = late(impatient, a_transaction)
    with ThreadPoolExecutor() as pool:
        later = pool.submit(attempt, lambda: me.claim(P0))
        answer.wait()
        release = pool.submit(attempt, earlier.release)
        assert eventually(lambda: lock.awaited.is_set() or release.done())
        answer.deliver()
        claim = later.result(PATIENCE)
        assert release.result(PATIENCE) is None
    assert isinstance(claim, Claim)
    assert claim.held
    assert raw.exists(OWNER)


def test_rule_4_a_claim_is_fenced_if_it_was_taken_away_before_another_thread_read_the_registration(
    registry: Registry, connect: Connect, raw: Any, late: Late
) -> None:
    me = member(registry)
    other = me.claim(P1)
    answer = late(registry, a_transaction)
    with ThreadPoolExecutor() as pool:
        claiming = pool.submit(attempt, lambda: me.claim(P0))
        answer.wait()
        connect().group("billing").release(P0, expected_owner="me")
        other.commit(3)  # finds that the registration was rewritten
        answer.deliver()
        claim = claiming.result(PATIENCE)
    assert isinstance(claim, Claim)
    successor = member(connect(), "successor").claim(P0)
    with pytest.raises(NotClaimedError):
        claim.commit(9)
    assert raw.exists(OFFSET) is None
    assert not claim.held
    assert successor.verify()


def test_rule_2_a_release_does_not_touch_a_successor_if_another_thread_notices_that_the_claim_was_taken_away(
    registry: Registry, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = member(registry)
    claim, other = me.claim(P0), me.claim(P1)
    current_among, successors = me._ownership.current_among, list[Claim]()

    def current_then_taken(nodes: Any) -> Any:
        found = current_among(nodes)
        if found and not successors:
            connect().group("billing").release(P0, expected_owner="me")
            successors.append(member(connect(), "successor").claim(P0))
            other.commit(3)
        return found

    monkeypatch.setattr(me._ownership, "current_among", current_then_taken)
    claim.release()
    assert successors[0].verify()


@pytest.mark.parametrize("call", [Instance.release_all, Instance.deregister, lambda me: attempt(lambda: me.claim(P0))])
def test_rule_2_deleting_a_leftover_node_does_not_touch_a_successor_that_got_the_partition_meanwhile(
    impatient: Registry,
    proxy: TcpProxy,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Instance], object],
) -> None:
    me = member(impatient)
    me.claim(P0).release()
    unknown(lambda: me.claim(P0), impatient, proxy)
    successors: list[Claim] = []

    def take_away() -> None:
        connect().group("billing").release(P0, expected_owner="me")
        successors.append(member(connect(), "successor").claim(P0))

    after_the_next_read(take_away, monkeypatch)
    call(me)
    assert successors[0].verify()


def test_rule_1_a_claim_is_not_held_if_it_was_read_before_a_release_with_an_unknown_outcome(
    impatient: Registry, proxy: TcpProxy, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = member(impatient)
    claim = me.claim(P0)
    after_the_next_read(lambda: unknown(claim.release, impatient, proxy), monkeypatch)
    find_owners(me._ownership, [P0], ["me"])
    assert raw.exists(OWNER) is None
    assert not claim.held


def test_rule_2_an_instance_does_not_delete_the_claim_of_another_one_of_its_session_that_got_the_partition(
    registry: Registry, connect: Connect, raw: Any, late: Late
) -> None:
    """The version of the first claim is unknown, because another thread has updated the registration meanwhile."""
    me, successor = member(registry), member(registry, "successor")
    other = me.claim(P1)
    answer = late(registry, a_transaction)
    with ThreadPoolExecutor() as pool:
        claiming = pool.submit(attempt, lambda: me.claim(P0))
        answer.wait()
        me.update(["refunds"])
        answer.deliver()
        assert isinstance(claiming.result(PATIENCE), Claim)
    connect().group("billing").release(P0, expected_owner="me")
    claim = successor.claim(P0)
    other.commit(3)  # finds that P0 was taken away
    me.release_all()
    assert raw.exists(OWNER)
    assert claim.verify()


def test_deregistering_deletes_a_registration_with_an_unknown_outcome_also_after_an_earlier_session_has_expired(
    impatient: Registry, proxy: TcpProxy, zookeeper: Any, raw: Any
) -> None:
    me = member(impatient)
    expire(impatient, zookeeper.address)
    impatient.groups()  # a new session begins with a read
    unknown(lambda: me.register(ORDERS), impatient, proxy)
    assert raw.exists(ME)
    me.deregister()
    assert left_behind(raw) == []
