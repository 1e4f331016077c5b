"""Join requests: ids, time-outs, protocols, the initial delay, and the barrier at which all members meet."""

from __future__ import annotations

import tracemalloc

import pytest

from zkgroups.coordinator import CoordinatorConfig, KafkaError, RebalanceNeeded

from .clients import DELAY, GROUP, REBALANCE, SESSION, Clients, join_request, protocols, subscribed

OLD = {"requires_known_member_id": False}


def test_a_new_client_is_given_an_id_and_must_join_with_it() -> None:
    clients = Clients()
    answer = clients.ask(join_request(client_id="app"))
    assert (answer.error, answer.member_id, answer.generation) == (KafkaError.MEMBER_ID_REQUIRED, "app-1", -1)
    assert [member.state for member in clients.group.members] == ["Pending"]
    answer = clients.ask(join_request(answer.member_id))
    assert (answer.error, answer.generation, answer.leader) == (0, 1, "app-1")


def test_a_client_before_version_4_joins_with_one_request() -> None:
    answer = Clients().ask(join_request(**OLD))
    assert (answer.error, answer.member_id, answer.generation) == (0, "app-1", 1)


def test_every_client_gets_another_id() -> None:
    clients = Clients()
    assert len({clients.new_id(client_id="app") for _ in range(5)}) == 5


@pytest.mark.parametrize("timeout", [5.999, 300.001, 0, -1])
def test_a_session_timeout_out_of_bounds_is_refused(timeout: float) -> None:
    clients = Clients()
    assert clients.ask(join_request(session_timeout=timeout)).error == KafkaError.INVALID_SESSION_TIMEOUT
    assert clients.coordinator.groups() == []


@pytest.mark.parametrize("timeout", [6, 300])
def test_the_bounds_of_session_timeouts_are_allowed(timeout: float) -> None:
    assert Clients().ask(join_request(session_timeout=timeout, **OLD)).error == 0


def test_the_empty_group_name_is_refused() -> None:
    assert Clients().ask(join_request(group="")).error == KafkaError.INVALID_GROUP_ID


def test_an_unknown_member_id_is_refused() -> None:
    clients = Clients()
    assert clients.ask(join_request("stranger")).error == KafkaError.UNKNOWN_MEMBER_ID
    assert clients.coordinator.group(GROUP) is None
    clients.stable("app")
    assert clients.ask(join_request("stranger")).error == KafkaError.UNKNOWN_MEMBER_ID


def test_an_id_that_was_not_used_in_time_is_forgotten() -> None:
    clients = Clients()
    given = clients.new_id()
    clients.wait(SESSION)
    assert clients.ask(join_request(given)).error == KafkaError.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("state", ["CompletingRebalance", "Stable"])
def test_an_id_is_forgotten_in_every_state_of_the_group(state: str) -> None:
    clients = Clients()
    members = clients.joined("a", session_timeout=300)
    if state == "Stable":
        clients.settle(members)
    clients.new_id()
    clients.wait(SESSION)
    assert (clients.state, clients.members) == (state, members)


def test_a_rebalance_waits_for_a_client_that_was_given_an_id() -> None:
    clients = Clients()
    [first] = clients.stable("a")
    given = clients.new_id(client_id="b")
    join = clients.join(first)
    clients.wait(SESSION - 1)
    assert clients.is_parked(join)
    clients.join(given)
    assert clients.answer(join).generation == 2
    assert len(clients.group.members) == 2


def test_a_rebalance_goes_on_when_the_client_with_the_new_id_does_not_come() -> None:
    clients = Clients()
    [first] = clients.stable("a")
    clients.new_id()
    join = clients.join(first)
    clients.wait(SESSION)
    assert clients.answer(join).generation == 2


def test_a_first_generation_waits_for_the_initial_delay() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=DELAY))
    join = clients.join(**OLD)
    clients.wait(DELAY - 0.1)
    assert clients.is_parked(join)
    clients.wait(0.1)
    assert clients.answer(join).generation == 1


