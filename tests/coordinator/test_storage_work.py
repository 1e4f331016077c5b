"""Groups are loaded before use, members are released, and a coordinator that closes answers everything."""

from __future__ import annotations

import pytest

from zkgroups.coordinator import (
    CloseRequested,
    CommitRequest,
    CommittedValue,
    DeleteGroupsRequest,
    DeleteOffsetsRequest,
    DescribeRequest,
    FetchRequest,
    HeartbeatRequest,
    KafkaError,
    LeaveRequest,
    ListRequest,
    MemberIdentity,
    Request,
    SyncRequest,
)
from zkgroups.coordinator.storage.work import (
    DescribeStored,
    GroupLoaded,
    ListStored,
    LoadGroup,
    ReadOffsets,
    ReleaseMembers,
    StoreGeneration,
    StoreOffsets,
    WorkFailed,
)

from .clients import AT_ONCE, GROUP, ORDERS, SESSION, Clients, SlowStorage, join_request

OLD = {"requires_known_member_id": False}
EVERY_REQUEST: list[Request] = [
    join_request(**OLD),
    SyncRequest(GROUP, "x", 1, {}),
    HeartbeatRequest(GROUP, "x", 1),
    LeaveRequest(GROUP, (MemberIdentity("x"),)),
    CommitRequest(GROUP, {ORDERS: CommittedValue(1)}),
    FetchRequest({GROUP: None}),
    ListRequest(),
    DescribeRequest((GROUP,)),
    DeleteGroupsRequest((GROUP,)),
    DeleteOffsetsRequest(GROUP, (ORDERS,)),
]
TO_ONE_GROUP = [
    request for request in EVERY_REQUEST if not isinstance(request, FetchRequest | ListRequest | DescribeRequest)
]


def kind(request: Request) -> str:
    return type(request).__name__


def slow(*kinds: type) -> tuple[Clients, SlowStorage]:
    storage = SlowStorage()
    storage.slow = kinds
    return Clients(AT_ONCE, storage), storage


def error_of(answer: object) -> int:
    """The error of an answer, or that of its only part."""
    if (error := getattr(answer, "error", None)) is not None:
        return int(error)
    for name in ("errors", "groups"):
        if (parts := getattr(answer, name, None)) is not None:
            [part] = parts.values() if hasattr(parts, "values") else parts
            return int(getattr(part, "error", part))
    raise AssertionError(answer)


def test_a_group_continues_after_its_stored_generation() -> None:
    clients, storage = slow(LoadGroup)
    join = clients.join(**OLD)
    assert clients.is_parked(join)
    clients.receive_work(storage.open.pop()[0], GroupLoaded(True, generation=7, protocol_type="consumer"))
    assert clients.answer(join).generation == 8


def test_requests_wait_while_the_group_is_loaded_and_are_processed_in_order() -> None:
    clients, storage = slow(LoadGroup)
    ids = [clients.join(**OLD), clients.send(HeartbeatRequest(GROUP, "app-1", 1))]
    assert len(storage.open) == 1
    clients.receive_work(*storage.take())
    assert [clients.answer(id).error for id in ids] == [0, 0]


@pytest.mark.parametrize("request_", TO_ONE_GROUP, ids=kind)
def test_a_group_that_cannot_be_loaded_refuses_each_request(request_: Request) -> None:
    clients, storage = slow(LoadGroup)
    id = clients.send(request_)
    clients.receive_work(storage.open.pop()[0], WorkFailed(KafkaError.NOT_COORDINATOR))
    assert error_of(clients.answer(id)) == KafkaError.NOT_COORDINATOR
    assert clients.coordinator.groups() == []


@pytest.mark.parametrize("request_", TO_ONE_GROUP, ids=kind)
def test_a_group_that_is_loaded_for_too_long_asks_to_retry(request_: Request) -> None:
    clients, storage = slow(LoadGroup)
    id = clients.send(request_)
    clients.wait(AT_ONCE.storage_timeout)
    assert error_of(clients.answer(id)) == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    clients.receive_work(*storage.take())
    assert clients.answers == {}
    id = clients.send(request_)
    assert len(storage.open) == 1


