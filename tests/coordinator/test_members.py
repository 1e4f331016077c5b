"""Members of a generation: sync requests, heartbeats, sessions, and leaving."""

from __future__ import annotations

import pytest

from zkgroups.coordinator import (
    CoordinatorConfig,
    GroupMoved,
    HeartbeatRequest,
    KafkaError,
    LeaveRequest,
    MemberIdentity,
    MembershipLost,
    RebalanceNeeded,
    SyncRequest,
)
from zkgroups.coordinator.storage.work import LoadGroup, ReleaseMembers, WorkFailed

from .clients import AT_ONCE, GROUP, REBALANCE, SESSION, Clients, SlowStorage, join_request

OLD = {"requires_known_member_id": False}


# Sync


def test_a_sync_is_parked_until_the_leader_brings_the_assignments() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    sync = clients.sync(second)
    assert clients.is_parked(sync)
    assert [member.state for member in clients.group.members] == ["AwaitingSync", "AwaitingSync"]
    leader = clients.sync(first, {first: b"one", second: b"two"})
    assert [clients.answer(id).assignment for id in (leader, sync)] == [b"one", b"two"]
    assert clients.state == "Stable"
    assert [member.state for member in clients.group.members] == ["Stable", "Stable"]


def test_a_sync_that_comes_later_gets_the_assignment() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    clients.sync(first, {second: b"two"})
    answer = clients.answer(clients.sync(second))
    assert (answer.error, answer.assignment, answer.protocol_type, answer.protocol) == (0, b"two", "consumer", "range")


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    sync = clients.sync(second)
    clients.sync(first, {first: b"all", "stranger": b"x"})
    assert clients.answer(sync).assignment == b""


def test_a_sync_during_a_rebalance_asks_to_join_again() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    clients.join(client_id="c", **OLD)
    for member in (first, second):
        assert clients.answer(clients.sync(member)).error == KafkaError.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"generation": 0}, "ILLEGAL_GENERATION"),
        ({"generation": 2}, "ILLEGAL_GENERATION"),
        ({"protocol_type": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocol": "sticky"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocol_type": "consumer", "protocol": "range"}, "NONE"),
    ],
)
def test_a_sync_must_name_the_generation_and_its_protocol(fields: dict, error: str) -> None:
    clients = Clients()
    [member] = clients.joined("a")
    assert clients.answer(clients.sync(member, **fields)).error.name == error


def test_a_sync_of_a_stranger_is_refused() -> None:
    clients = Clients()
    assert clients.ask(SyncRequest(GROUP, "x", 1, {})).error == KafkaError.UNKNOWN_MEMBER_ID
    clients.joined("a")
    assert clients.answer(clients.sync("x")).error == KafkaError.UNKNOWN_MEMBER_ID
    assert clients.ask(SyncRequest("", "x", 1, {})).error == KafkaError.INVALID_GROUP_ID


def test_a_second_sync_of_the_same_member_takes_the_place_of_the_first() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    old, new = clients.sync(second), clients.sync(second)
    assert clients.answer(old).error == KafkaError.REBALANCE_IN_PROGRESS
    clients.sync(first, {second: b"two"})
    assert clients.answer(new).assignment == b"two"


def test_members_that_do_not_sync_in_time_are_removed_and_reported() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b", session_timeout=300)
    sync = clients.sync(second)
    clients.wait(REBALANCE)
    assert clients.answer(sync).error == KafkaError.REBALANCE_IN_PROGRESS
    assert (clients.state, clients.members) == ("PreparingRebalance", [second])
    assert [(each.incident.name, each.members) for each in clients.incidents] == [("SYNC_TIMED_OUT", (first,))]


def test_also_in_a_stable_group_a_member_must_fetch_its_assignment_in_time() -> None:
    clients = Clients()
    first, _second = clients.joined("a", "b", session_timeout=300)
    clients.answer(clients.sync(first, {}))
    assert clients.state == "Stable"
    clients.wait(REBALANCE)
    assert (clients.state, clients.members) == ("PreparingRebalance", [first])


def test_nobody_is_removed_when_all_have_synced() -> None:
    clients = Clients()
    clients.stable("a", "b", session_timeout=300)
    clients.wait(REBALANCE + 1)
    assert clients.state == "Stable"


# Heartbeats and sessions


def test_a_heartbeat_is_confirmed_in_a_stable_group_and_before_the_sync() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    assert clients.beat(first) == "NONE"
    clients.settle([first, second])
    assert clients.beat(first) == "NONE"


def test_a_heartbeat_during_a_rebalance_asks_to_join_again() -> None:
    clients = Clients()
    first, _second = clients.stable("a", "b")
    clients.join(client_id="c", **OLD)
    assert clients.beat(first) == "REBALANCE_IN_PROGRESS"