def test_the_initial_delay_is_extended_while_members_come_up_to_the_rebalance_timeout() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=DELAY))
    joins = []
    for _ in range(4):
        joins.append(clients.join(rebalance_timeout=10.0, **OLD))
        clients.wait(2.0)
    assert all(map(clients.is_parked, joins))  # at 8 s: extended at 3 s and at 6 s
    clients.wait(2.0)
    assert {clients.answer(join).generation for join in joins} == {1}


def test_a_group_that_became_empty_waits_for_the_initial_delay_again() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=DELAY))
    clients.leave(*clients.stable("a"))
    join = clients.join(**OLD)
    clients.wait(DELAY - 0.1)
    assert clients.is_parked(join)
    clients.wait(0.1)
    assert clients.answer(join).generation == 3


def test_the_initial_delay_is_not_extended_when_nobody_came() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=DELAY))
    joins = [clients.join(**OLD), clients.join(**OLD)]
    clients.wait(DELAY)
    assert all(map(clients.is_parked, joins))
    clients.wait(DELAY)
    assert {clients.answer(join).generation for join in joins} == {1}


def test_a_join_is_parked_until_all_members_have_joined() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b")
    third = clients.join(client_id="c", **OLD)
    rejoined = clients.join(first)
    assert clients.is_parked(third)
    assert clients.is_parked(rejoined)
    assert clients.state == "PreparingRebalance"
    last = clients.join(second)
    assert {clients.answer(id).generation for id in (third, rejoined, last)} == {3}
    assert clients.state == "CompletingRebalance"


def test_only_the_leader_gets_the_members() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    third = clients.join(client_id="c", protocols=protocols("range", metadata=b"mine"), **OLD)
    leader, follower = clients.join(first), clients.join(second)
    assert clients.answer(follower).members == clients.answer(third).members == ()
    members = clients.answers[leader].members
    assert [member.member_id for member in members] == [first, second, "c-3"]
    assert [member.metadata for member in members] == [subscribed("orders"), subscribed("orders"), b"mine"]


def test_the_first_member_leads_until_it_leaves() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b")
    assert clients.group.leader == first
    clients.leave(first)
    assert clients.ask(join_request(second)).leader == second


def test_the_barrier_is_as_long_as_the_longest_rebalance_timeout() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b", rebalance_timeout=20.0, session_timeout=300)
    clients.settle([first, second])
    patient = clients.join(client_id="c", rebalance_timeout=50.0, **OLD)
    clients.join(first, rebalance_timeout=20.0)
    clients.wait(50.0)
    assert clients.answer(patient).generation == 3
    assert clients.members == [first, "c-3"]


def test_a_member_that_does_not_join_in_time_is_removed_and_reported() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b", session_timeout=300)
    join = clients.join(first)
    clients.wait(REBALANCE)
    assert clients.answer(join).generation == 3
    assert clients.members == [first]
    assert [(each.incident.name, each.members) for each in clients.incidents] == [("JOIN_TIMED_OUT", (second,))]
    assert clients.beat(second) == "UNKNOWN_MEMBER_ID"


def test_another_member_leads_if_the_leader_does_not_join_in_time() -> None:
    clients = Clients()
    _leader, second = clients.stable("a", "b", session_timeout=300)
    clients.join(client_id="c", **OLD)
    join = clients.join(second)
    clients.wait(REBALANCE)
    assert clients.answer(join).leader == second


def test_a_member_expires_while_the_others_wait_for_it() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b")
    join = clients.join(first)
    clients.wait(SESSION)
    assert clients.answer(join).generation == 3
    assert clients.members == [first]
    assert clients.reported == ["MEMBER_EXPIRED"]
    assert second not in clients.members


