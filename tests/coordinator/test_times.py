"""What happens as time passes: the initial delay, barriers, sessions, syncs, stuck rebalances, and expiry."""

from __future__ import annotations

import pytest

from zkgroups.coordinator import CoordinatorConfig, GroupMoved, KafkaError, RebalanceNeeded
from zkgroups.coordinator.storage import ExpireOffsets, ReleaseMembers, StoreGeneration, WorkFailed

from .clients import (
    AT_ONCE,
    DELAY,
    GROUP,
    OLD,
    ORDERS,
    PAYMENTS,
    REBALANCE,
    SESSION,
    Clients,
    SlowStorage,
    join_request,
    protocols,
)
from .test_requests import static_pair

DELAYED = CoordinatorConfig(initial_rebalance_delay=DELAY)
DAY = 86400.0
WEEK = 7 * DAY


def at_once(**fields: float | None) -> CoordinatorConfig:
    return CoordinatorConfig(initial_rebalance_delay=0, **fields)  # type: ignore[arg-type]


# The first generation


def test_the_first_generation_of_an_empty_group_waits_for_the_initial_delay() -> None:
    clients = Clients(DELAYED)
    for generation in (1, 3):
        join = clients.join(**OLD)
        clients.wait(DELAY - 0.1)
        assert clients.is_parked(join)
        clients.wait(0.1)
        answer = clients.answer(join)
        assert answer.generation == generation
        clients.leave(answer.member_id)


def test_the_initial_delay_is_extended_while_members_come_up_to_the_rebalance_timeout() -> None:
    clients = Clients(DELAYED)
    joins = []
    for _ in range(4):
        joins.append(clients.join(rebalance_timeout=10.0, **OLD))
        clients.wait(2.0)
    assert all(map(clients.is_parked, joins))  # at 8 s: extended at 3 s and at 6 s
    clients.wait(2.0)
    assert {clients.answer(join).generation for join in joins} == {1}

    clients = Clients(DELAYED)
    joins = [clients.join(**OLD), clients.join(**OLD)]
    clients.wait(DELAY)
    assert all(map(clients.is_parked, joins))
    clients.wait(DELAY)  # nobody came in the extension
    assert {clients.answer(join).generation for join in joins} == {1}


def test_an_id_that_is_not_used_in_time_is_forgotten_in_every_state_and_not_waited_for() -> None:
    clients = Clients()
    given = clients.new_id()
    clients.wait(SESSION)
    assert clients.ask(join_request(given)).error == KafkaError.UNKNOWN_MEMBER_ID
    for state in ("CompletingRebalance", "Stable", "PreparingRebalance"):
        clients = Clients()
        members = clients.joined("a", session_timeout=300)
        if state != "CompletingRebalance":
            clients.settle(members)
        clients.new_id()
        join = clients.join(*members, session_timeout=300) if state == "PreparingRebalance" else None
        clients.wait(SESSION - 0.1)
        assert (clients.state, len(clients.members)) == (state, 2)
        clients.wait(0.1)
        assert clients.members == members
        if join is not None:
            assert clients.answer(join).generation == 2


def test_the_deadline_of_a_new_id_ends_when_it_is_used() -> None:
    clients = Clients()
    given = clients.new_id()
    clients.wait(SESSION / 2)
    clients.settle([clients.answer(clients.join(given)).member_id])
    clients.wait(SESSION / 2)
    assert clients.coordinator.next_deadline == SESSION * 1.5


# Barriers


def test_the_barrier_is_as_long_as_the_longest_rebalance_timeout_and_who_is_late_is_removed_and_reported() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b", rebalance_timeout=20.0, session_timeout=300)
    patient = clients.join(client_id="c", rebalance_timeout=50.0, **OLD)
    clients.join(second, rebalance_timeout=20.0)
    clients.wait(49.9)
    assert clients.is_parked(patient)
    clients.wait(0.1)
    answer = clients.answer(patient)
    assert (answer.generation, answer.leader) == (3, second), "another member leads"
    assert clients.members == [second, "c-3"]
    assert [(each.incident.name, each.members) for each in clients.incidents] == [("JOIN_TIMED_OUT", (first,))]
    assert clients.beat(first) == "UNKNOWN_MEMBER_ID"


