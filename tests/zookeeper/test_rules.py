"""Attempts to break the rules 1, 2, 4 and 5.

For rule 3 see test_lost_replies.py, for rule 6 test_malformed.py and tests/core/test_paths.py.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from zkgroups import Claim, Consumergroup, Instance, Registry, TopicPartition
from zkgroups.deadline import Deadline
from zkgroups.exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    ClaimedByOtherError,
    GuardFailedError,
    NotClaimedError,
    NotConnectedError,
    NotRegisteredError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    OutcomeUnknownError,
    SessionLostError,
)
from zkgroups.testing import TcpProxy, expire_session
from zkgroups.zookeeper.requests.transaction import Create

from .conftest import Connect
from .events import attempt, expire

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
OWNER = "/consumers/billing/owners/orders/0"
OFFSET = "/consumers/billing/offsets/orders/0"
ME = "/consumers/billing/ids/me"


def member(registry: Registry, id: str = "me") -> Instance:
    instance = registry.group("billing").instance(id)
    instance.register(["orders"])
    return instance


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


def session_of(registry: Registry) -> tuple[int, bytes]:
    """Also while disconnected, when kazoo does not report it."""
    return registry.client._session_id, registry.client._session_passwd


def test_rule_4_a_request_is_not_sent_in_a_session_other_than_its_own(registry: Registry, raw: Any) -> None:
    """The innermost fence, for requests queued while one session expires and the next begins."""
    session, old = registry._context.session, registry.session_id
    expire(registry)
    with pytest.raises(SessionLostError):
        session.transact([Create("/x")], session_id=old, deadline=Deadline(5))
    assert raw.exists("/x") is None
    session.transact([Create("/x")], session_id=registry.session_id, deadline=Deadline(5))
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


# Rule 5


def test_rule_5_a_claim_commits_backward_only_with_backward(registry: Registry, raw: Any) -> None:
    claim = member(registry).claim(P0)
    claim.commit(5)
    with pytest.raises(OffsetWouldGoBackError, match="is 5 and would go back to 4"):
        claim.commit(4)
    assert raw.get(OFFSET)[0] == b"5"
    claim.commit(4, backward=True)
    assert raw.get(OFFSET)[0] == b"4"


def test_rule_5_the_first_commit_of_a_claim_does_not_go_behind_its_predecessor(registry: Registry, raw: Any) -> None:
    raw.create(OFFSET, b"50", makepath=True)
    claim = member(registry).claim(P0)
    with pytest.raises(OffsetWouldGoBackError):
        claim.commit(49)
    assert raw.get(OFFSET)[0] == b"50"


def test_rule_5_one_offset_that_would_go_back_stops_the_whole_batch(registry: Registry, raw: Any) -> None:
    claims = member(registry).claim_many([P0, P1])
    claims.commit({P0: 5, P1: 5})
    with pytest.raises(OffsetWouldGoBackError, match="orders/1"):
        claims.commit({P0: 6, P1: 4})
    assert raw.get(OFFSET)[0] == b"5"


def test_rule_5_a_foreign_commit_in_between_is_a_conflict_and_is_not_overwritten(registry: Registry, raw: Any) -> None:
    claim = member(registry).claim(P0)
    claim.commit(5)
    raw.set(OFFSET, b"100")
    with pytest.raises(OffsetConflictError, match="is now 100"):
        claim.commit(6)
    with pytest.raises(OffsetWouldGoBackError):
        claim.commit(6)
    assert raw.get(OFFSET)[0] == b"100"
    claim.commit(101)
    assert raw.get(OFFSET)[0] == b"101"


def test_rule_5_an_offset_set_without_a_claim_goes_back_only_with_backward(group: Consumergroup, raw: Any) -> None:
    group.offsets.set(P0, 5)
    with pytest.raises(OffsetWouldGoBackError):
        group.offsets.set(P0, 4)
    group.offsets.set(P0, 4, backward=True)
    assert raw.get(OFFSET)[0] == b"4"


@pytest.mark.parametrize("there_before", [False, True])
def test_rule_5_an_offset_recreated_by_another_tool_under_a_claim_is_not_overwritten(
    registry: Registry, raw: Any, there_before: bool
) -> None:
    """The recreated node has version 0, like the first one."""
    if there_before:
        raw.create(OFFSET, b"3", makepath=True)
    claim = member(registry).claim(P0)
    claim.commit(5)
    raw.delete(OFFSET)
    raw.create(OFFSET, b"9")
    with pytest.raises(OffsetConflictError, match="is now 9"):
        claim.commit(6)
    assert raw.get(OFFSET)[0] == b"9"
    claim.commit(10)


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
    other = KazooClient(zookeeper_hosts)
    other.start()
    raw.ensure_path(OFFSET.rpartition("/")[0])
    other.create(OFFSET, b"3", ephemeral=True)
    for _ in range(1, written):
        other.set(OFFSET, b"4")
    claim = member(registry).claim(P0)
    with pytest.raises(OffsetWouldGoBackError):
        claim.commit(2)
    claim.commit(5)
    claim.commit(6)
    other.stop()
    other.close()
    data, stat = raw.get(OFFSET)
    assert (data, stat.ephemeralOwner) == (b"6", 0)
    claim.commit(7)
    assert raw.get(OFFSET)[0] == b"7"
    assert "recreated" not in caplog.text


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
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, raw: Any
) -> None:
    registry = connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], timeout=3.0)
    me = member(registry)
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


def test_rule_3_a_part_of_a_lost_commit_does_not_count_as_the_whole(
    zookeeper: Any, proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    claims = member(proxied).claim_many([P0, P1])
    claims.commit({P0: 1, P1: 1})
    proxy.cut_before_request(1)
    proxy.refuse()
    outcome: list[object] = []
    late = threading.Thread(target=lambda: outcome.append(attempt(lambda: claims.commit({P0: 100, P1: 100}))))
    late.start()
    expire_session(proxied.client, client_id=session_of(proxied), address=zookeeper.address)
    raw.set("/consumers/billing/offsets/orders/1", b"100")
    proxy.heal()
    late.join(30)
    assert isinstance(outcome[0], SessionLostError | OutcomeUnknownError)
    assert raw.get(OFFSET)[0] == b"1"


def test_rule_2_a_claim_made_after_an_unknown_outcome_is_not_deleted_as_a_leftover(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, raw: Any
) -> None:
    registry = connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], timeout=3.0)
    me = member(registry)
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


def test_rule_5_a_recreated_offset_does_not_count_as_the_one_that_was_read(
    registry: Registry, connect: Connect, raw: Any
) -> None:
    """Both nodes have version 0. A forced delete makes members read the offsets again."""
    claim = member(registry).claim(P0)
    claim.commit(10)
    operator = connect().group("billing").offsets
    operator.delete([P0], force=True)
    operator.set(P0, 1000)
    with pytest.raises(OffsetWouldGoBackError):
        claim.commit(20)
    assert raw.get(OFFSET)[0] == b"1000"
    claim.commit(1001)


def test_rule_4_an_administrative_release_rewrites_all_registrations(registry: Registry, raw: Any) -> None:
    other = member(registry, "other")
    other.claim(P1)
    member(registry).claim(P0)
    registry.group("billing").release(P0, expected_owner="me")
    assert raw.get("/consumers/billing/ids/other")[1].version == 1


def test_rule_3_registering_again_after_two_unknown_outcomes_deletes_the_leftovers_of_both(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, raw: Any
) -> None:
    registry = connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], timeout=3.0)
    me = registry.group("billing").instance("me")
    for topics in (["a"], ["b"]):
        while isinstance(attempt(registry.group("billing").create), NotConnectedError):
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
