"""Attempts to break rule 4: a commit without a live session and claim."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from zkgroups import Claim, Registry
from zkgroups.deadline import Deadline
from zkgroups.exceptions import (
    NotClaimedError,
    NotRegisteredError,
    OutcomeUnknownError,
    SessionLostError,
)
from zkgroups.testing import TcpProxy, expire_session
from zkgroups.zookeeper.requests.transaction import Create

from .conftest import Connect
from .events import after_the_next_read, attempt, expire
from .rules import ME, OFFSET, OWNER, P0, P1, member, session_of

pytestmark = [pytest.mark.zookeeper, pytest.mark.oldest]


# Rule 4


@pytest.mark.parametrize("committed", [True, False], ids=["an offset exists", "no offset exists yet"])
def test_rule_4_a_claim_of_an_expired_session_commits_nothing_even_if_the_successor_has_the_same_nodes(
    registry: Registry, raw: Any, committed: bool
) -> None:
    claim = member(registry).claim(P0)
    if committed:
        claim.commit(5)
    expire(registry)
    raw.create(ME, b"{}", ephemeral=True)
    raw.ensure_path("/consumers/billing/owners/orders")
    raw.create(OWNER, b"me", ephemeral=True)  # same id, same versions: no check can tell
    with pytest.raises(SessionLostError):
        claim.commit(9)
    assert not claim.held
    assert raw.exists(OFFSET) is None if not committed else raw.get(OFFSET)[0] == b"5"


@pytest.mark.parametrize("committed", [True, False], ids=["an offset exists", "no offset exists yet"])
def test_rule_4_a_commit_queued_while_its_session_expires_is_not_sent_in_the_next_session(
    zookeeper: Any, proxied: Registry, proxy: TcpProxy, raw: Any, committed: bool
) -> None:
    """The request is queued in kazoo when the session expires. It is checked once more when it is serialised."""
    claim = member(proxied).claim(P0)
    if committed:
        claim.commit(5)
    proxied.group("billing").offsets.set(P1, 1)
    proxy.refuse()
    proxy.cut()
    outcome: list[object] = []
    late = threading.Thread(target=lambda: outcome.append(attempt(lambda: claim.commit(9))))
    late.start()
    expire_session(proxied.client, client_id=session_of(proxied), address=zookeeper.address)
    raw.create(ME, b"{}", ephemeral=True)
    raw.create(OWNER, b"me", ephemeral=True)
    proxy.heal()
    late.join(30)
    assert [type(found) for found in outcome] == [SessionLostError]
    assert raw.get(OFFSET)[0] == b"5" if committed else raw.exists(OFFSET) is None


def test_rule_4_a_request_is_not_sent_in_a_session_other_than_its_own(registry: Registry, raw: Any) -> None:
    """The innermost fence, for requests queued while one session expires and the next begins."""
    session, old = registry._context.session, registry.session_id
    expire(registry)
    with pytest.raises(SessionLostError):
        session.transact([Create("/x")], session_id=old, deadline=Deadline(30))
    assert raw.exists("/x") is None
    session.transact([Create("/x")], session_id=registry.session_id, deadline=Deadline(30))
    assert raw.exists("/x")


def test_rule_4_a_claim_of_an_expired_session_stays_invalid_after_registering_and_claiming_again(
    registry: Registry, raw: Any
) -> None:
    me = member(registry)
    old = me.claim(P0)
    old.commit(5)
    expire(registry)
    me.register(["orders"])
    new = me.claim(P0)
    new.commit(7)
    with pytest.raises(SessionLostError):
        old.commit(8)
    old.release()
    assert new.verify()
    assert raw.get(OFFSET)[0] == b"7"


def test_rule_4_after_an_administrative_release_the_former_owner_commits_nothing(
    registry: Registry, connect: Connect, raw: Any
) -> None:
    claim = member(registry).claim(P0)
    claim.commit(5)
    registry.group("billing").release(P0, expected_owner="me")
    other = member(connect(), "other").claim(P0)
    with pytest.raises(NotClaimedError):
        claim.commit(9)
    assert raw.get(OFFSET)[0] == b"5"
    other.commit(6)
    assert raw.get(OFFSET)[0] == b"6"


def test_rule_4_an_administrative_release_between_two_reads_is_noticed(
    registry: Registry, connect: Connect, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed check, the owner node is still the own one. It is not adopted under a later registration."""
    me = member(registry)
    claim = me.claim(P0)
    claim.commit(5)
    raw.set(ME, raw.get(ME)[0])  # the next check fails

    def take_away() -> None:
        connect().group("billing").release(P0, expected_owner="me")
        raw.create(OWNER, b"other-0", ephemeral=True)  # the version is that of the own node

    after_the_next_read(take_away, monkeypatch)
    with pytest.raises(NotClaimedError):
        claim.commit(9)
    assert raw.get(OFFSET)[0] == b"5"


def test_rule_4_an_administrative_release_of_one_partition_keeps_the_other_claims_of_the_owner(
    registry: Registry, raw: Any
) -> None:
    claims = member(registry).claim_many([P0, P1])
    registry.group("billing").release(P0, expected_owner="me")
    claims[P1].commit(3)
    assert raw.get("/consumers/billing/offsets/orders/1")[0] == b"3"
    assert not claims[P0].held
    assert claims[P1].held