def test_a_new_member_whose_join_is_parked_for_too_long_is_removed() -> None:
    clients = Clients(at_once(new_member_join_timeout=30))
    [first] = clients.stable("a", rebalance_timeout=100)
    join = clients.join(client_id="b", **OLD)
    for _ in range(6):
        clients.wait(5)
        clients.beat(first)
    assert clients.answer(join).error == KafkaError.UNKNOWN_MEMBER_ID
    assert clients.members == [first]


@pytest.mark.parametrize("within", [[5.0], [None, 5.0], [5.0, 500.0]])
def test_a_waiting_client_of_another_kind_limits_the_time_to_join(within: list[float | None]) -> None:
    clients = Clients()
    first, second = clients.stable("a", "b", session_timeout=300)
    for seconds in within:
        clients.receive(RebalanceNeeded(GROUP, seconds))
    join = clients.join(first)
    clients.wait(4.9)
    assert clients.is_parked(join)
    clients.wait(0.1)
    assert clients.answer(join).generation == 3
    assert second not in clients.members


# Sessions


def test_a_member_without_heartbeats_expires_after_its_session_timeout() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b")
    clients.wait(SESSION / 2)
    assert clients.beat(first) == "NONE"
    clients.wait(SESSION / 2)
    assert (clients.members, clients.state) == ([first], "PreparingRebalance")
    assert [(each.incident.name, each.members) for each in clients.incidents] == [("MEMBER_EXPIRED", (second,))]
    clients.wait(SESSION / 2)
    assert (clients.members, clients.state) == ([], "Empty")


def test_the_session_of_a_new_member_begins_with_its_first_generation() -> None:
    clients = Clients()
    clients.joined("a")
    clients.wait(SESSION - 0.1)
    assert clients.members == ["a-1"]
    clients.wait(0.1)
    assert clients.members == []


def test_who_waits_for_others_does_not_expire_but_those_waited_for_do() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b")
    join = clients.join(first)
    for _ in range(5):
        clients.wait(SESSION - 1)
        assert clients.beat(second) == "REBALANCE_IN_PROGRESS"
    assert clients.is_parked(join)
    clients.wait(SESSION)
    assert (clients.answer(join).generation, clients.members) == (3, [first])

    clients = Clients()
    first, second = clients.joined("a", "b")
    sync = clients.sync(second)
    for _ in range(3):
        clients.wait(SESSION - 1)
        clients.beat(first)
    clients.sync(first, {})
    assert clients.answer(sync).error == 0
    clients.wait(SESSION - 0.1)
    assert clients.members == [first, second], "its session begins with the answer"
    clients.wait(0.1)
    assert clients.members == []

    clients = Clients()
    first, second = clients.joined("a", "b")
    sync = clients.sync(second)
    clients.wait(SESSION - 1)
    clients.beat(first)
    clients.receive(RebalanceNeeded(GROUP))
    assert clients.answer(sync).error == KafkaError.REBALANCE_IN_PROGRESS
    clients.wait(SESSION - 0.1)
    assert second in clients.members
    clients.wait(0.1)
    assert second not in clients.members, "also if the answer is an error"


def test_commits_and_syncs_keep_the_session_alive_and_a_clock_that_goes_back_shortens_none() -> None:
    clients = Clients()
    [member] = clients.joined("a")
    clients.settle([member])
    for _ in range(3):
        clients.wait(SESSION - 1)
        assert clients.commit(member_id=member, generation=1) == "NONE"
        clients.wait(SESSION - 1)
        clients.answer(clients.sync(member))
    before = clients.now
    clients.now = before - 5
    clients.beat(member)
    assert clients.coordinator.next_deadline == before + SESSION


# Syncs


def test_members_that_do_not_sync_in_time_are_removed_and_reported() -> None:
    for leader_syncs in (False, True):
        clients = Clients()
        first, second = clients.joined("a", "b", session_timeout=300)
        who, late = (first, second) if leader_syncs else (second, first)
        sync = clients.sync(who, {})
        assert (clients.state == "Stable") == leader_syncs
        clients.wait(REBALANCE)
        assert clients.answer(sync).error == (KafkaError.NONE if leader_syncs else KafkaError.REBALANCE_IN_PROGRESS)
        assert (clients.state, clients.members) == ("PreparingRebalance", [who])
        assert [(each.incident.name, each.members) for each in clients.incidents] == [("SYNC_TIMED_OUT", (late,))]
    clients = Clients()
    clients.stable("a", "b", session_timeout=300)
    clients.wait(REBALANCE + 1)
    assert clients.state == "Stable", "all have synced"


