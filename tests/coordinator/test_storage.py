"""Offsets and administration: commits, fetches, lists, descriptions, deletions; and storage that is slow or fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zkgroups import coordinator
from zkgroups.coordinator import KafkaError
from zkgroups.coordinator.storage import (
    DescribeStored,
    GroupLoaded,
    GroupsLocated,
    ListStored,
    LoadGroup,
    LocateGroups,
    OffsetsRead,
    OffsetsStored,
    ReadOffsets,
    ReleaseMembers,
    RemoveGroup,
    RemoveOffsets,
    Result,
    StoredDescribed,
    StoredGroup,
    StoredListed,
    StoreGeneration,
    StoreOffsets,
    WorkFailed,
)
from zkgroups.core.znodes.own_nodes import CoordinatorNode

from .clients import (
    AT_ONCE,
    GROUP,
    OLD,
    ORDERS,
    PAYMENTS,
    SESSION,
    Clients,
    SlowStorage,
    join_request,
    protocols,
    subscribed,
)

REPORTING = coordinator.CoordinatorConfig(initial_rebalance_delay=0, report_commits=True)
BOTH = {ORDERS: coordinator.CommittedValue(1), PAYMENTS: coordinator.CommittedValue(1)}
SCALA = StoredGroup("Stable", "consumer", "range", (coordinator.DescribedMember("scala-1", None, "scala", "h2"),))
OTHER = CoordinatorNode("6f1c", "gateway-1", 19093, 19192)


def slow(*kinds: type, config: coordinator.CoordinatorConfig = AT_ONCE) -> tuple[Clients, SlowStorage]:
    storage = SlowStorage()
    storage.slow = kinds
    return Clients(config, storage), storage


def finish(clients: Clients, storage: SlowStorage, result: Result | KafkaError | None = None) -> None:
    """Finish the newest work, with this result or error."""
    if result is None:
        clients.receive_work(*storage.take())
    else:
        failed = WorkFailed(result) if isinstance(result, KafkaError) else result
        clients.receive_work(storage.open.pop()[0], failed)


# Commits


def test_a_member_commits_and_anyone_fetches() -> None:
    clients = Clients()
    [member] = clients.stable("a")
    clients.now = 5.0
    clients.ask(coordinator.CommitRequest(GROUP, {ORDERS: coordinator.CommittedValue(17, "mine", 3)}, member, 1))
    assert clients.fetch(ORDERS, PAYMENTS) == clients.fetch() == {"orders/0": 17}
    assert clients.ask(coordinator.FetchRequest({GROUP: None})).groups[GROUP].offsets == {
        ORDERS: coordinator.CommittedValue(17, "mine", 3, committed_at=5.0)
    }


def test_offsets_of_several_groups_are_fetched_at_once() -> None:
    clients = Clients()
    clients.commit(1, group="a")
    clients.commit(2, group="b")
    clients.commit(3, group="")
    groups = clients.ask(coordinator.FetchRequest({"a": None, "b": (ORDERS,), "none": None, "": None})).groups
    found = {name: [value.offset for value in each.offsets.values()] for name, each in groups.items()}
    assert found == {"a": [1], "b": [2], "none": [], "": [3]}
    assert {each.error for each in groups.values()} == {0}
    assert clients.coordinator.groups() == ["", "a", "b"]


def test_a_simple_consumer_can_commit_only_to_a_group_without_members() -> None:
    clients = Clients()
    assert clients.commit() == "NONE"
    assert (clients.state, clients.group.protocol_type) == ("Empty", "")
    [member] = clients.joined("a")
    assert clients.commit() == "UNKNOWN_MEMBER_ID"
    clients.settle([member])
    assert clients.commit() == "UNKNOWN_MEMBER_ID"
    clients.leave(member)
    assert clients.commit() == clients.commit(member_id="x", generation=-1) == "NONE"
    assert clients.commit(member_id="x", generation=0) == "UNKNOWN_MEMBER_ID"
    waiting = Clients(coordinator.CoordinatorConfig())
    waiting.join(**OLD)
    assert waiting.commit() == "UNKNOWN_MEMBER_ID"


def test_metadata_that_is_too_long_is_refused_for_its_partition_alone() -> None:
    clients, storage = slow(config=coordinator.CoordinatorConfig(max_offset_metadata=4))
    offsets = {ORDERS: coordinator.CommittedValue(1, "12345"), PAYMENTS: coordinator.CommittedValue(2, "1234")}
    errors = clients.ask(coordinator.CommitRequest(GROUP, offsets)).errors
    assert errors == {ORDERS: KafkaError.OFFSET_METADATA_TOO_LARGE, PAYMENTS: KafkaError.NONE}
    assert clients.fetch() == {"payments/0": 2}
    storage.slow = (StoreOffsets,)
    assert clients.commit(metadata="12345") == "OFFSET_METADATA_TOO_LARGE", "nothing is stored"


def test_stored_commits_are_reported_for_a_log_if_the_configuration_asks_for_it() -> None:
    clients, storage = slow(config=REPORTING)
    [member] = clients.stable("a")
    clients.now = 5.0
    clients.commit(17, metadata="mine", member_id=member, generation=1)
    clients.commit(18, metadata="x" * 4097, member_id=member, generation=1)
    clients.commit(19, member_id="x", generation=1)
    [commit] = clients.commits
    place = {"time": 5.0, "group": GROUP, "topic": "orders", "partition": 0, "offset": 17, "metadata": "mine"}
    [line] = coordinator.commit_lines(commit)
    assert json.loads(line) == place | {"leader_epoch": -1, "member": "a-1", "generation": 1}
    storage.slow = (StoreOffsets,)
    for result in (OffsetsStored({PAYMENTS: KafkaError.ILLEGAL_GENERATION}), KafkaError.NOT_COORDINATOR):
        clients.send(coordinator.CommitRequest(GROUP, BOTH, member, 1))
        finish(clients, storage, result)
    assert [list(commit.offsets) for commit in clients.commits[1:]] == [[ORDERS]]
    silent = Clients()
    silent.commit()
    assert silent.commits == []


def test_a_commit_is_answered_when_it_is_stored_or_has_failed_also_if_the_group_moves() -> None:
    for moves in (False, True):
        clients, storage = slow(StoreOffsets)
        commit = clients.send_use()
        assert clients.is_parked(commit)
        if moves:
            clients.receive(coordinator.GroupMoved(GROUP))
        finish(clients, storage)
        assert clients.answer(commit).errors == {ORDERS: KafkaError.NONE}
    refused = OffsetsStored({PAYMENTS: KafkaError.ILLEGAL_GENERATION})
    for result, errors in ((refused, [0, 22]), (KafkaError.NOT_COORDINATOR, [16, 16])):
        commit = clients.send(coordinator.CommitRequest(GROUP, BOTH))
        finish(clients, storage, result)
        assert clients.answer(commit).errors == dict(zip(BOTH, errors, strict=True))
    commit = clients.send_use()
    clients.wait(AT_ONCE.storage_timeout)
    assert clients.answer(commit).errors == {ORDERS: KafkaError.COORDINATOR_NOT_AVAILABLE}
    finish(clients, storage)  # too late
    assert clients.answers == {}


# Lists


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, {"billing": "Stable", "simple": "Empty"}),
        ({"states": ["Stable"]}, {"billing": "Stable"}),
        ({"states": ["empty", "Dead"]}, {"simple": "Empty"}),
        ({"states": ["nonsense"]}, {}),
        ({"types": ["classic"]}, {"billing": "Stable", "simple": "Empty"}),
        ({"types": ["Consumer"]}, {}),
        ({"types": ["CLASSIC", "consumer"], "states": ["Stable"]}, {"billing": "Stable"}),
    ],
)
def test_groups_are_listed_with_their_states_and_can_be_limited_to_states_and_types(
    filters: dict, found: dict[str, str]
) -> None:
    clients = Clients()
    clients.stable("a")
    clients.commit(group="simple")
    assert clients.list(**filters) == found


def test_foreign_members_decide_the_state_of_a_group_without_own_members() -> None:
    clients, storage = slow()
    clients.commit()
    assert Clients(storage=storage.inner).list() == {GROUP: "Empty"}, "only the storage knows it"
    storage.slow = (ListStored,)
    listing = clients.send(coordinator.ListRequest())
    finish(clients, storage, StoredListed({GROUP: SCALA, "other": SCALA}))
    assert {each.group: each.state for each in clients.answer(listing).groups} == {GROUP: "Stable", "other": "Stable"}


# Descriptions


def test_a_group_is_described_with_subscriptions_and_assignments_only_if_it_is_stable() -> None:
    clients = Clients()

    def described() -> tuple[Any, ...]:
        found = clients.describe()
        assert found.error == 0
        return found.state, found.protocol_type, found.protocol, found.members

    assert described()[::3] == ("Dead", ())
    members = clients.joined("a", client_host="/10.0.0.1")
    bare = coordinator.DescribedMember("a-1", None, "a", "/10.0.0.1")
    assert described() == ("CompletingRebalance", "consumer", "", (bare,))
    clients.settle(members)
    whole = coordinator.DescribedMember("a-1", None, "a", "/10.0.0.1", subscribed("orders"), b"1")
    assert described() == ("Stable", "consumer", "range", (whole,))
    clients.receive(coordinator.RebalanceNeeded(GROUP))
    assert described() == ("PreparingRebalance", "consumer", "", (bare,))
    clients.leave(*members)
    assert described() == ("Empty", "consumer", "", ())


def test_foreign_members_are_described_beside_the_own_ones_but_no_groups_of_other_coordinators() -> None:
    clients, storage = slow()
    clients.stable("a")
    storage.slow = (DescribeStored,)
    describing = clients.send(coordinator.DescribeRequest((GROUP, "other", "none", "elsewhere")))
    elsewhere = {"elsewhere": KafkaError.NOT_COORDINATOR}
    finish(clients, storage, StoredDescribed({GROUP: SCALA, "other": SCALA, **elsewhere}))
    *groups, last = clients.answer(describing).groups
    assert [[member.member_id for member in group.members] for group in groups] == [["a-1", "scala-1"], ["scala-1"], []]
    assert [group.state for group in groups] == ["Stable", "Stable", "Dead"]
    assert last.error is KafkaError.NOT_COORDINATOR


# Work that fails or takes too long

READS: list[tuple[type, coordinator.Request, Any]] = [
    (ListStored, coordinator.ListRequest(), lambda answer: [answer.error]),
    (DescribeStored, coordinator.DescribeRequest(("a", "b")), lambda answer: [group.error for group in answer.groups]),
    (
        ReadOffsets,
        coordinator.FetchRequest({"a": None, "b": None}),
        lambda answer: [each.error for each in answer.groups.values()],
    ),
    (LocateGroups, coordinator.LocateRequest((GROUP,)), lambda answer: [answer.error]),
]


@pytest.mark.parametrize(("kind", "request_", "errors"), READS, ids=lambda each: getattr(each, "__name__", None))
def test_a_read_that_fails_or_takes_too_long_has_an_error_for_each_group(
    kind: type, request_: coordinator.Request, errors: Any
) -> None:
    clients, storage = slow(kind)
    reading = clients.send(request_)
    finish(clients, storage, KafkaError.NOT_COORDINATOR)
    assert set(errors(clients.answer(reading))) == {KafkaError.NOT_COORDINATOR}
    reading = clients.send(request_)
    clients.wait(AT_ONCE.storage_timeout)
    assert set(errors(clients.answer(reading))) == {KafkaError.COORDINATOR_NOT_AVAILABLE}


def test_the_result_of_a_read_or_a_deletion_is_that_of_the_storage() -> None:
    clients, storage = slow(ReadOffsets, LocateGroups, RemoveOffsets)
    fetch = clients.send(coordinator.FetchRequest({"a": None, "b": None}))
    forbidden = coordinator.FetchedOffsets(KafkaError.GROUP_AUTHORIZATION_FAILED)
    finish(clients, storage, OffsetsRead({"a": forbidden, "b": coordinator.FetchedOffsets(KafkaError.NONE)}))
    assert {name: each.error for name, each in clients.answer(fetch).groups.items()} == {"a": 30, "b": 0}
    locating = clients.send(coordinator.LocateRequest((GROUP, "other")))
    finish(clients, storage, GroupsLocated({"other": OTHER}))
    assert clients.answer(locating) == coordinator.LocateAnswer(KafkaError.NONE, {"other": OTHER})
    clients.commit()
    for failure in (KafkaError.NOT_COORDINATOR, None):
        deletion = clients.send_delete_offsets(ORDERS)
        assert clients.is_parked(deletion)
        finish(clients, storage, failure)
        assert clients.answer(deletion).errors == {ORDERS: failure or KafkaError.NONE}
    clients.commit()
    storage.slow = (RemoveGroup,)
    deletion = clients.send(coordinator.DeleteGroupsRequest((GROUP, "none")))
    assert clients.is_parked(deletion)
    finish(clients, storage, KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert clients.answer(deletion).errors == {GROUP: 30, "none": 69}
    assert clients.fetch() == {"orders/0": 17}


# Deletions


def test_a_group_without_members_is_deleted_with_its_offsets_and_can_be_used_again() -> None:
    clients = Clients()
    clients.commit()
    clients.leave(*clients.stable("a"))
    assert clients.delete(GROUP) == {GROUP: "NONE"}
    assert (clients.fetch(), clients.list(), clients.describe().state) == ({}, {}, "Dead")
    clients.stable("b")
    assert clients.group.generation == 1


def test_several_groups_have_one_result_each() -> None:
    clients = Clients()
    [member] = clients.stable("a")
    clients.commit(group="simple")
    assert clients.delete("none", GROUP, "simple") == {
        "none": "GROUP_ID_NOT_FOUND",
        GROUP: "NON_EMPTY_GROUP",
        "simple": "NONE",
    }
    assert clients.beat(member) == "NONE"
    assert clients.delete() == {}
    assert clients.delete("none", "none") == {"none": "GROUP_ID_NOT_FOUND"}
    clients.commit(group="other")
    assert Clients(storage=clients.storage).delete("other") == {"other": "NONE"}, "only the storage knows it"


def with_two_offsets(**fields: object) -> Clients:
    clients = Clients()
    clients.commit(1, ORDERS)
    clients.commit(2, PAYMENTS)
    clients.stable("a", **fields)
    return clients


def test_offsets_are_deleted_only_if_no_member_can_subscribe_to_their_topic() -> None:
    clients = with_two_offsets()
    kept = {"orders/0": "GROUP_SUBSCRIBED_TO_TOPIC"}
    assert clients.delete_offsets(ORDERS, PAYMENTS) == ("NONE", {**kept, "payments/0": "NONE"})
    assert clients.fetch() == {"orders/0": 1}
    assert clients.delete_offsets(ORDERS) == ("NONE", kept)
    clients.leave(*clients.members)
    assert clients.delete_offsets(ORDERS, PAYMENTS) == ("NONE", {"orders/0": "NONE", "payments/0": "NONE"})
    assert clients.fetch() == {}

    kept = {"payments/0": "GROUP_SUBSCRIBED_TO_TOPIC"}
    unreadable = with_two_offsets(protocols=protocols("range", metadata=b"?"))
    assert unreadable.delete_offsets(PAYMENTS) == ("NONE", kept)
    first = Clients(coordinator.CoordinatorConfig())
    first.commit()
    first.join(**OLD)
    assert first.delete_offsets(PAYMENTS) == ("NONE", kept), "before the first generation"
    assert with_two_offsets(protocol_type="connect").delete_offsets(PAYMENTS) == ("NON_EMPTY_GROUP", {})
    assert Clients().delete_offsets(ORDERS) == ("GROUP_ID_NOT_FOUND", {})


# Groups are loaded before use

TO_ONE_GROUP: list[coordinator.Request] = [
    join_request(**OLD),
    coordinator.SyncRequest(GROUP, "x", 1, {}),
    coordinator.HeartbeatRequest(GROUP, "x", 1),
    coordinator.LeaveRequest(GROUP, (coordinator.MemberIdentity("x"),)),
    coordinator.CommitRequest(GROUP, {ORDERS: coordinator.CommittedValue(1)}),
    coordinator.DeleteGroupsRequest((GROUP,)),
    coordinator.DeleteOffsetsRequest(GROUP, (ORDERS,)),
]
EVERY_REQUEST = [
    *TO_ONE_GROUP,
    coordinator.FetchRequest({GROUP: None}),
    coordinator.ListRequest(),
    coordinator.DescribeRequest((GROUP,)),
]


def error_of(answer: object) -> int:
    """The error of an answer, or that of its only part."""
    if (error := getattr(answer, "error", None)) is not None:
        return int(error)
    for name in ("errors", "groups"):
        if (parts := getattr(answer, name, None)) is not None:
            [part] = parts.values() if hasattr(parts, "values") else parts
            return int(getattr(part, "error", part))
    raise AssertionError(answer)


def test_a_group_continues_after_its_stored_generation_with_the_requests_in_order() -> None:
    clients, storage = slow(LoadGroup)
    ids = [clients.join(**OLD), clients.send(coordinator.HeartbeatRequest(GROUP, "app-1", 8))]
    assert clients.is_parked(ids[0])
    assert len(storage.open) == 1
    finish(clients, storage, GroupLoaded(True, generation=7, protocol_type="consumer"))
    answers = [clients.answer(id) for id in ids]
    assert [answer.error for answer in answers] == [0, 0]
    assert answers[0].generation == 8


@pytest.mark.parametrize("request_", TO_ONE_GROUP, ids=lambda request: type(request).__name__)
def test_a_group_that_cannot_be_loaded_refuses_each_request(request_: coordinator.Request) -> None:
    clients, storage = slow(LoadGroup)
    id = clients.send(request_)
    finish(clients, storage, KafkaError.NOT_COORDINATOR)
    assert error_of(clients.answer(id)) == KafkaError.NOT_COORDINATOR
    assert clients.coordinator.groups() == []
    id = clients.send(request_)
    clients.wait(AT_ONCE.storage_timeout)
    assert error_of(clients.answer(id)) == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    finish(clients, storage)  # too late
    assert clients.answers == {}
    # Behind a request that deletes the group, it finds no group.
    deletion, id = clients.send(coordinator.DeleteGroupsRequest((GROUP,))), clients.send(request_)
    finish(clients, storage, GroupLoaded(True, generation=7, protocol_type="consumer"))
    assert error_of(clients.answer(deletion)) == KafkaError.NONE
    finish(clients, storage)
    assert error_of(clients.answer(id)) == error_of(Clients().ask(request_))


def test_a_request_about_an_unknown_group_leaves_nothing_behind() -> None:
    for request in EVERY_REQUEST:
        clients = Clients()
        clients.ask(request)
        creates = type(request).__name__ in ("JoinRequest", "CommitRequest")
        assert clients.coordinator.groups() == ([GROUP] if creates else [])
        assert (clients.coordinator.next_deadline is not None) == creates


# Members are released


def test_members_that_leave_or_expire_are_released_and_an_empty_generation_is_stored() -> None:
    clients, storage = slow()
    first, second, third = clients.stable("a", "b", "c")
    clients.join(client_id="d", **OLD)
    assert clients.leave("d-4") == ["NONE"]  # it never belonged to a generation
    storage.slow = (ReleaseMembers,)
    clients.leave(first)
    assert [work for _id, work in storage.open] == [ReleaseMembers(GROUP, (first,))]
    assert [(each.member_id, each.state) for each in clients.group.members][-1] == (first, "Leaving")
    finish(clients, storage)
    assert first not in clients.members
    clients.wait(SESSION)
    assert [work.members for _id, work in storage.open] == [(second,), (third,)]
    clients.wait(AT_ONCE.storage_timeout)
    assert clients.members == [], "a release that fails does not keep the member"
    last = [work for work in storage.done if isinstance(work, StoreGeneration)][-1]
    assert (last.generation, last.members) == (clients.group.generation, {})


# The end


def test_closing_answers_everything_and_nothing_is_accepted_any_more() -> None:
    clients, storage = slow()
    _first, second = clients.joined("a", "b")
    sync = clients.sync(second)
    storage.slow = (StoreOffsets, ReadOffsets, ListStored, DescribeStored, LoadGroup)
    reads = [
        coordinator.FetchRequest({"a": None}),
        coordinator.ListRequest(),
        coordinator.DescribeRequest(("a",)),
        coordinator.HeartbeatRequest("new", "x", 1),
    ]
    waiting = [clients.send_use(group="simple"), *map(clients.send, reads)]
    clients.receive(coordinator.CloseRequested())
    assert clients.answer(sync).error == KafkaError.NOT_COORDINATOR
    assert {error_of(clients.answer(id)) for id in waiting} == {KafkaError.COORDINATOR_NOT_AVAILABLE}
    assert clients.answers == {}
    for request in EVERY_REQUEST:
        assert error_of(clients.ask(request)) == KafkaError.COORDINATOR_NOT_AVAILABLE
    assert clients.coordinator.next_deadline is None
    clients = Clients()
    clients.stable("a")
    join = clients.join(client_id="b", **OLD)
    clients.receive(coordinator.CloseRequested())
    assert clients.answer(join).error == KafkaError.NOT_COORDINATOR
