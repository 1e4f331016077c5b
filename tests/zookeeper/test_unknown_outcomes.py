"""Attempts to break rule 3: replies that are lost.

See also test_lost_replies.py.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from zkgroups import Registry
from zkgroups.exceptions import (
    AlreadyClaimedError,
    NotConnectedError,
    OutcomeUnknownError,
    ReadOnlyError,
    SessionLostError,
)
from zkgroups.testing import TcpProxy, expire_session

from .events import attempt
from .rules import ME, OFFSET, OWNER, P0, P1, member, session_of
from .unknown import unknown

pytestmark = pytest.mark.zookeeper


def test_rule_3_a_refusal_whose_reply_is_lost_is_still_a_refusal(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    """The instance owns P1. Finding its own node there does not mean that P0 and P1 were claimed together."""
    me = member(proxied)
    me.claim(P1)
    fault = proxy.cut_before_reply(1)
    with pytest.raises(AlreadyClaimedError):
        me.claim_many([P0, P1])
    assert fault.fired
    assert raw.exists(OWNER) is None
    fault = proxy.cut_before_reply(1)
    with pytest.raises(AlreadyClaimedError):
        me.claim(P1)
    assert fault.fired


def test_rule_3_a_claim_is_kept_if_it_is_unknown_whether_claiming_it_again_succeeded(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    """Its node is not a leftover of the second claim, which would be deleted although the first one is held."""
    me = member(impatient)
    claim = me.claim(P0)
    created = raw.exists(OWNER).czxid
    proxy.cut_before_reply(1)
    proxy.refuse()
    with pytest.raises(OutcomeUnknownError):
        me.claim(P0)
    proxy.heal()
    while isinstance(attempt(impatient.group("billing").create), NotConnectedError):
        pass  # until it is connected again
    with pytest.raises(AlreadyClaimedError):
        me.claim(P0)
    assert claim.verify()
    assert raw.exists(OWNER).czxid == created
    me.release_all()
    assert raw.exists(OWNER) is None


def test_rule_3_a_claim_with_other_contents_than_the_released_one_is_not_left_behind_if_both_outcomes_are_unknown(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = member(impatient)
    claim = me.claim(P0)
    unknown(claim.release, impatient, proxy)
    unknown(lambda: me.claim_many([P0], streams={P0: 1}), impatient, proxy)
    assert raw.exists(OWNER)
    me.release_all()
    assert raw.exists(OWNER) is None


def test_rule_3_a_part_of_a_lost_commit_does_not_count_as_the_whole(
    zookeeper: Any, proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    claims = member(proxied).claim_many([P0, P1])
    claims.commit({P0: 1, P1: 1})
    fault = proxy.cut_before_request(1)
    proxy.refuse()
    outcome: list[object] = []
    late = threading.Thread(target=lambda: outcome.append(attempt(lambda: claims.commit({P0: 100, P1: 100}))))
    late.start()
    assert fault.wait(30)
    expire_session(proxied.client, client_id=session_of(proxied), address=zookeeper.address)
    raw.set("/consumers/billing/offsets/orders/1", b"100")
    proxy.heal()
    late.join(30)
    assert isinstance(outcome[0], SessionLostError | OutcomeUnknownError)
    assert raw.get(OFFSET)[0] == b"1"


def test_rule_3_registering_again_after_two_unknown_outcomes_deletes_the_leftovers_of_both(
    impatient: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = impatient.group("billing").instance("me")
    for topics in (["a"], ["b"]):
        while isinstance(attempt(impatient.group("billing").create), NotConnectedError):
            pass  # until it is connected again
        proxy.cut_before_reply(1)
        proxy.refuse()
        with pytest.raises(OutcomeUnknownError):
            me.register(topics)
        proxy.heal()
    me.register(["orders"])
    assert dict(me.registration().streams) == {"orders": 1}
    me.deregister()
    assert raw.exists(ME) is None


def test_a_claim_is_held_again_after_a_server_without_quorum_has_refused_its_release(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal is certain: nothing was changed. Then the session goes on at another server."""

    def refuse(*_: object, **__: object) -> None:
        raise ReadOnlyError("the server has lost its quorum")

    me = member(registry)
    claim = me.claim(P0)
    with monkeypatch.context() as patched:
        patched.setattr(me._ownership.fence, "transact", refuse)
        with pytest.raises(ReadOnlyError):
            claim.release()
    assert claim.held
    claim.commit(5)