# Static members


def test_a_static_member_that_does_not_join_in_time_stays_but_no_longer_leads() -> None:
    clients = Clients()
    first, second = static_pair(clients, session_timeout=200)
    clients.receive(RebalanceNeeded(GROUP))
    join = clients.join(second, instance_id="j", session_timeout=200)
    clients.wait(REBALANCE)
    answer = clients.answer(join)
    assert (answer.generation, answer.leader, len(answer.members)) == (3, second, 2)
    assert (clients.members, clients.reported) == ([first, second], [])


def test_no_generation_begins_without_any_member_and_the_rebalance_goes_on_until_sessions_expire() -> None:
    clients = Clients()
    _first, second = static_pair(clients, session_timeout=300)
    clients.receive(RebalanceNeeded(GROUP))
    clients.wait(REBALANCE * 2)
    assert (clients.state, clients.group.generation) == ("PreparingRebalance", 2)
    join = clients.join(second, instance_id="j", session_timeout=300)
    clients.wait(REBALANCE)
    assert clients.answer(join).generation == 3

    clients = Clients()
    first, _second = static_pair(clients)
    clients.wait(SESSION - 1)
    clients.beat(first)
    clients.wait(1)
    assert clients.state == "PreparingRebalance"  # the other one has expired
    clients.wait(SESSION)
    assert clients.state == "Empty"


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


# Stuck rebalances


@pytest.mark.parametrize(("rebalance_timeout", "limit"), [(10, 100), (80, 160)])
def test_a_rebalance_that_does_not_end_loses_and_releases_all_members_and_is_reported(
    rebalance_timeout: float, limit: float
) -> None:
    """Two members join again and again. The leader never syncs."""
    storage = SlowStorage()
    clients = Clients(at_once(stuck_rebalance_timeout=100), storage)
    timeouts = {"session_timeout": 300, "rebalance_timeout": rebalance_timeout}
    members = clients.joined("a", "b", **timeouts)
    while clients.now < limit - 5:
        clients.receive(RebalanceNeeded(GROUP))
        for member in members:
            clients.join(member, **timeouts)
        clients.wait(5)
    clients.wait(4.9)
    assert clients.reported == []
    clients.wait(0.1)
    assert clients.reported == ["STUCK_REBALANCE_ENDED"]
    assert (clients.state, clients.members) == ("Empty", [])
    assert [work.members for work in storage.done if isinstance(work, ReleaseMembers)] == [("a-1", "b-2")]


def test_a_rebalance_that_no_static_member_joins_is_stuck_in_the_end() -> None:
    clients = Clients(at_once(stuck_rebalance_timeout=10))
    static_pair(clients, session_timeout=300)
    clients.receive(RebalanceNeeded(GROUP))
    clients.wait(2 * REBALANCE)
    assert (clients.state, clients.reported) == ("Empty", ["STUCK_REBALANCE_ENDED"])


def test_a_group_that_was_stable_or_empty_in_between_is_not_stuck() -> None:
    clients = Clients(at_once(stuck_rebalance_timeout=100))
    [member] = clients.stable("a", session_timeout=300, rebalance_timeout=10)
    clients.wait(95)
    rejoined = clients.answer(clients.join(member, session_timeout=300, rebalance_timeout=10))
    clients.wait(6)
    assert clients.beat(rejoined.member_id) == "NONE"
    clients.leave(member)
    clients.wait(95)
    clients.joined("b", rebalance_timeout=10)
    clients.wait(6)
    assert (clients.members, clients.reported) == (["b-2"], [])


# Unused groups


def test_a_group_without_members_and_offsets_is_removed_exactly_when_its_timeout_has_elapsed() -> None:
    clients = Clients(at_once(empty_group_timeout=1000, cleanup_interval=600))
    [member] = clients.stable("a", session_timeout=300)
    clients.wait(150)
    clients.leave(member)
    clients.wait(999)
    assert clients.state == "Empty"
    clients.wait(1)
    assert clients.coordinator.groups() == []
    assert clients.reported == ["GROUP_EXPIRED"]
    assert clients.coordinator.next_deadline is None
    clients.stable("b")
    assert clients.group.generation == 3, "it continues with the stored generation"


