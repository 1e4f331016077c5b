"""Attempts to break rules 1, 2, 4 and 5 on real servers. `tests/simulation` has them in any order of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.lasting import lasting_client
from zkgroups import Consumergroup, Registry
from zkgroups.deadline import Deadline
from zkgroups.exceptions import (
    AlreadyRegisteredError,
    ClaimedByOtherError,
    GuardFailedError,
    NotClaimedError,
    NotRegisteredError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    SessionLostError,
)
from zkgroups.zookeeper.requests.transaction import Create

from .conftest import Connect
from .events import expire
from .helpers import IDS, ME, OFFSET, OWNER, OWNERS, P0, P1, member

pytestmark = [pytest.mark.zookeeper, pytest.mark.oldest]


# Rule 1


def test_rule_1_nodes_with_my_id_of_another_session_are_not_mine(registry: Registry, raw: Any) -> None:
    raw.create(ME, b"{}", ephemeral=True, makepath=True)
    me = registry.group("billing").instance("me")
    with pytest.raises(AlreadyRegisteredError) as taken:
        me.register(["orders"])
    assert taken.value.session == raw.client_id[0]
    with pytest.raises(NotRegisteredError):
        me.claim(P0)
    raw.delete(ME)
    raw.create(OWNER, b"me", ephemeral=True, makepath=True)
    me.register(["orders"])
    with pytest.raises(ClaimedByOtherError) as owned:
        me.claim(P0)
    assert owned.value.owner.session == raw.client_id[0]
    assert me.claims == {}
    raw.delete(OWNER)
    claim = me.claim(P0)
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


# Rule 2


def test_rule_2_release_keeps_a_node_recreated_by_another_client(registry: Registry, raw: Any) -> None:
    claim = member(registry).claim(P0)
    registry.group("billing").release(P0, expected_owner="me")
    raw.create(OWNER, b"other", ephemeral=True)  # version 0, as ours was
    claim.release()
    assert raw.get(OWNER)[0] == b"other"


def test_rule_2_after_the_session_expired_nodes_of_the_successor_with_the_same_id_are_kept(
    registry: Registry, raw: Any
) -> None:
    me = member(registry)
    claim = me.claim(P0)
    expire(registry)
    for path in (ME, OWNER):
        raw.create(path, b"me", ephemeral=True)  # same id, same version
    claim.release()
    me.deregister()
    assert [raw.get(path)[1].ephemeralOwner for path in (ME, OWNER)] == [raw.client_id[0]] * 2


def test_rule_2_an_administrative_release_needs_the_expected_owner_and_session(
    registry: Registry, raw: Any, group: Consumergroup
) -> None:
    member(registry).claim(P0)
    member(registry, "other").claim(P1)
    session = registry.session_id
    assert session is not None
    with pytest.raises(GuardFailedError, match="not by 'other'"):
        group.release(P0, expected_owner="other")
    with pytest.raises(GuardFailedError, match="not by session"):
        group.release(P0, expected_owner="me", expected_session=session + 1)
    assert raw.exists(OWNER)
    assert group.release(P0, expected_owner="me", expected_session=session).session == session
    assert not raw.exists(OWNER)
    assert raw.get(f"{IDS}/other")[1].version == 1, "all registrations are rewritten"
    with pytest.raises(NotClaimedError, match="not claimed by any instance"):
        group.release(P0, expected_owner="me")
    registry.client.create(OWNER, b"me-0", ephemeral=True)  # by a stream
    group.release(P0, expected_owner="me")
    assert not raw.exists(OWNER)


def test_rule_2_without_a_registration_a_partition_that_was_released_and_claimed_since_is_not_released(
    registry: Registry, raw: Any, connect: Connect
) -> None:
    me, others = member(registry), connect()
    claim = me.claim(P0)
    raw.delete(ME)
    with pytest.raises(NotRegisteredError):
        claim.commit(9)
    others.group("billing").release(P0, expected_owner=me.id)
    next_claim = member(others, "other").claim(P0)
    me.deregister()
    assert next_claim.verify()


# Rule 4


@pytest.mark.parametrize("committed", [True, False], ids=["an offset exists", "no offset exists yet"])
def test_rule_4_a_claim_of_an_expired_session_commits_nothing_even_if_the_successor_has_the_same_nodes(
    registry: Registry, raw: Any, committed: bool
) -> None:
    claim = member(registry).claim(P0)
    if committed:
        claim.commit(5)
    expire(registry)
    for path in (ME, OWNER):
        raw.create(path, b"me", ephemeral=True)  # same id, same versions: no check can tell
    with pytest.raises(SessionLostError):
        claim.commit(9)
    assert not claim.held
    assert raw.exists(OFFSET) is None if not committed else raw.get(OFFSET)[0] == b"5"


def test_rule_4_a_request_is_not_sent_in_a_session_other_than_its_own(registry: Registry, raw: Any) -> None:
    """The innermost fence, for requests that are queued while one session expires and the next begins."""
    session, old = registry._context.session, registry.session_id
    expire(registry)
    with pytest.raises(SessionLostError):
        session.transact([Create("/x")], session_id=old, deadline=Deadline(30))
    assert raw.exists("/x") is None


def test_rule_4_a_claim_whose_owner_node_was_deleted_commits_nothing(registry: Registry, raw: Any) -> None:
    claims = member(registry).claim_many([P0, P1])
    raw.delete(OWNER)
    with pytest.raises(NotClaimedError, match="orders/0"):
        claims.commit({P0: 9, P1: 9})
    assert raw.exists(OFFSET) is None
    claims.commit({P1: 9})


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
    assert raw.get_children(f"{OWNERS}/orders") == ["0"]
    assert raw.exists(OFFSET) is None
    me.deregister()
    assert raw.get_children(f"{OWNERS}/orders") == []
    assert raw.get(ME)[1].ephemeralOwner == raw.client_id[0]


@pytest.mark.parametrize("is_taken", [False, True])
def test_rule_4_an_instance_that_registers_again_keeps_only_the_claims_that_still_exist(
    registry: Registry, raw: Any, is_taken: bool
) -> None:
    me = member(registry)
    claim = me.claim(P0)
    raw.delete(ME)
    if is_taken:
        raw.delete(OWNER)
        raw.create(OWNER, b"other", ephemeral=True)
    with pytest.raises(NotRegisteredError):
        claim.commit(1)
    me.register(["orders"])
    assert claim.held == (not is_taken)
    if is_taken:
        with pytest.raises(NotClaimedError):
            claim.commit(1)
    else:
        claim.commit(1)
        assert raw.get(OFFSET)[0] == b"1"


# Rule 5


def test_rule_5_a_claim_commits_backward_only_with_backward(registry: Registry, raw: Any) -> None:
    raw.create(OFFSET, b"5", makepath=True)
    claims = member(registry).claim_many([P0, P1])
    with pytest.raises(OffsetWouldGoBackError, match="is 5 and would go back to 4"):
        claims[P0].commit(4)
    claims.commit({P0: 5, P1: 5})
    with pytest.raises(OffsetWouldGoBackError, match="orders/1"):
        claims.commit({P0: 6, P1: 4})
    assert raw.get(OFFSET)[0] == b"5"
    claims[P0].commit(4, backward=True)
    assert raw.get(OFFSET)[0] == b"4"


@pytest.mark.parametrize("is_released", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.set(OFFSET, b"19"),
        lambda raw: raw.set(OFFSET, b"x"),
        lambda raw: raw.delete(OFFSET),
        lambda raw: (raw.delete(OFFSET), raw.create(OFFSET, b"19")),  # version 0, like the first one
    ],
    ids=["written", "damaged", "deleted", "recreated"],
)
def test_rule_5_what_another_client_has_done_to_an_offset_is_a_conflict_and_is_not_overwritten(
    registry: Registry, connect: Connect, raw: Any, change: Callable[[Any], object], is_released: bool
) -> None:
    """The release of another partition rewrites the registration, so the claim reads its offsets again."""
    claims = member(registry).claim_many([P0, P1])
    claims.commit({P0: 15})
    change(raw)
    if is_released:
        connect().group("billing").release(P1, expected_owner="me")
    data = raw.get(OFFSET)[0] if raw.exists(OFFSET) else None
    with pytest.raises(OffsetConflictError):
        claims[P0].commit(12, backward=True)
    assert (raw.get(OFFSET)[0] if raw.exists(OFFSET) else None) == data
    if data == b"19":
        with pytest.raises(OffsetWouldGoBackError):
            claims[P0].commit(18)
    claims[P0].commit(12, backward=True)
    assert raw.get(OFFSET)[0] == b"12"


def test_an_offset_recreated_and_written_as_often_is_overwritten_with_a_warning(
    registry: Registry, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit that docs/guarantees.md names: versions are all that ZooKeeper compares."""
    claim = member(registry).claim(P0)
    claim.commit(5)
    raw.delete(OFFSET)
    raw.create(OFFSET, b"8")
    while raw.get(OFFSET)[1].version < 1:
        raw.set(OFFSET, b"9")
    claim.commit(6)
    claim.commit(7)
    assert raw.get(OFFSET)[0] == b"7"
    assert [record.message for record in caplog.records if "recreated" in record.message] == [
        f"{OFFSET} was deleted and recreated by another client; its offset was overwritten with 6"
    ]


