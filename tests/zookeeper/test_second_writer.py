"""Rule 3 beside another writer, who acts between the loss of a request or its reply and the look at the nodes.

The nodes of the other writer are never taken for those of the lost request, and never overwritten or deleted by it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from zkgroups import Registry
from zkgroups.exceptions import ClaimedByOtherError, OffsetWouldGoBackError, OutcomeUnknownError, ZkgroupsException
from zkgroups.testing import TcpProxy
from zkgroups.testing.proxy.faults import Fault

from .events import attempt
from .rules import ME, OFFSET, OWNER, P0, member

pytestmark = pytest.mark.zookeeper

REPLY_LOST, REQUEST_LOST = TcpProxy.cut_before_reply, TcpProxy.cut_before_request
Way = Callable[[TcpProxy], Fault]
BOTH_WAYS = pytest.mark.parametrize(
    "lose", [pytest.param(REPLY_LOST, id="reply lost"), pytest.param(REQUEST_LOST, id="request lost")]
)


def with_second_writer(proxy: TcpProxy, lose: Way, call: Callable[[], object], act: Callable[[], object]) -> object:
    """Return the result or the exception of a call whose first request or reply is lost. Meanwhile, act."""
    fault = lose(proxy)
    proxy.refuse()
    with ThreadPoolExecutor() as pool:
        outcome = pool.submit(attempt, call)
        assert fault.wait()
        act()
        proxy.heal()
        return outcome.result(60)


def test_a_release_leaves_the_claim_of_the_next_owner(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    claim = member(proxied).claim(P0)
    act = lambda: raw.create(OWNER, b"me-0", ephemeral=True)  # noqa: E731
    assert with_second_writer(proxy, REPLY_LOST, claim.release, act) is None
    assert raw.get(OWNER)[1].ephemeralOwner == raw.client_id[0]


def test_a_release_of_many_leaves_the_claim_of_the_next_owner(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    me = member(proxied)
    me.claim(P0)
    act = lambda: raw.create(OWNER, b"me-0", ephemeral=True)  # noqa: E731
    assert with_second_writer(proxy, REPLY_LOST, me.release_all, act) is None
    assert raw.get(OWNER)[1].ephemeralOwner == raw.client_id[0]


def test_a_deregistration_leaves_the_registration_of_the_next_instance(
    proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = member(proxied)
    act = lambda: raw.create(ME, b"{}", ephemeral=True)  # noqa: E731
    assert with_second_writer(proxy, REPLY_LOST, me.deregister, act) is None
    assert raw.get(ME)[1].ephemeralOwner == raw.client_id[0]


def test_a_deletion_leaves_the_offset_that_another_tool_has_written_since(
    proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    offsets = proxied.group("billing").offsets
    offsets.set(P0, 5)
    before = proxy.requests
    offsets.delete([P0])
    transaction = proxy.requests - before  # the last request; those before it read the group
    offsets.set(P0, 5)
    lose = lambda proxy: proxy.cut_before_reply(transaction)  # noqa: E731
    assert with_second_writer(proxy, lose, lambda: offsets.delete([P0]), lambda: raw.create(OFFSET, b"7")) is None
    assert raw.get(OFFSET)[0] == b"7"


@BOTH_WAYS
def test_a_commit_is_not_reported_as_done_while_the_offset_of_another_stands(
    lose: Way, proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    claim = member(proxied).claim(P0)
    claim.commit(5)
    outcome = with_second_writer(proxy, lose, lambda: claim.commit(8), lambda: raw.set(OFFSET, b"6"))
    assert isinstance(outcome, OutcomeUnknownError)
    assert raw.get(OFFSET)[0] == b"6"


def test_a_first_commit_is_not_reported_as_done_while_the_offset_of_another_stands(
    proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    claim = member(proxied).claim(P0)
    raw.ensure_path("/consumers/billing/offsets/orders")
    act = lambda: raw.create(OFFSET, b"60")  # noqa: E731
    outcome = with_second_writer(proxy, REQUEST_LOST, lambda: claim.commit(8), act)
    assert isinstance(outcome, OffsetWouldGoBackError)
    assert raw.get(OFFSET)[0] == b"60"


def test_a_claim_is_not_reported_as_done_while_another_owns_the_partition(
    proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    """The node of the other owner has the same data."""
    me = member(proxied)
    me.claim(P0).release()
    act = lambda: raw.create(OWNER, b"me-0", ephemeral=True)  # noqa: E731
    outcome = with_second_writer(proxy, REQUEST_LOST, lambda: me.claim(P0), act)
    assert isinstance(outcome, ClaimedByOtherError)
    assert raw.get(OWNER)[1].ephemeralOwner == raw.client_id[0]


@BOTH_WAYS
def test_an_update_is_not_reported_as_done_while_the_registration_of_another_stands(
    lose: Way, proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = member(proxied)
    data = raw.get(ME)[0]
    outcome = with_second_writer(proxy, lose, lambda: me.update(["orders", "refunds"]), lambda: raw.set(ME, data))
    assert isinstance(outcome, ZkgroupsException)
    assert raw.get(ME)[0] == data
