"""Static members: they restart without a rebalance, and the client with the older member id is fenced."""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups.coordinator import (
    CoordinatorConfig,
    HeartbeatRequest,
    KafkaError,
    MemberIdentity,
    RebalanceNeeded,
    SyncRequest,
)
from zkgroups.coordinator.storage.work import StoreGeneration, WorkFailed

from .clients import AT_ONCE, GROUP, REBALANCE, SESSION, Clients, SlowStorage, join_request, protocols, subscribed

OLD = {"requires_known_member_id": False}


def static_pair(clients: Clients, **fields: Any) -> tuple[str, str]:
    """A stable group of two static members: `i` leads, `j` follows."""
    first = clients.ask(join_request(instance_id="i", **fields)).member_id
    second = clients.join(instance_id="j", **fields)
    rejoined = clients.join(first, instance_id="i", **fields)
    members = clients.answer(rejoined).member_id, clients.answer(second).member_id
    clients.settle(list(members))
    return members


def test_a_static_member_is_admitted_with_its_first_request() -> None:
    clients = Clients()
    answer = clients.ask(join_request(instance_id="i"))
    assert (answer.error, answer.member_id) == (0, "i-1")


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance() -> None:
    clients = Clients()
    _first, second = static_pair(clients)
    before = clients.answer(clients.sync(second)).assignment
    answer = clients.ask(join_request(instance_id="j"))
    assert (answer.error, answer.generation, clients.state) == (0, 2, "Stable")
    assert answer.member_id != second
    assert before
    assert clients.answer(clients.sync(answer.member_id)).assignment == before


def test_a_restarted_static_leader_is_told_to_skip_the_assignment() -> None:
    clients = Clients()
    _first, second = static_pair(clients)
    answer = clients.ask(join_request(instance_id="i"))
    assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
    assert [member.member_id for member in answer.members] == [answer.member_id, second]
    assert [member.instance_id for member in answer.members] == ["i", "j"]


def test_a_restarted_static_follower_is_not_told_to_skip() -> None:
    clients = Clients()
    first, _second = static_pair(clients)
    answer = clients.ask(join_request(instance_id="j"))
    assert (answer.leader, answer.skip_assignment, answer.members) == (first, False, ())


def test_an_old_client_that_leads_sees_its_old_id_as_the_leader() -> None:
    clients = Clients()
    first, _second = static_pair(clients)
    answer = clients.ask(join_request(instance_id="i", supports_skipping_assignment=False))
    assert (answer.leader, answer.skip_assignment, answer.members) == (first, False, ())
    assert clients.group.leader == answer.member_id != first


@pytest.mark.parametrize("member_id", ["old", "stranger"])
def test_requests_with_another_member_id_are_fenced(member_id: str) -> None:
    clients = Clients()
    _first, second = static_pair(clients)
    clients.ask(join_request(instance_id="j"))
    member_id = second if member_id == "old" else member_id
    assert clients.beat(member_id, instance_id="j") == "FENCED_INSTANCE_ID"
    assert clients.answer(clients.sync(member_id, instance_id="j")).error == KafkaError.FENCED_INSTANCE_ID
    assert clients.commit(member_id=member_id, generation=2, instance_id="j") == "FENCED_INSTANCE_ID"
    assert clients.ask(join_request(member_id, instance_id="j")).error == KafkaError.FENCED_INSTANCE_ID
    assert clients.leave(MemberIdentity(member_id, "j")) == ["FENCED_INSTANCE_ID"]


def test_an_unknown_instance_id_is_refused() -> None:
    clients = Clients()
    first, _second = static_pair(clients)
    assert clients.ask(HeartbeatRequest(GROUP, first, 2, "k")).error == KafkaError.UNKNOWN_MEMBER_ID
    assert clients.ask(SyncRequest(GROUP, first, 2, {}, "k")).error == KafkaError.UNKNOWN_MEMBER_ID


def test_an_id_given_to_a_dynamic_client_cannot_be_used_by_a_static_one() -> None:
    clients = Clients()
    clients.stable("a")
    given = clients.new_id()
    assert clients.ask(join_request(given, instance_id="i")).error == KafkaError.UNKNOWN_MEMBER_ID


def test_a_parked_join_is_fenced_when_the_member_restarts() -> None:
    clients = Clients()
    first, second = static_pair(clients)
    old = clients.join(first, instance_id="i")
    new = clients.join(instance_id="i")
    assert clients.answer(old).error == KafkaError.FENCED_INSTANCE_ID
    assert clients.is_parked(new)
    clients.join(second, instance_id="j")
    assert clients.answer(new).generation == 3


def test_a_parked_sync_is_fenced_when_the_member_restarts() -> None:
    clients = Clients()
    first = clients.ask(join_request(instance_id="i")).member_id
    second = clients.join(instance_id="j")
    clients.answer(clients.join(first, instance_id="i"))
    second_id = clients.answer(second).member_id
    sync = clients.sync(second_id, instance_id="j")
    new = clients.join(instance_id="j")
    assert clients.answer(sync).error == KafkaError.FENCED_INSTANCE_ID
    assert clients.is_parked(new)
    assert clients.state == "PreparingRebalance"


def test_a_restart_with_other_topics_begins_a_rebalance() -> None:
    clients = Clients()
    static_pair(clients)
    clients.join(instance_id="j", protocols=protocols("range", metadata=subscribed("payments")))
    assert clients.state == "PreparingRebalance"


