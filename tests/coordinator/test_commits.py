"""Offsets: commits of members and of simple consumers, and fetching."""

from __future__ import annotations

import json

import pytest

from zkgroups.coordinator import (
    CommitRequest,
    CommittedValue,
    CoordinatorConfig,
    FetchRequest,
    GroupMoved,
    KafkaError,
    RebalanceNeeded,
    commit_lines,
)
from zkgroups.coordinator.storage.work import OffsetsRead, OffsetsStored, ReadOffsets, StoreOffsets, WorkFailed

from .clients import AT_ONCE, GROUP, ORDERS, PAYMENTS, Clients, SlowStorage

OLD = {"requires_known_member_id": False}


def test_a_member_commits_and_anyone_fetches() -> None:
    clients = Clients()
    [member] = clients.stable("a")
    assert clients.commit(17, member_id=member, generation=1) == "NONE"
    assert clients.fetch(ORDERS, PAYMENTS) == {"orders/0": 17}
    assert clients.fetch() == {"orders/0": 17}


def test_a_commit_keeps_metadata_and_leader_epoch_and_gets_the_time() -> None:
    clients = Clients()
    clients.now = 1000.0
    clients.ask(CommitRequest(GROUP, {ORDERS: CommittedValue(17, "mine", 3)}))
    assert clients.ask(FetchRequest({GROUP: None})).groups[GROUP].offsets == {
        ORDERS: CommittedValue(17, "mine", 3, committed_at=1000.0)
    }


def test_offsets_of_several_groups_are_fetched_at_once() -> None:
    clients = Clients()
    clients.commit(1, group="a")
    clients.commit(2, group="b")
    groups = clients.ask(FetchRequest({"a": None, "b": (ORDERS,), "none": None})).groups
    assert {name: [value.offset for value in each.offsets.values()] for name, each in groups.items()} == {
        "a": [1],
        "b": [2],
        "none": [],
    }
    assert {each.error for each in groups.values()} == {0}
    assert clients.coordinator.groups() == ["a", "b"]


def test_a_simple_consumer_commits_to_a_group_without_members() -> None:
    clients = Clients()
    assert clients.commit() == "NONE"
    assert (clients.state, clients.group.protocol_type) == ("Empty", "")


def test_the_group_with_the_empty_name_has_offsets() -> None:
    clients = Clients()
    assert clients.commit(group="") == "NONE"
    assert clients.fetch(group="") == {"orders/0": 17}


def test_a_simple_consumer_cannot_commit_to_a_group_with_members() -> None:
    clients = Clients()
    [member] = clients.joined("a")
    assert clients.commit() == "UNKNOWN_MEMBER_ID"
    clients.settle([member])
    assert clients.commit() == "UNKNOWN_MEMBER_ID"
    clients.leave(member)
    assert clients.commit() == "NONE"


def test_a_simple_consumer_cannot_commit_while_the_first_member_waits() -> None:
    clients = Clients(CoordinatorConfig())
    clients.join(**OLD)
    assert clients.commit() == "UNKNOWN_MEMBER_ID"


@pytest.mark.parametrize("generation", [0, 2])
def test_a_commit_of_another_generation_is_refused(generation: int) -> None:
    clients = Clients()
    [member] = clients.stable("a")
    assert clients.commit(member_id=member, generation=generation) == "ILLEGAL_GENERATION"
    assert clients.fetch() == {}


def test_a_commit_of_a_stranger_is_refused() -> None:
    clients = Clients()
    [member] = clients.stable("a")
    assert clients.commit(member_id="x", generation=1) == "UNKNOWN_MEMBER_ID"
    clients.leave(member)
    assert clients.commit(member_id=member, generation=1) == "UNKNOWN_MEMBER_ID"
    assert clients.commit(member_id="x", generation=-1) == "NONE"  # no generation: a simple consumer


def test_a_commit_of_a_generation_is_refused_by_a_group_that_does_not_exist() -> None:
    clients = Clients()
    assert clients.commit(member_id="x", generation=1) == "ILLEGAL_GENERATION"
    assert clients.coordinator.groups() == []


def test_a_member_may_commit_until_the_next_generation_begins() -> None:
    clients = Clients()
    [member] = clients.stable("a")
    clients.receive(RebalanceNeeded(GROUP))
    assert clients.state == "PreparingRebalance"
    assert clients.commit(member_id=member, generation=1) == "NONE"


def test_a_member_without_its_assignment_cannot_commit() -> None:
    clients = Clients()
    [member] = clients.joined("a")
    assert clients.commit(member_id=member, generation=1) == "REBALANCE_IN_PROGRESS"


def test_metadata_that_is_too_long_is_refused_for_its_partition_alone() -> None:
    clients = Clients(CoordinatorConfig(max_offset_metadata=4))
    offsets = {ORDERS: CommittedValue(1, "12345"), PAYMENTS: CommittedValue(2, "1234")}
    errors = clients.ask(CommitRequest(GROUP, offsets)).errors
    assert errors == {ORDERS: KafkaError.OFFSET_METADATA_TOO_LARGE, PAYMENTS: KafkaError.NONE}
    assert clients.fetch() == {"payments/0": 2}
    assert clients.commit(metadata="12345") == "OFFSET_METADATA_TOO_LARGE"


