"""Attempts to break rules 1 and 2: nodes that an instance owns, and nodes that it may delete."""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups import Consumergroup, Registry
from zkgroups.exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    ClaimedByOtherError,
    GuardFailedError,
    NotClaimedError,
    NotRegisteredError,
    OutcomeUnknownError,
)
from zkgroups.testing import TcpProxy

from .conftest import Connect
from .events import expire
from .rules import ME, OWNER, P0, member

pytestmark = pytest.mark.zookeeper


# Rule 1


def test_rule_1_a_node_with_my_id_of_another_session_is_not_mine(registry: Registry, raw: Any) -> None:
    me = member(registry)
    raw.create(OWNER, b"me", ephemeral=True, makepath=True)
    with pytest.raises(ClaimedByOtherError) as caught:
        me.claim(P0)
    assert caught.value.owner.session == raw.client_id[0]
    assert me.claims == {}


def test_rule_1_a_claim_whose_node_was_recreated_by_another_session_with_my_id_does_not_verify(
    registry: Registry, raw: Any
) -> None:
    claim = member(registry).claim(P0)
    assert claim.verify()
    raw.delete(OWNER)
    raw.create(OWNER, b"me", ephemeral=True)
    assert not claim.verify()


def test_rule_1_a_claim_whose_node_was_overwritten_is_refused_and_can_be_claimed_again(
    registry: Registry, raw: Any
) -> None:
    me = member(registry)
    claim = me.claim(P0)
    raw.set(OWNER, b"somebody else")
    with pytest.raises(NotClaimedError):
        claim.commit(5)
    me.claim(P0).commit(6)
    raw.set(OWNER, b"somebody else")
    assert not me.claims[P0].verify()
    me.deregister()
    assert not raw.exists(OWNER)


def test_rule_1_my_id_registered_by_another_session_is_not_my_registration(registry: Registry, raw: Any) -> None:
    raw.create(ME, b"{}", ephemeral=True, makepath=True)
    me = registry.group("billing").instance("me")
    with pytest.raises(AlreadyRegisteredError) as caught:
        me.register(["orders"])
    assert caught.value.session == raw.client_id[0]
    with pytest.raises(NotRegisteredError):
        me.claim(P0)


# Rule 2


def test_rule_2_release_keeps_a_node_recreated_by_another_client(registry: Registry, raw: Any) -> None:
    claim = member(registry).claim(P0)
    registry.group("billing").release(P0, expected_owner="me")
    raw.create(OWNER, b"other", ephemeral=True)  # version 0, as ours was
    claim.release()
    assert raw.get(OWNER)[0] == b"other"


def test_rule_2_release_after_the_session_expired_keeps_nodes_of_the_next_session(registry: Registry, raw: Any) -> None:
    me = member(registry)
    claim = me.claim(P0)
    expire(registry)
    raw.create(OWNER, b"me", ephemeral=True)  # same id, same version
    claim.release()
    me.deregister()
    assert raw.get(OWNER)[1].ephemeralOwner == raw.client_id[0]


def test_rule_2_deregister_after_the_session_expired_keeps_the_successor_with_the_same_id(
    registry: Registry, raw: Any
) -> None:
    me = member(registry)
    expire(registry)
    raw.create(ME, b"{}", ephemeral=True)
    me.deregister()
    assert raw.exists(ME)


def test_rule_2_deregister_keeps_a_registration_recreated_by_hand_and_changed(registry: Registry, raw: Any) -> None:
    me = member(registry)
    me.update(["orders", "refunds"])
    raw.delete(ME)
    raw.create(ME, b"{}", ephemeral=True)
    me.deregister()
    assert raw.exists(ME)


def test_rule_2_an_administrative_release_needs_the_expected_owner_and_session(
    registry: Registry, raw: Any, group: Consumergroup
) -> None:
    member(registry).claim(P0)
    session = registry.session_id
    assert session is not None
    with pytest.raises(GuardFailedError, match="not by 'other'"):
        group.release(P0, expected_owner="other")
    with pytest.raises(GuardFailedError, match="not by session"):
        group.release(P0, expected_owner="me", expected_session=session + 1)
    assert raw.exists(OWNER)
    assert group.release(P0, expected_owner="me", expected_session=session).session == session
    assert not raw.exists(OWNER)
    with pytest.raises(NotClaimedError, match="not claimed by any instance"):
        group.release(P0, expected_owner="me")


def test_rule_2_an_administrative_release_accepts_the_instance_of_a_stream_as_owner(
    registry: Registry, raw: Any, group: Consumergroup
) -> None:
    member(registry)
    foreign = registry.client
    foreign.create(OWNER, b"me-0", ephemeral=True, makepath=True)
    group.release(P0, expected_owner="me")
    assert not raw.exists(OWNER)
    assert raw.get(ME)[1].version == 1  # so that the holder's next commit is refused


def test_rule_2_a_claim_made_after_an_unknown_outcome_is_not_deleted_as_a_leftover(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = member(impatient)
    me.claim(P0).release()
    proxy.drop(direction="requests")
    with pytest.raises(OutcomeUnknownError):
        me.claim(P0)
    proxy.heal()
    claim = me.claim(P0, timeout=10)
    owner = raw.get(OWNER)[1].czxid
    with pytest.raises(AlreadyClaimedError):
        me.claim(P0)
    assert raw.get(OWNER)[1].czxid == owner
    assert claim.verify()


def test_rule_2_without_a_registration_a_partition_that_was_released_and_claimed_since_is_not_released(
    registry: Registry, raw: Any, connect: Connect
) -> None:
    me, others = member(registry), connect().group("billing")
    claim = me.claim(P0)
    raw.delete(ME)
    with pytest.raises(NotRegisteredError):
        claim.commit(9)
    others.release(P0, expected_owner=me.id)
    with others.instance("other") as other:
        other.register(["orders"])
        next_claim = other.claim(P0)
        me.deregister()
        assert next_claim.verify()