def test_the_session_of_a_new_member_begins_with_its_first_generation() -> None:
    clients = Clients()
    clients.joined("a")
    clients.wait(SESSION - 0.1)
    assert clients.members == ["a-1"]
    clients.wait(0.1)
    assert clients.members == []


def test_the_deadline_of_a_new_id_ends_when_it_is_used() -> None:
    clients = Clients()
    given = clients.new_id()
    clients.wait(SESSION / 2)
    clients.settle([clients.answer(clients.join(given)).member_id])
    clients.wait(SESSION / 2)
    assert clients.coordinator.next_deadline == SESSION * 1.5


def test_a_member_that_has_joined_does_not_expire_while_it_waits() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b")
    join = clients.join(first)
    for _ in range(5):
        clients.wait(SESSION - 1)
        assert clients.beat(second) == "REBALANCE_IN_PROGRESS"
    assert clients.is_parked(join)
    assert len(clients.group.members) == 2


def test_a_new_member_whose_join_is_parked_for_too_long_is_removed() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, new_member_join_timeout=30))
    [first] = clients.stable("a", rebalance_timeout=100)
    join = clients.join(client_id="b", **OLD)
    for _ in range(6):
        clients.wait(5)
        clients.beat(first)
    assert clients.answer(join).error == KafkaError.UNKNOWN_MEMBER_ID
    assert clients.members == [first]


def test_a_follower_that_joins_again_with_the_same_request_is_answered_again() -> None:
    clients = Clients()
    _first, second = clients.stable("a", "b")
    answer = clients.ask(join_request(second))
    assert (answer.error, answer.generation, clients.state) == (0, 2, "Stable")


def test_a_leader_that_joins_again_begins_a_rebalance() -> None:
    clients = Clients()
    first, _second = clients.stable("a", "b")
    assert clients.is_parked(clients.join(first))
    assert clients.state == "PreparingRebalance"


def test_a_changed_subscription_begins_a_rebalance() -> None:
    clients = Clients()
    _first, second = clients.stable("a", "b")
    clients.join(second, protocols=protocols("range", metadata=subscribed("payments")))
    assert clients.state == "PreparingRebalance"


def test_a_lost_answer_is_repeated_before_the_sync() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    for member, count in ((first, 2), (second, 0)):
        answer = clients.ask(join_request(member))
        assert (answer.generation, len(answer.members)) == (2, count)
    assert clients.state == "CompletingRebalance"


def test_a_changed_subscription_before_the_sync_begins_a_rebalance() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    sync = clients.sync(second)
    clients.join(first, protocols=protocols("range", metadata=subscribed("payments")))
    assert clients.answer(sync).error == KafkaError.REBALANCE_IN_PROGRESS
    assert clients.state == "PreparingRebalance"


def test_a_second_join_of_the_same_member_takes_the_place_of_the_first() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b")
    old = clients.join(first)
    new = clients.join(first)
    assert clients.answer(old).error == KafkaError.REBALANCE_IN_PROGRESS
    clients.join(second)
    assert clients.answer(new).generation == 3


def test_a_rejoin_adopts_new_timeouts() -> None:
    clients = Clients()
    [first] = clients.stable("a")
    clients.ask(join_request(first, session_timeout=20.0, rebalance_timeout=30.0))
    [member] = clients.group.members
    assert (member.session_timeout, member.rebalance_timeout) == (20.0, 30.0)


# Protocols


def test_a_member_without_a_common_protocol_is_refused() -> None:
    clients = Clients()
    clients.stable("a", protocols=protocols("range", "sticky"))
    refused = clients.ask(join_request(protocols=protocols("roundrobin")))
    assert refused.error == KafkaError.INCONSISTENT_GROUP_PROTOCOL
    assert clients.ask(join_request(protocols=protocols("roundrobin", "sticky"))).error == KafkaError.MEMBER_ID_REQUIRED