@pytest.mark.parametrize("generation", [-1, 0, 2])
def test_a_heartbeat_of_another_generation_is_refused(generation: int) -> None:
    clients = Clients()
    [member] = clients.stable("a")
    assert clients.beat(member, generation) == "ILLEGAL_GENERATION"
    clients.join(client_id="c", **OLD)
    assert clients.beat(member, generation) == "ILLEGAL_GENERATION"


def test_a_heartbeat_of_a_stranger_is_refused() -> None:
    clients = Clients()
    assert clients.ask(HeartbeatRequest(GROUP, "x", 1)).error == KafkaError.UNKNOWN_MEMBER_ID
    [member] = clients.stable("a")
    assert clients.beat("x") == "UNKNOWN_MEMBER_ID"
    clients.leave(member)
    assert clients.beat(member) == "UNKNOWN_MEMBER_ID"
    assert clients.ask(HeartbeatRequest("", "x", 1)).error == KafkaError.INVALID_GROUP_ID


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


def test_a_member_does_not_expire_while_its_sync_is_parked() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    sync = clients.sync(second)
    for _ in range(3):
        clients.wait(SESSION - 1)
        clients.beat(first)
    assert clients.is_parked(sync)
    clients.sync(first, {})
    assert clients.answer(sync).error == 0
    clients.wait(SESSION - 0.1)
    assert clients.members == [first, second]
    clients.wait(0.1)
    assert clients.members == []


def test_a_commit_keeps_the_session_alive() -> None:
    clients = Clients()
    [member] = clients.stable("a")
    for _ in range(3):
        clients.wait(SESSION - 1)
        assert clients.commit(member_id=member, generation=1) == "NONE"


def test_a_clock_that_goes_back_shortens_no_session() -> None:
    clients = Clients()
    clients.now = 100.0
    [member] = clients.stable("a")
    clients.now = 50.0
    clients.beat(member)
    assert clients.coordinator.next_deadline == 100.0 + SESSION


# Leaving


def test_a_member_that_leaves_makes_room_at_once() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b")
    assert clients.leave(first) == ["NONE"]
    assert (clients.state, clients.members) == ("PreparingRebalance", [second])
    assert clients.ask(join_request(second)).generation == 3


def test_several_members_leave_with_one_request() -> None:
    clients = Clients()
    first, second, third = clients.stable("a", "b", "c")
    assert clients.leave(first, "stranger", third) == ["NONE", "UNKNOWN_MEMBER_ID", "NONE"]
    assert clients.members == [second]


def test_the_group_is_empty_when_the_last_member_leaves() -> None:
    clients = Clients()
    clients.leave(*clients.stable("a", "b"))
    assert (clients.state, clients.group.generation, clients.group.protocol) == ("Empty", 3, None)


def test_a_client_may_leave_with_an_id_that_it_never_used() -> None:
    clients = Clients()
    [first] = clients.stable("a")
    given = clients.new_id()
    join = clients.join(first)
    assert clients.is_parked(join)
    assert clients.leave(given) == ["NONE"]
    assert clients.answer(join).generation == 2


def test_nobody_can_leave_a_group_that_does_not_exist() -> None:
    clients = Clients()
    assert clients.leave("a", MemberIdentity("", "i")) == ["UNKNOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID"]
    assert clients.ask(LeaveRequest("", (MemberIdentity("a"),))).error == KafkaError.INVALID_GROUP_ID


def test_a_parked_join_is_answered_when_its_member_leaves() -> None:
    clients = Clients()
    first, _second = clients.stable("a", "b")
    join = clients.join(first)
    clients.leave(first)
    assert clients.answer(join).error == KafkaError.UNKNOWN_MEMBER_ID


def test_a_parked_sync_is_answered_when_its_member_leaves() -> None:
    clients = Clients()
    _first, second = clients.joined("a", "b")
    sync = clients.sync(second)
    clients.leave(second)
    assert clients.answer(sync).error == KafkaError.UNKNOWN_MEMBER_ID


def test_parked_syncs_of_others_are_answered_when_a_member_leaves() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    sync = clients.sync(second)
    clients.leave(first)
    assert clients.answer(sync).error == KafkaError.REBALANCE_IN_PROGRESS


def test_a_sync_renews_the_session() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    clients.answer(clients.sync(first, {}))
    clients.wait(SESSION - 1)
    clients.beat(first)
    clients.answer(clients.sync(second))
    clients.wait(SESSION - 1)
    assert second in clients.members


# Changes from outside


def test_a_change_outside_begins_a_rebalance() -> None:
    clients = Clients()
    [member] = clients.stable("a")
    clients.receive(RebalanceNeeded(GROUP))
    assert clients.beat(member) == "REBALANCE_IN_PROGRESS"
    assert clients.ask(join_request(member)).generation == 2


def test_a_change_outside_means_nothing_to_a_group_without_members() -> None:
    clients = Clients()
    clients.leave(*clients.stable("a"))
    clients.receive(RebalanceNeeded(GROUP))
    assert clients.state == "Empty"