@pytest.mark.parametrize("request_", TO_ONE_GROUP, ids=kind)
def test_a_request_that_waits_while_an_earlier_one_deletes_the_group_finds_no_group(request_: Request) -> None:
    clients, storage = slow(LoadGroup)
    deletion, id = clients.send(DeleteGroupsRequest((GROUP,))), clients.send(request_)
    clients.receive_work(storage.open.pop()[0], GroupLoaded(True, generation=7, protocol_type="consumer"))
    assert error_of(clients.answer(deletion)) == KafkaError.NONE
    clients.receive_work(*storage.take())
    assert error_of(clients.answer(id)) == error_of(Clients().ask(request_))


@pytest.mark.parametrize("request_", EVERY_REQUEST, ids=kind)
def test_a_request_about_an_unknown_group_leaves_nothing_behind(request_: Request) -> None:
    clients = Clients()
    clients.ask(request_)
    creates = type(request_).__name__ in ("JoinRequest", "CommitRequest")
    assert clients.coordinator.groups() == ([GROUP] if creates else [])
    assert (clients.coordinator.next_deadline is not None) == creates


def test_members_that_leave_or_expire_are_released() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    first, second, third = clients.stable("a", "b", "c")
    storage.slow = (ReleaseMembers,)
    clients.leave(first)
    assert [work for _id, work in storage.open] == [ReleaseMembers(GROUP, (first,))]
    assert [(each.member_id, each.state) for each in clients.group.members][-1] == (first, "Leaving")
    clients.receive_work(*storage.take())
    assert first not in clients.members
    clients.wait(SESSION)
    assert [work.members for _id, work in storage.open] == [(second,), (third,)]


def test_a_member_that_never_belonged_to_a_generation_has_nothing_to_release() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    [_first] = clients.stable("a")
    clients.join(client_id="b", **OLD)
    assert clients.leave("b-2") == ["NONE"]
    assert not [work for work in storage.done if isinstance(work, ReleaseMembers)]


def test_a_release_that_fails_does_not_keep_the_member() -> None:
    clients, storage = slow(ReleaseMembers)
    [member] = clients.stable("a")
    clients.leave(member)
    clients.wait(AT_ONCE.storage_timeout)
    assert storage.open
    assert clients.members == []


def test_an_empty_generation_is_stored() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    clients.leave(*clients.stable("a"))
    last = [work for work in storage.done if isinstance(work, StoreGeneration)][-1]
    assert (last.generation, last.members) == (2, {})


def test_the_work_of_a_closed_coordinator_is_answered_and_nothing_is_accepted() -> None:
    clients, _storage = slow(LoadGroup)
    waiting = [clients.send(request) for request in TO_ONE_GROUP]
    clients.receive(CloseRequested())
    assert {error_of(clients.answer(id)) for id in waiting} == {KafkaError.COORDINATOR_NOT_AVAILABLE}
    for request in EVERY_REQUEST:
        assert error_of(clients.ask(request)) == KafkaError.COORDINATOR_NOT_AVAILABLE
    assert clients.coordinator.next_deadline is None


def test_closing_answers_parked_joins_syncs_commits_and_reads() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    _first, second = clients.joined("a", "b")
    sync = clients.sync(second)
    storage.slow = (StoreOffsets, ReadOffsets, ListStored, DescribeStored)
    commit = clients.send_use(group="simple")
    reads = [clients.send(request) for request in (FetchRequest({"a": None}), ListRequest(), DescribeRequest(("a",)))]
    clients.receive(CloseRequested())
    assert clients.answer(sync).error == KafkaError.NOT_COORDINATOR
    assert {error_of(clients.answer(id)) for id in (commit, *reads)} == {KafkaError.COORDINATOR_NOT_AVAILABLE}
    assert clients.answers == {}


def test_closing_answers_a_parked_join() -> None:
    clients = Clients()
    clients.stable("a")
    join = clients.join(client_id="b", **OLD)
    clients.receive(CloseRequested())
    assert clients.answer(join).error == KafkaError.NOT_COORDINATOR