def test_a_member_of_another_protocol_type_is_refused() -> None:
    clients = Clients()
    clients.stable("a")
    assert clients.ask(join_request(protocol_type="connect")).error == KafkaError.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("fields", [{"protocols": ()}, {"protocol_type": ""}])
def test_a_member_without_protocols_is_refused(fields: dict) -> None:
    clients = Clients()
    assert clients.ask(join_request(**fields)).error == KafkaError.INCONSISTENT_GROUP_PROTOCOL
    assert clients.coordinator.groups() == []


def test_an_empty_group_may_change_its_protocol_type() -> None:
    clients = Clients()
    clients.leave(*clients.stable("a"))
    clients.stable("b", protocol_type="connect")
    assert clients.group.protocol_type == "connect"


def test_the_protocol_with_the_most_votes_among_the_common_ones_is_chosen() -> None:
    clients = Clients()
    offers = (("a", "b", "c"), ("c", "b"), ("d", "b", "c"))
    joins = [clients.join(protocols=protocols(*offer), **OLD) for offer in offers]
    joins[0] = clients.join(clients.answer(joins[0]).member_id, protocols=protocols(*offers[0]))
    assert [clients.answer(id).protocol for id in joins] == ["b", "b", "b"]


def test_a_preferred_protocol_is_chosen_if_all_members_support_it() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, preferred_protocols=("x", "range")))
    clients.stable("a", "b", protocols=protocols("sticky", "range"))
    assert clients.group.protocol == "range"


def test_a_member_that_left_no_longer_counts_for_the_protocol() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b", protocols=protocols("range", "sticky"))
    clients.leave(first)
    clients.ask(join_request(second, protocols=protocols("sticky", "range")))
    assert clients.group.protocol == "sticky"


def test_a_member_that_joins_again_and_again_with_new_protocols_takes_no_more_memory() -> None:
    clients = Clients()
    [member] = clients.stable("a")
    tracemalloc.start()
    try:
        for number in range(50):
            names = ["range", *(f"{number}-{each}-{'x' * 10_000}" for each in range(10))]
            assert clients.ask(join_request(member, protocols=protocols(*names))).error is KafkaError.NONE
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


# The size of a group


def test_a_full_group_refuses_new_members() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, max_members=2))
    first, second = clients.stable("a", "b")
    answer = clients.ask(join_request())
    assert (answer.error, answer.member_id) == (KafkaError.GROUP_MAX_SIZE_REACHED, "")
    assert clients.ask(join_request(second)).error == 0
    assert clients.is_parked(clients.join(first))


def test_the_members_that_join_first_get_the_places() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, max_members=2))
    first, second = clients.stable("a", "b", session_timeout=300)
    given = [clients.join(first), clients.leave(second)]
    clients.settle([clients.answer(given[0]).member_id])
    third = clients.join(client_id="c", **OLD)
    join = clients.join(first)
    assert clients.answer(third).error == clients.answer(join).error == 0
    assert len(clients.group.members) == 2


def test_a_rebalance_does_not_wait_for_a_member_that_found_no_place() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, max_members=2))
    first, second = clients.stable("a", "b", session_timeout=300)
    clients.receive(RebalanceNeeded(GROUP))
    given = clients.new_id()
    joins = [clients.join(first), clients.join(given)]
    assert clients.ask(join_request(second)).error == KafkaError.GROUP_MAX_SIZE_REACHED
    assert {clients.answer(id).generation for id in joins} == {3}
    assert clients.members == [first, given]


def test_during_a_rebalance_a_full_group_refuses_members_that_come_late() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=DELAY, max_members=2))
    joins = [clients.join(client_id=name, **OLD) for name in "abc"]
    refused = clients.answer(joins[2])
    assert (refused.error, refused.member_id) == (KafkaError.GROUP_MAX_SIZE_REACHED, "")
    clients.wait(2 * DELAY)
    assert {clients.answer(id).error for id in joins[:2]} == {0}
    assert len(clients.group.members) == 2