def test_stored_commits_are_reported_for_a_log() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, report_commits=True))
    [member] = clients.stable("a")
    clients.now = 5.0
    clients.commit(17, metadata="mine", member_id=member, generation=1)
    clients.commit(18, metadata="x" * 4097, member_id=member, generation=1)
    clients.commit(19, member_id="x", generation=1)
    [commit] = clients.commits
    assert [json.loads(line) for line in commit_lines(commit)] == [
        {
            "time": 5.0,
            "group": GROUP,
            "topic": "orders",
            "partition": 0,
            "offset": 17,
            "metadata": "mine",
            "leader_epoch": -1,
            "member": "a-1",
            "generation": 1,
        }
    ]


def test_only_what_the_storage_has_stored_is_reported() -> None:
    storage = SlowStorage()
    storage.slow = (StoreOffsets,)
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, report_commits=True), storage)
    for _ in range(2):
        clients.send(CommitRequest(GROUP, {ORDERS: CommittedValue(1), PAYMENTS: CommittedValue(1)}))
    clients.receive_work(storage.open.pop()[0], OffsetsStored({PAYMENTS: KafkaError.ILLEGAL_GENERATION}))
    clients.receive_work(storage.open.pop()[0], WorkFailed(KafkaError.NOT_COORDINATOR))
    assert [list(commit.offsets) for commit in clients.commits] == [[ORDERS]]


def test_commits_are_not_reported_by_default() -> None:
    clients = Clients()
    clients.commit()
    assert clients.commits == []


# Storage that is slow, or refuses


def slow_commits() -> tuple[Clients, SlowStorage]:
    storage = SlowStorage()
    storage.slow = (StoreOffsets, ReadOffsets)
    return Clients(AT_ONCE, storage), storage


def test_a_commit_is_answered_when_it_is_stored() -> None:
    clients, storage = slow_commits()
    commit = clients.send_use()
    assert clients.is_parked(commit)
    clients.receive_work(*storage.take())
    assert clients.answer(commit).errors == {ORDERS: KafkaError.NONE}


def test_a_commit_with_nothing_to_store_is_answered_at_once() -> None:
    clients, storage = slow_commits()
    assert clients.commit(metadata="x" * 4097) == "OFFSET_METADATA_TOO_LARGE"
    assert storage.open == []


def test_the_storage_may_refuse_single_partitions() -> None:
    clients, storage = slow_commits()
    commit = clients.send(CommitRequest(GROUP, {ORDERS: CommittedValue(1), PAYMENTS: CommittedValue(1)}))
    clients.receive_work(storage.open.pop()[0], OffsetsStored({PAYMENTS: KafkaError.ILLEGAL_GENERATION}))
    assert clients.answer(commit).errors == {ORDERS: KafkaError.NONE, PAYMENTS: KafkaError.ILLEGAL_GENERATION}


def test_a_commit_that_fails_has_the_error_for_each_partition() -> None:
    clients, storage = slow_commits()
    commit = clients.send_use()
    clients.receive_work(storage.open.pop()[0], WorkFailed(KafkaError.NOT_COORDINATOR))
    assert clients.answer(commit).errors == {ORDERS: KafkaError.NOT_COORDINATOR}


def test_a_commit_that_takes_too_long_is_answered_with_an_error_and_its_late_result_is_ignored() -> None:
    clients, storage = slow_commits()
    commit = clients.send_use()
    clients.wait(AT_ONCE.storage_timeout)
    assert clients.answer(commit).errors == {ORDERS: KafkaError.COORDINATOR_NOT_AVAILABLE}
    clients.receive_work(*storage.take())
    assert clients.answers == {}


def test_a_commit_on_its_way_is_answered_even_if_the_group_moves() -> None:
    clients, storage = slow_commits()
    commit = clients.send_use()
    clients.receive(GroupMoved(GROUP))
    clients.receive_work(*storage.take())
    assert clients.answer(commit).errors == {ORDERS: KafkaError.NONE}


def test_a_fetch_has_an_error_for_each_group_that_cannot_be_read() -> None:
    clients, storage = slow_commits()
    fetch = clients.send(FetchRequest({"a": None, "b": None}))
    clients.receive_work(storage.open.pop()[0], OffsetsRead({"a": KafkaError.GROUP_AUTHORIZATION_FAILED, "b": {}}))
    assert {name: each.error for name, each in clients.answer(fetch).groups.items()} == {"a": 30, "b": 0}
    fetch = clients.send(FetchRequest({"a": None}))
    clients.wait(AT_ONCE.storage_timeout)
    assert clients.answer(fetch).groups["a"].error == KafkaError.COORDINATOR_NOT_AVAILABLE
