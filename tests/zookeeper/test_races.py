"""Races between two threads of one process, and with an administrator.

Each test forces the order of requests in which an earlier version failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups import Claim, Instance, Registration, Registry
from zkgroups.exceptions import (
    AlreadyRegisteredError,
    NotClaimedError,
    NotConnectedError,
    NotRegisteredError,
    OutcomeUnknownError,
)
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.ownership.registration_fence import RegistrationVersion
from zkgroups.zookeeper.requests import request_size

from .conftest import Connect
from .events import attempt, expire
from .late_answers import PATIENCE, Announcing, Late, a_look_at_the_registration, a_transaction
from .leaving import OWNERS, left_behind
from .rules import ME, OFFSET, OWNER, P0, P1, member
from .unknown import connected_again, unknown

pytestmark = pytest.mark.zookeeper


# An update of the same bytes


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations contain the time. Here they must be equal byte by byte."""
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize(
    ("arm", "outcome"),
    [
        pytest.param(lambda proxy: proxy.cut_before_request(1), Registration, id="request lost"),
        pytest.param(lambda proxy: proxy.cut_before_reply(1), OutcomeUnknownError, id="answer lost"),
    ],
)
def test_rule_4_a_rewrite_by_an_administrator_is_not_taken_for_an_own_lost_update_with_the_same_bytes(
    arm: Callable[[TcpProxy], Any],
    outcome: type,
    proxied: Registry,
    proxy: TcpProxy,
    registry: Registry,
    connect: Connect,
    raw: Any,
) -> None:
    me = member(proxied)
    claim = me.claim(P0)
    claim.commit(5)
    written = raw.get(ME)[0]
    fault = arm(proxy)
    proxy.refuse()
    with ThreadPoolExecutor() as pool:
        update = pool.submit(attempt, lambda: me.update(["orders"]))
        assert fault.wait()
        successor = take_away(registry, connect)
        proxy.heal()
        assert isinstance(update.result(PATIENCE), outcome)
    assert raw.get(ME)[0] == written
    refused_after(successor, claim, raw)


@pytest.mark.usefixtures("still")
def test_rule_4_a_rewrite_by_an_administrator_is_not_taken_for_an_own_update_whose_refusal_was_lost(
    proxied: Registry, proxy: TcpProxy, registry: Registry, connect: Connect, raw: Any
) -> None:
    """The update is refused as too late. The visible state is the same as if it had been carried out."""
    me = member(proxied)
    claim = me.claim(P0)
    claim.commit(5)
    successor = take_away(registry, connect)
    fault = proxy.cut_before_reply(1)
    me.update(["orders"])
    assert fault.fired
    assert raw.get(ME)[1].version == 1
    refused_after(successor, claim, raw)


def take_away(administrator: Registry, connect: Connect) -> Claim:
    """Release the partition, and give it to a successor whose owner node has the same version as the previous one."""
    administrator.group("billing").release(P0, expected_owner="me")
    successor = member(connect(), "successor").claim(P0)
    successor.commit(6)
    return successor


def refused_after(successor: Claim, claim: Claim, raw: Any) -> None:
    with pytest.raises(NotClaimedError):
        claim.commit(9)
    assert raw.get(OFFSET)[0] == b"6"
    assert not claim.held
    assert successor.verify()


# A slow read


def test_a_late_read_of_an_older_registration_does_not_replace_a_newer_one_of_the_same_session(
    registry: Registry, raw: Any, late: Late
) -> None:
    me = member(registry)
    raw.delete(ME)
    look = late(registry, a_look_at_the_registration)
    with ThreadPoolExecutor() as pool:
        update = pool.submit(attempt, lambda: me.update(["refunds"]))
        look.wait()  # it has read that the registration is missing
        me.deregister()
        me.register(["orders"])
        look.deliver()
        assert isinstance(update.result(PATIENCE), Registration)
    is_registered(me, "refunds")
    me.deregister()
    assert left_behind(raw) == []


def test_a_late_read_in_an_expired_session_does_not_replace_the_registration_of_the_next(
    registry: Registry, raw: Any, late: Late
) -> None:
    me = member(registry)
    raw.delete(ME)
    look = late(registry, a_look_at_the_registration)
    with ThreadPoolExecutor() as pool:
        update = pool.submit(attempt, lambda: me.update(["refunds"]))
        look.wait()
        expire(registry)
        me.register(["orders"])
        look.deliver()
        assert isinstance(update.result(PATIENCE), Registration)
    is_registered(me, "refunds")
    me.deregister()
    assert left_behind(raw) == []


def is_registered(me: Instance, topic: str) -> None:
    assert me.registered
    assert dict(me.registration().streams) == {topic: 1}
    assert me.claim(P0).verify()


def test_rule_4_the_version_of_an_older_registration_is_not_taken_for_that_of_a_newer_one(
    registry: Registry, connect: Connect, raw: Any, late: Late
) -> None:
    """An administrator brings the new registration to the version of the old one. The change must be noticed."""
    me = member(registry)
    answer = late(registry, a_transaction)
    with ThreadPoolExecutor() as pool:
        update = pool.submit(attempt, lambda: me.update(["refunds"]))
        answer.wait()
        assert raw.get(ME)[1].version == 1
        me.deregister()
        me.register(["orders"])
        claim = me.claim(P0)
        claim.commit(5)
        answer.deliver()
        assert isinstance(update.result(PATIENCE), Registration)
    successor = take_away(connect(), connect)
    refused_after(successor, claim, raw)


# A claim during a deregistration, and the reverse