@pytest.mark.parametrize("before", [[RebalanceNeeded(GROUP)], []])
def test_a_waiting_client_of_another_kind_limits_the_time_to_join(before: list) -> None:
    clients = Clients()
    first, second = clients.stable("a", "b", session_timeout=300)
    for event in [*before, RebalanceNeeded(GROUP, within=5.0)]:
        clients.receive(event)
    join = clients.join(first)
    clients.wait(4.9)
    assert clients.is_parked(join)
    clients.wait(0.1)
    assert clients.answer(join).generation == 3
    assert second not in clients.members


def test_the_time_to_join_is_never_prolonged() -> None:
    clients = Clients()
    first, _second = clients.stable("a", "b", session_timeout=300)
    clients.receive(RebalanceNeeded(GROUP, within=5.0))
    clients.receive(RebalanceNeeded(GROUP, within=500.0))
    join = clients.join(first)
    clients.wait(5.0)
    assert clients.answer(join).generation == 3


def test_all_members_join_anew_when_the_storage_lost_them() -> None:
    clients = Clients()
    first, second = clients.joined("a", "b")
    sync = clients.sync(second)
    clients.receive(MembershipLost())
    assert clients.answer(sync).error == KafkaError.UNKNOWN_MEMBER_ID
    assert (clients.state, clients.members, clients.group.generation) == ("Empty", [], 3)
    assert clients.beat(first) == "UNKNOWN_MEMBER_ID"


def test_also_ids_that_wait_to_be_used_are_lost() -> None:
    clients = Clients()
    clients.stable("a")
    given = clients.new_id()
    clients.receive(MembershipLost())
    assert clients.members == []
    assert clients.ask(join_request(given)).error == KafkaError.UNKNOWN_MEMBER_ID


def test_members_that_the_storage_lost_need_no_release() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    clients.stable("a", "b")
    clients.receive(MembershipLost())
    assert not [work for work in storage.done if isinstance(work, ReleaseMembers)]


def test_the_members_of_other_groups_stay_when_one_is_lost() -> None:
    clients = Clients()
    clients.stable("a")
    clients.receive(MembershipLost("other"))
    assert clients.state == "Stable"


def test_a_group_that_moved_answers_its_parked_requests() -> None:
    clients = Clients()
    first, second = clients.stable("a", "b")
    join = clients.join(first)
    clients.receive(GroupMoved(GROUP))
    assert clients.answer(join).error == KafkaError.NOT_COORDINATOR
    assert clients.coordinator.group(GROUP) is None
    assert clients.ask(HeartbeatRequest(GROUP, second, 2)).error == KafkaError.UNKNOWN_MEMBER_ID


def test_a_group_that_may_have_moved_is_loaded_again_before_it_answers() -> None:
    """The coordinator was suspended, and has not heard yet that another one has taken over."""
    storage = SlowStorage()
    clients = Clients(storage=storage)
    first, second = clients.stable("a", "b")
    join = clients.join(first)
    storage.lost.add(GROUP)
    storage.slow = (LoadGroup,)
    beat = clients.send(HeartbeatRequest(GROUP, second, 2))
    assert clients.answer(join).error == KafkaError.NOT_COORDINATOR
    work_id, _loaded = storage.take()
    clients.receive_work(work_id, WorkFailed(KafkaError.NOT_COORDINATOR))
    assert clients.answer(beat).error == KafkaError.NOT_COORDINATOR


# Stuck rebalances


def rebalance_forever(clients: Clients, until: float, rebalance_timeout: float) -> None:
    """Two members join again and again. The leader never syncs."""
    timeouts = {"session_timeout": 300, "rebalance_timeout": rebalance_timeout}
    members = clients.joined("a", "b", **timeouts)
    while clients.now < until:
        clients.receive(RebalanceNeeded(GROUP))
        for member in members:
            clients.join(member, **timeouts)
        clients.wait(5)


@pytest.mark.parametrize(("rebalance_timeout", "limit"), [(10, 100), (80, 160)])
def test_a_rebalance_that_does_not_end_loses_all_members_and_is_reported(
    rebalance_timeout: float, limit: float
) -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, stuck_rebalance_timeout=100))
    rebalance_forever(clients, limit - 5, rebalance_timeout)
    assert clients.reported == []
    clients.wait(4.9)
    assert clients.reported == []
    clients.wait(0.1)
    assert clients.reported == ["STUCK_REBALANCE_ENDED"]
    assert (clients.state, clients.members) == ("Empty", [])


def test_the_members_of_a_stuck_rebalance_are_released() -> None:
    storage = SlowStorage()
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, stuck_rebalance_timeout=100), storage)
    rebalance_forever(clients, 100, 10)
    assert clients.reported == ["STUCK_REBALANCE_ENDED"]
    assert [work.members for work in storage.done if isinstance(work, ReleaseMembers)] == [("a-1", "b-2")]


def test_a_group_that_was_stable_or_empty_in_between_is_not_stuck() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, stuck_rebalance_timeout=100))
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
