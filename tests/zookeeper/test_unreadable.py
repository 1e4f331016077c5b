"""Nodes that may be written but not read, after a lost answer: the outcome is unknown.

It is reported, and the node is not forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.security import OPEN_ACL_UNSAFE

from zkgroups import Acl, AclPolicy, Instance, Registry
from zkgroups.exceptions import NoPermissionError, NotClaimedError, OutcomeUnknownError
from zkgroups.testing import TcpProxy

from .conftest import LONG_SESSION, Connect
from .leaving import OWNERS, left_behind, prepare, register
from .rules import ME, OFFSET, OWNER, P0, P1, member

pytestmark = pytest.mark.zookeeper

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


def test_a_forbidden_registration_with_a_lost_answer_is_not_left_behind_silently(
    blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind.group("billing").instance("me")
    fault = proxy.cut_before_reply(1)
    with pytest.raises(OutcomeUnknownError, match="you have no permission to read the node"):
        register(me)
    assert fault.fired
    assert not me.registered
    told_of_and_taken_away(me, ME, raw, left=[ME])


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


def test_rule_3_a_forbidden_claim_is_sent_again_if_it_never_arrived(blind: Registry, proxy: TcpProxy, raw: Any) -> None:
    me = blind_member(blind, raw)
    fault = proxy.cut_before_request(1)
    claim = me.claim(P0)
    assert fault.fired
    assert claim.held
    assert left_behind(raw) == [ME, OWNER]
    me.deregister()
    assert left_behind(raw) == []


def test_rule_3_a_release_of_a_forbidden_claim_is_detected_if_it_was_carried_out(
    blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind_member(blind, raw)
    claim = me.claim(P0)
    fault = proxy.cut_before_reply(1)
    claim.release()
    assert fault.fired
    assert left_behind(raw) == [ME]
    assert me.claims == {}


def test_rule_3_a_release_of_a_forbidden_claim_that_never_arrived_is_unknown_and_repeated(
    blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind_member(blind, raw)
    claim = me.claim(P0)
    fault = proxy.cut_before_request(1)
    with pytest.raises(OutcomeUnknownError, match="you have no permission to read the node"):
        claim.release()
    assert fault.fired
    assert not claim.held
    assert left_behind(raw) == [ME, OWNER]
    raw.set_acls(OWNER, OPEN_ACL_UNSAFE)
    me.deregister()
    assert left_behind(raw) == []


@pytest.mark.parametrize(
    ("arm", "committed"),
    [
        pytest.param(lambda proxy: proxy.cut_before_reply(1), b"6", id="answer lost"),
        pytest.param(lambda proxy: proxy.cut_before_request(1), b"5", id="request lost"),
    ],
)
def test_rule_3_a_lost_commit_of_a_forbidden_offset_has_an_unknown_outcome(
    arm: Callable[[TcpProxy], Any], committed: bytes, blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind_member(blind, raw)
    claim = me.claim(P0)
    raw.set_acls(OWNER, OPEN_ACL_UNSAFE)
    claim.commit(5)
    fault = arm(proxy)
    with pytest.raises(OutcomeUnknownError, match="you have no permission to read the node"):
        claim.commit(6)
    assert fault.fired
    with pytest.raises(NoPermissionError):
        claim.commit(7)
    raw.set_acls(OFFSET, OPEN_ACL_UNSAFE)
    assert raw.get(OFFSET)[0] == committed
    claim.commit(8)
    assert raw.get(OFFSET)[0] == b"8"


def test_a_forbidden_claim_is_not_forgotten_when_a_release_is_repeated(
    blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind_member(blind, raw)
    claim = me.claim(P0)
    proxy.cut_before_request(1)
    with pytest.raises(OutcomeUnknownError):
        claim.release()
    for leave in (claim.release, me.deregister):
        with pytest.raises(NoPermissionError) as caught:
            leave()
        assert caught.value.path == OWNER
    raw.set_acls(OWNER, OPEN_ACL_UNSAFE)
    me.deregister()
    assert left_behind(raw) == []


def test_a_forbidden_claim_is_not_forgotten_when_an_administrator_releases_another(
    blind: Registry, registry: Registry, raw: Any
) -> None:
    me = blind_member(blind, raw)
    claims = me.claim_many([P0, P1])
    raw.set_acls(OWNER, OPEN_ACL_UNSAFE)
    registry.group("billing").release(P0, expected_owner="me")
    with pytest.raises(NotClaimedError):
        claims[P0].commit(5)
    with pytest.raises(NoPermissionError):
        me.deregister()
    raw.set_acls(f"{OWNERS}/1", OPEN_ACL_UNSAFE)
    me.deregister()
    assert left_behind(raw) == []