@pytest.fixture
def both(registry: Registry, monkeypatch: pytest.MonkeyPatch, late: Late) -> Callable[..., tuple[object, object]]:
    """Carry out the second call during the first: after the answer to its first transaction, until it ends or waits."""

    def both(me: Instance, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[object, object]:
        lock = Announcing()
        monkeypatch.setattr(me._ownership, "_registration_lock", lock)
        answer = late(registry, a_transaction)
        with ThreadPoolExecutor() as pool:
            one = pool.submit(attempt, first)
            answer.wait()
            two = pool.submit(attempt, second)
            assert eventually(lambda: lock.awaited.is_set() or two.done())
            answer.deliver()
            return one.result(PATIENCE), two.result(PATIENCE)

    return both


def test_a_deregistration_during_a_claim_releases_the_claim(
    both: Callable[..., tuple[object, object]], registry: Registry, raw: Any
) -> None:
    me = member(registry)
    me.claim(P0).release()
    claim, left = both(me, lambda: me.claim(P0), me.deregister)
    assert isinstance(claim, Claim)
    assert left is None
    assert not claim.held
    assert left_behind(raw) == []


def test_a_claim_during_a_deregistration_is_refused(
    both: Callable[..., tuple[object, object]], registry: Registry, raw: Any
) -> None:
    me = member(registry)
    me.claim(P1)
    left, claim = both(me, me.deregister, lambda: me.claim(P0))
    assert left is None
    assert isinstance(claim, NotRegisteredError)
    assert left_behind(raw) == []


# Releases


def test_rule_4_claims_released_before_the_connection_was_lost_are_not_held(
    impatient: Registry, proxy: TcpProxy, connect: Connect, raw: Any, late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_size, "MAX_BATCH_OPERATIONS", 1)
    successor = member(connect(), "successor")
    claims = member(impatient).claim_many([P0, P1])
    proxy.cut_after_reply(1)
    proxy.refuse()
    answer = late(impatient, a_transaction)
    with ThreadPoolExecutor() as pool:
        release = pool.submit(attempt, claims.release)
        answer.wait()
        assert eventually(lambda: not impatient.client.connected)
        answer.deliver()
        assert isinstance(release.result(PATIENCE), NotConnectedError)
    proxy.heal()
    theirs = successor.claim(P0)
    assert eventually(lambda: impatient.client.connected)
    with pytest.raises(NotClaimedError):
        claims[P0].commit(5)
    claims.release()
    assert raw.exists(OFFSET) is None
    assert theirs.verify()
    assert raw.get_children(OWNERS) == ["0"]


def test_rule_2_deregistering_again_after_an_unknown_outcome_leaves_the_successor_of_the_same_id(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = member(impatient)
    proxy.cut_before_reply(1)
    proxy.refuse()
    with pytest.raises(OutcomeUnknownError):
        me.deregister()
    proxy.heal()
    raw.create(ME, b"{}", ephemeral=True)
    assert eventually(lambda: impatient.client.connected)
    assert not me.registered
    with pytest.raises(NotRegisteredError):
        me.claim(P0)
    me.deregister()
    assert raw.get(ME)[1].ephemeralOwner == raw.client_id[0]


def test_rule_2_deregistering_again_does_not_delete_the_registration_of_another_instance_with_the_same_id(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = member(impatient)
    proxy.cut_before_reply(1)
    proxy.refuse()
    with pytest.raises(OutcomeUnknownError):
        me.deregister()
    proxy.heal()
    assert eventually(lambda: impatient.client.connected)
    other = member(impatient)
    claim = other.claim(P0)
    me.deregister()
    assert raw.exists(ME)
    claim.commit(1)


def test_rule_2_deregistering_again_does_not_delete_the_claim_of_another_instance_with_the_same_id(
    impatient: Registry, proxy: TcpProxy, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first instance does not know whether it has claimed P0, nor whether it is registered."""
    me = member(impatient)
    me.claim(P0).release()
    fault = proxy.cut_before_request(1)
    proxy.refuse()
    with pytest.raises(OutcomeUnknownError):
        me.claim(P0)
    assert fault.fired
    connected_again(impatient, proxy)
    delete = me._ownership.fence.delete

    def delete_unknown(registration: RegistrationVersion) -> None:
        proxy.cut_before_reply(1)
        proxy.refuse()
        delete(registration)

    with monkeypatch.context() as patch:
        patch.setattr(me._ownership.fence, "delete", delete_unknown)
        with pytest.raises(OutcomeUnknownError):
            me.deregister()
    connected_again(impatient, proxy)
    claim = member(impatient).claim(P0)
    me.deregister()
    assert raw.exists(OWNER)
    assert claim.verify()


def test_rule_2_an_instance_with_an_unknown_registration_does_not_delete_that_of_another_with_the_same_id(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    impatient.group("billing").create()
    first, second = impatient.group("billing").instance("me"), impatient.group("billing").instance("me")
    subscription = Registration({"orders": 1})
    unknown(lambda: first.register(subscription), impatient, proxy)
    second.register(subscription)
    with pytest.raises(AlreadyRegisteredError):
        first.register(subscription)
    first.deregister()
    assert raw.exists(ME)
    second.claim(P0).commit(1)


def test_rule_4_an_instance_that_could_not_read_its_claims_after_registering_again_commits_only_to_claims_it_holds(
    impatient: Registry, proxy: TcpProxy, connect: Connect, registry: Registry, raw: Any
) -> None:
    me = member(impatient)
    claim = me.claim(P0)
    claim.commit(5)
    raw.delete(ME)
    with pytest.raises(NotRegisteredError):
        me.claim(P1)
    successor = take_away(registry, connect)
    proxy.cut_before_request(2)
    proxy.refuse()
    with pytest.raises(NotConnectedError):
        me.register(["orders"])
    proxy.heal()
    assert raw.exists(ME)
    assert eventually(lambda: impatient.client.connected)
    refused_after(successor, claim, raw)
    me.deregister()
    assert raw.exists(ME) is None