@pytest.mark.parametrize("written", [1, 3])
def test_rule_5_an_ephemeral_offset_node_of_another_client_is_replaced(
    registry: Registry, raw: Any, zookeeper_hosts: str, caplog: pytest.LogCaptureFixture, written: int
) -> None:
    raw.ensure_path(OFFSET.rpartition("/")[0])
    with lasting_client(zookeeper_hosts) as other:
        other.create(OFFSET, b"3", ephemeral=True)
        for _ in range(1, written):
            other.set(OFFSET, b"4")
        claim = member(registry).claim(P0)
        with pytest.raises(OffsetWouldGoBackError):
            claim.commit(2)
        claim.commit(5)
        claim.commit(6)
    data, stat = raw.get(OFFSET)
    assert (data, stat.ephemeralOwner) == (b"6", 0)
    claim.commit(7)
    assert "recreated" not in caplog.text


def test_rule_5_a_forced_change_makes_claims_read_their_offsets_again(
    registry: Registry, connect: Connect, raw: Any
) -> None:
    """The recreated node has the version of the first one."""
    claim = member(registry).claim(P0)
    claim.commit(10)
    operator = connect().group("billing").offsets
    operator.delete([P0], force=True)
    operator.set(P0, 1000)
    with pytest.raises(OffsetConflictError, match="is now 1000"):
        claim.commit(20)
    claim.commit(1001)