def test_rule_4_a_released_claim_commits_nothing(registry: Registry, raw: Any) -> None:
    claim = member(registry).claim(P0)
    claim.release()
    with pytest.raises(NotClaimedError):
        claim.commit(9)
    with pytest.raises(NoNodeError):
        raw.get(OFFSET)


def test_rule_4_a_claim_whose_owner_node_was_deleted_commits_nothing(registry: Registry, raw: Any) -> None:
    claims = member(registry).claim_many([P0, P1])
    raw.delete(OWNER)
    with pytest.raises(NotClaimedError, match="orders/0"):
        claims.commit({P0: 9, P1: 9})
    assert raw.exists(OFFSET) is None
    claims.commit({P1: 9})


def test_rule_4_without_a_registration_nothing_is_committed(registry: Registry, raw: Any) -> None:
    claim = member(registry).claim(P0)
    raw.delete(ME)
    with pytest.raises(NotRegisteredError):
        claim.commit(9)
    assert raw.exists(OFFSET) is None


def test_rule_4_a_missing_registration_is_not_replaced_by_that_of_another_client(registry: Registry, raw: Any) -> None:
    me = member(registry)
    claim = me.claim(P0)
    raw.delete(ME)
    with pytest.raises(NotRegisteredError):
        me.claim(P1)
    raw.create(ME, b"{}", ephemeral=True)
    for act in (lambda: me.claim(P1), lambda: claim.commit(9), lambda: me.update(["orders"])):
        with pytest.raises(NotRegisteredError):
            act()
    assert raw.get_children("/consumers/billing/owners/orders") == ["0"]
    assert raw.exists(OFFSET) is None
    me.deregister()
    assert raw.get_children("/consumers/billing/owners/orders") == []
    assert raw.get(ME)[1].ephemeralOwner == raw.client_id[0]


def test_rule_4_an_instance_whose_registration_was_deleted_by_hand_registers_again_and_keeps_its_claims(
    registry: Registry, raw: Any
) -> None:
    me = member(registry)
    claim = me.claim(P0)
    raw.delete(ME)
    with pytest.raises(NotRegisteredError):
        claim.commit(1)
    me.register(["orders"])
    claim.commit(1)
    assert raw.get(OFFSET)[0] == b"1"


def test_threads_that_claim_one_partition_through_one_instance_claim_it_once(registry: Registry) -> None:
    me = member(registry)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(attempt(lambda: me.claim(P0)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(outcome).__name__ for outcome in found) == ["AlreadyClaimedError"] * 7 + ["Claim"]


# Races and lost replies


def script(*steps: Any) -> list[object]:
    """Run the steps at once, each in its own thread. Return their results or errors."""
    found: list[object] = [None] * len(steps)
    threads = [
        threading.Thread(target=lambda n=n, step=step: found.__setitem__(n, attempt(step)))
        for n, step in enumerate(steps)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_rule_4_a_commit_retried_while_another_thread_releases_does_not_change_the_successors_offset(
    proxied: Registry, proxy: TcpProxy, connect: Connect, raw: Any
) -> None:
    """The owner node of the successor may have the same version, so a release waits for a commit in progress."""
    successor = member(connect(), "successor")
    for _ in range(30):
        me = member(proxied)
        claim = me.claim(P0)
        committed = claim.fetch()
        offset = committed.offset if committed else 0
        claim.commit(offset)
        proxy.cut_before_request(1)
        found = script(
            lambda claim=claim, offset=offset: claim.commit(offset + 1),
            lambda claim=claim: claim.release(),
            lambda: successor.claim(P0, timeout=20),
        )
        theirs = found[2]
        assert isinstance(theirs, Claim), found
        assert found[0] is None or isinstance(found[0], NotClaimedError), found
        data, stat = raw.get(OFFSET)
        too_late = stat.mzxid > raw.get(OWNER)[1].czxid
        assert not (data == b"%d" % (offset + 1) and too_late), "committed on the successor's partition"
        theirs.release()
        me.deregister()
        proxy.heal()


def test_rule_4_after_a_release_with_an_unknown_outcome_the_claim_is_not_held_and_commits_nothing(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = member(impatient)
    claim = me.claim(P0)
    claim.commit(5)
    proxy.cut_before_reply(1)
    proxy.refuse()
    with pytest.raises(OutcomeUnknownError):
        claim.release()
    proxy.heal()
    raw.create(OWNER, b"other", ephemeral=True)
    assert not claim.held
    with pytest.raises(NotClaimedError):
        claim.commit(6)
    assert raw.get(OFFSET)[0] == b"5"
    claim.release()
    assert raw.get(OWNER)[0] == b"other"


def test_rule_4_after_registering_again_only_claims_that_still_exist_are_held(registry: Registry, raw: Any) -> None:
    me = member(registry)
    claim = me.claim(P0)
    raw.delete(ME)
    raw.delete(OWNER)
    raw.create(OWNER, b"other", ephemeral=True)
    with pytest.raises(NotRegisteredError):
        claim.commit(1)
    me.register(["orders"])
    assert not claim.held
    with pytest.raises(NotClaimedError):
        claim.commit(1)


def test_rule_4_an_administrative_release_rewrites_all_registrations(registry: Registry, raw: Any) -> None:
    other = member(registry, "other")
    other.claim(P1)
    member(registry).claim(P0)
    registry.group("billing").release(P0, expected_owner="me")
    assert raw.get("/consumers/billing/ids/other")[1].version == 1