def test_a_restart_that_changes_the_protocol_begins_a_rebalance() -> None:
    clients = Clients()
    clients.joined("a", instance_id="i", protocols=protocols("range", "sticky"))
    clients.settle(clients.members)
    clients.join(instance_id="i", protocols=protocols("sticky", "range"))
    assert clients.group.generation == 2


def test_a_static_member_that_does_not_join_in_time_stays_until_its_session_expires() -> None:
    clients = Clients()
    first, second_id = static_pair(clients, session_timeout=200)
    join = clients.join(first, instance_id="i", session_timeout=200)
    clients.wait(REBALANCE)
    assert clients.answer(join).generation == 3
    assert clients.members == [first, second_id]
    assert clients.reported == []


def test_a_static_leader_that_does_not_join_in_time_no_longer_leads() -> None:
    clients = Clients()
    first, second = static_pair(clients, session_timeout=300)
    clients.receive(RebalanceNeeded(GROUP))
    join = clients.join(second, instance_id="j", session_timeout=300)
    clients.wait(REBALANCE)
    answer = clients.answer(join)
    assert (answer.leader, len(answer.members)) == (second, 2)
    assert clients.members == [first, second]


def test_no_generation_begins_without_any_member() -> None:
    clients = Clients()
    _first, second = static_pair(clients, session_timeout=300)
    clients.receive(RebalanceNeeded(GROUP))
    clients.wait(REBALANCE * 2)
    assert (clients.state, clients.group.generation) == ("PreparingRebalance", 2)
    join = clients.join(second, instance_id="j", session_timeout=300)
    clients.wait(REBALANCE)
    assert clients.answer(join).generation == 3


def test_a_rebalance_without_any_joined_member_goes_on_until_sessions_expire() -> None:
    clients = Clients()
    first, _second = static_pair(clients)
    clients.wait(SESSION - 1)
    clients.beat(first)
    clients.wait(1)
    assert clients.state == "PreparingRebalance"  # the other one has expired
    clients.wait(SESSION)
    assert clients.state == "Empty"


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    clients = Clients()
    first, _second = static_pair(clients)
    assert clients.leave(MemberIdentity("", "j"), MemberIdentity("", "k")) == ["NONE", "UNKNOWN_MEMBER_ID"]
    assert clients.members == [first]


def test_a_static_member_leaves_with_both_ids() -> None:
    clients = Clients()
    first, second = static_pair(clients)
    assert clients.leave(MemberIdentity(second, "j")) == ["NONE"]
    assert clients.members == [first]


def test_an_instance_id_that_left_is_new_again() -> None:
    clients = Clients()
    first, second = static_pair(clients)
    clients.leave(MemberIdentity(second, "j"))
    new = clients.join(instance_id="j")
    clients.answer(clients.join(first, instance_id="i"))
    answer = clients.answer(new)
    assert (answer.error, answer.generation) == (0, 3)
    assert clients.members == [first, answer.member_id]


def test_the_new_member_id_is_stored_before_the_answer() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    static_pair(clients)
    storage.slow = (StoreGeneration,)
    join = clients.join(instance_id="j")
    assert clients.is_parked(join)
    clients.receive_work(*storage.take())
    answer = clients.answer(join)
    stored = storage.done[-1]
    assert isinstance(stored, StoreGeneration)
    assert stored.members[answer.member_id].static_id == "j"


@pytest.mark.parametrize("failure", [KafkaError.COORDINATOR_NOT_AVAILABLE, None])
def test_a_restarted_static_member_expires_like_any_other(failure: KafkaError | None) -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    first, _second = static_pair(clients)
    storage.slow = (StoreGeneration,)
    clients.join(instance_id="j")
    clients.wait(1)
    clients.receive_work(*(storage.take() if failure is None else (storage.open.pop()[0], WorkFailed(failure))))
    clients.wait(SESSION - 2)
    clients.beat(first)
    clients.wait(1.9)
    assert len(clients.members) == 2
    clients.wait(0.1)
    assert clients.members == [first]


def test_a_static_member_that_restarts_twice_is_fenced_once() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    static_pair(clients)
    storage.slow = (StoreGeneration,)
    joins = [clients.join(instance_id="j") for _ in range(2)]
    assert clients.answer(joins[0]).error == KafkaError.FENCED_INSTANCE_ID
    clients.receive_work(*storage.take())
    assert clients.is_parked(joins[1])
    clients.receive_work(*storage.take())
    assert clients.answer(joins[1]).error == 0


def test_a_rebalance_that_no_static_member_joins_is_stuck_in_the_end() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, stuck_rebalance_timeout=10))
    static_pair(clients, session_timeout=300)
    clients.receive(RebalanceNeeded(GROUP))
    clients.wait(2 * REBALANCE)
    assert (clients.state, clients.reported) == ("Empty", ["STUCK_REBALANCE_ENDED"])


def test_a_new_member_id_that_cannot_be_stored_is_refused() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    static_pair(clients)
    storage.slow = (StoreGeneration,)
    join = clients.join(instance_id="j")
    clients.receive_work(storage.open.pop()[0], WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE))
    answer = clients.answer(join)
    assert (answer.error, answer.member_id) == (KafkaError.COORDINATOR_NOT_AVAILABLE, "")
    storage.slow = ()
    assert clients.ask(join_request(instance_id="j")).error == 0


def test_a_rebalance_answers_a_static_member_whose_new_id_is_still_being_stored() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    first, _second = static_pair(clients)
    storage.slow = (StoreGeneration,)
    join = clients.join(instance_id="j")
    leader = clients.join(first, instance_id="i")
    assert clients.answer(join).generation == clients.answer(leader).generation == 3
    clients.receive_work(*storage.take())
    assert clients.state == "CompletingRebalance"