def test_a_group_with_offsets_or_members_or_an_id_that_waits_to_be_used_is_not_removed() -> None:
    clients = Clients()
    clients.commit()
    clients.wait(DAY)
    assert clients.coordinator.groups() == [GROUP]
    soon = at_once(empty_group_timeout=0, cleanup_interval=5)
    clients = Clients(soon)
    clients.stable("a", session_timeout=300)
    clients.wait(20)
    assert clients.state == "Stable"
    clients = Clients(soon)
    given = clients.new_id(session_timeout=100)
    clients.wait(50)
    assert clients.answer(clients.join(given)).error == 0


def checked(storage: SlowStorage) -> Clients:
    """An empty group whose check for removal is under way."""
    clients = Clients(at_once(empty_group_timeout=100), storage)
    clients.leave(*clients.stable("a"))
    storage.slow = (ExpireOffsets,)
    clients.wait(100)
    return clients


def test_the_result_of_a_check_means_nothing_to_a_group_that_has_moved_or_is_used_again() -> None:
    storage = SlowStorage()
    clients = checked(storage)
    clients.receive(GroupMoved(GROUP))
    clients.receive_work(*storage.take())
    assert (clients.coordinator.next_deadline, clients.reported) == (None, [])
    storage = SlowStorage()
    clients = checked(storage)
    clients.stable("b")
    clients.receive_work(*storage.take())
    assert clients.state == "Stable"


def test_a_check_that_fails_is_repeated() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    clients.commit()
    storage.slow = (ExpireOffsets,)
    clients.wait(AT_ONCE.cleanup_interval)
    clients.receive_work(storage.open.pop()[0], WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE))
    clients.wait(AT_ONCE.cleanup_interval)
    assert len(storage.open) == 1


# Offsets


def test_offsets_of_a_simple_consumer_expire_by_the_time_of_their_commit_also_if_the_group_was_loaded_since() -> None:
    clients = Clients()
    clients.commit(1, ORDERS)
    clients.wait(DAY)
    clients.commit(2, PAYMENTS)
    later = Clients(storage=clients.storage)
    later.now = WEEK - 10
    later.commit(3, PAYMENTS)
    later.wait(9)
    assert later.fetch() == {"orders/0": 1, "payments/0": 3}
    later.wait(700)
    assert later.fetch() == {"payments/0": 3}
    later.wait(WEEK)
    assert later.fetch() == {}
    assert later.coordinator.groups() == []


def test_offsets_of_a_group_that_became_empty_expire_from_then_on_but_each_stays_for_the_whole_time() -> None:
    clients = Clients()
    [member] = clients.stable("a", session_timeout=300)
    clients.commit(1, ORDERS, member_id=member, generation=1)
    for _ in range(10):
        clients.wait(299)
        clients.beat(member)
    clients.leave(member)
    clients.wait(WEEK - 10)
    clients.commit(5, PAYMENTS)
    clients.wait(9)
    assert clients.fetch() == {"orders/0": 1, "payments/0": 5}
    clients.wait(601)
    assert clients.fetch() == {"payments/0": 5}
    clients.wait(WEEK)
    assert clients.fetch() == {}


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({}, {"orders/0": 1}),  # those of its topics stay
        ({"protocols": protocols("range", metadata=b"?")}, {"orders/0": 1, "payments/0": 2}),
        ({"protocol_type": "connect"}, {"orders/0": 1, "payments/0": 2}),
    ],
)
def test_a_stable_group_loses_only_the_offsets_of_topics_to_which_it_certainly_does_not_subscribe(
    fields: dict, left: dict[str, int]
) -> None:
    clients = Clients(at_once(offset_retention=100, cleanup_interval=10))
    clients.commit(1, ORDERS)
    clients.commit(2, PAYMENTS)
    clients.stable("a", session_timeout=300, **fields)
    clients.wait(200)
    assert clients.fetch() == left


def test_no_offset_expires_during_a_rebalance_or_without_a_retention_time() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=150, offset_retention=100, cleanup_interval=10))
    clients.commit(2, PAYMENTS)
    clients.join(rebalance_timeout=200, **OLD)
    clients.wait(140)
    assert clients.fetch() == {"payments/0": 2}
    clients = Clients(CoordinatorConfig(offset_retention=None))
    clients.commit()
    clients.wait(WEEK * 2)
    assert clients.fetch() == {"orders/0": 17}
