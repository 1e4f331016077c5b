"""Requests of administrators: list, describe, delete groups and delete offsets."""

from __future__ import annotations

import pytest

from zkgroups.coordinator import (
    CoordinatorConfig,
    DeleteGroupsRequest,
    DescribedMember,
    DescribeRequest,
    KafkaError,
    ListRequest,
    LocateAnswer,
    LocateRequest,
    RebalanceNeeded,
)
from zkgroups.coordinator.storage.work import (
    DescribeStored,
    GroupsLocated,
    ListStored,
    LocateGroups,
    RemoveGroup,
    RemoveOffsets,
    Result,
    StoredDescribed,
    StoredGroup,
    StoredListed,
    WorkFailed,
)
from zkgroups.core.znodes.coordinator_node import CoordinatorNode

from .clients import AT_ONCE, GROUP, ORDERS, PAYMENTS, Clients, SlowStorage, protocols, subscribed

OLD = {"requires_known_member_id": False}
OTHER = CoordinatorNode("6f1c", "gateway-1", 19093, 19192)
SCALA = StoredGroup("Stable", "consumer", "range", (DescribedMember("scala-1", None, "scala", "h2"),))


# List


def test_groups_are_listed_with_their_states() -> None:
    clients = Clients()
    clients.stable("a")
    clients.commit(group="simple")
    assert clients.list() == {"billing": "Stable", "simple": "Empty"}


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"states": ["Stable"]}, ["billing"]),
        ({"states": ["empty", "Dead"]}, ["simple"]),
        ({"states": ["nonsense"]}, []),
        ({"types": ["classic"]}, ["billing", "simple"]),
        ({"types": ["Consumer"]}, []),
        ({"types": ["CLASSIC", "consumer"], "states": ["Stable"]}, ["billing"]),
    ],
)
def test_a_list_can_be_limited_to_states_and_types(filters: dict, found: list[str]) -> None:
    clients = Clients()
    clients.stable("a")
    clients.commit(group="simple")
    assert list(clients.list(**filters)) == found


def test_a_group_that_only_the_storage_knows_is_listed() -> None:
    clients = Clients()
    clients.commit()
    later = Clients(storage=clients.storage)
    assert later.list() == {GROUP: "Empty"}


def test_foreign_members_decide_the_state_of_a_group_without_own_members() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    clients.commit()
    storage.slow = (ListStored,)
    listing = clients.send(ListRequest())
    clients.receive_work(storage.open.pop()[0], StoredListed({GROUP: SCALA, "other": SCALA}))
    assert [(each.group, each.state) for each in clients.answer(listing).groups] == [
        (GROUP, "Stable"),
        ("other", "Stable"),
    ]


def test_a_list_that_fails_has_an_error() -> None:
    storage = SlowStorage()
    storage.slow = (ListStored,)
    clients = Clients(AT_ONCE, storage)
    listing = clients.send(ListRequest())
    clients.wait(AT_ONCE.storage_timeout)
    assert clients.answer(listing).error == KafkaError.COORDINATOR_NOT_AVAILABLE


# Describe


def test_a_stable_group_is_described_with_subscriptions_and_assignments() -> None:
    clients = Clients()
    clients.stable("a", client_host="/10.0.0.1")
    described = clients.describe()
    assert (described.error, described.state, described.protocol_type, described.protocol) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    assert described.members == (DescribedMember("a-1", None, "a", "/10.0.0.1", subscribed("orders"), b"1"),)


def test_a_group_that_rebalances_is_described_without_subscriptions() -> None:
    clients = Clients()
    clients.joined("a")
    described = clients.describe()
    assert (described.state, described.protocol) == ("CompletingRebalance", "")
    assert described.members == (DescribedMember("a-1", None, "a", ""),)
    clients.settle(clients.members)
    clients.receive(RebalanceNeeded(GROUP))
    described = clients.describe()
    assert (described.state, described.protocol) == ("PreparingRebalance", "")
    assert described.members == (DescribedMember("a-1", None, "a", ""),)


def test_a_group_that_does_not_exist_is_dead() -> None:
    described = Clients().describe()
    assert (described.error, described.state, described.members) == (0, "Dead", ())


def test_an_empty_group_keeps_its_protocol_type() -> None:
    clients = Clients()
    clients.leave(*clients.stable("a"))
    described = clients.describe()
    assert (described.state, described.protocol_type, described.protocol) == ("Empty", "consumer", "")


def test_foreign_members_are_described_beside_the_own_ones() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    clients.stable("a")
    storage.slow = (DescribeStored,)
    describing = clients.send(DescribeRequest((GROUP, "other", "none")))
    clients.receive_work(storage.open.pop()[0], StoredDescribed({GROUP: SCALA, "other": SCALA}))
    mixed, other, none = clients.answer(describing).groups
    assert [member.member_id for member in mixed.members] == ["a-1", "scala-1"]
    assert [member.member_id for member in other.members] == ["scala-1"]
    assert [group.state for group in (mixed, other, none)] == ["Stable", "Stable", "Dead"]


def test_a_group_of_another_coordinator_is_not_described_here() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    storage.slow = (DescribeStored,)
    describing = clients.send(DescribeRequest((GROUP, "other")))
    clients.receive_work(storage.open.pop()[0], StoredDescribed({GROUP: SCALA, "other": KafkaError.NOT_COORDINATOR}))
    assert [group.error.name for group in clients.answer(describing).groups] == ["NONE", "NOT_COORDINATOR"]


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (GroupsLocated({"other": OTHER}), LocateAnswer(KafkaError.NONE, {"other": OTHER})),
        (WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE), LocateAnswer(KafkaError.COORDINATOR_NOT_AVAILABLE)),
    ],
)
def test_the_storage_knows_the_other_coordinators(result: Result, answer: LocateAnswer) -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    storage.slow = (LocateGroups,)
    locating = clients.send(LocateRequest((GROUP, "other")))
    clients.receive_work(storage.open.pop()[0], result)
    assert clients.answer(locating) == answer


def test_each_group_of_a_description_that_fails_has_an_error() -> None:
    storage = SlowStorage()
    storage.slow = (DescribeStored,)
    clients = Clients(AT_ONCE, storage)
    describing = clients.send(DescribeRequest(("a", "b")))
    clients.receive_work(storage.open.pop()[0], WorkFailed(KafkaError.NOT_COORDINATOR))
    assert [group.error for group in clients.answer(describing).groups] == [16, 16]


# Delete groups


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    clients = Clients()
    clients.commit()
    assert clients.delete(GROUP) == {GROUP: "NONE"}
    assert clients.fetch() == {}
    assert clients.list() == {}
    assert clients.describe().state == "Dead"


def test_a_group_with_members_is_not_deleted() -> None:
    clients = Clients()
    [member] = clients.stable("a")
    assert clients.delete(GROUP) == {GROUP: "NON_EMPTY_GROUP"}
    assert clients.beat(member) == "NONE"


def test_several_groups_have_one_result_each() -> None:
    clients = Clients()
    clients.stable("a")
    clients.commit(group="simple")
    assert clients.delete("none", GROUP, "simple") == {
        "none": "GROUP_ID_NOT_FOUND",
        GROUP: "NON_EMPTY_GROUP",
        "simple": "NONE",
    }
    assert clients.delete() == {}
    assert clients.delete("none", "none") == {"none": "GROUP_ID_NOT_FOUND"}


def test_a_group_that_only_the_storage_knows_is_deleted() -> None:
    clients = Clients()
    clients.commit()
    assert Clients(storage=clients.storage).delete(GROUP) == {GROUP: "NONE"}
    assert clients.fetch() == {}


def test_a_deleted_group_can_be_used_again() -> None:
    clients = Clients()
    clients.leave(*clients.stable("a"))
    clients.delete(GROUP)
    clients.stable("b")
    assert clients.group.generation == 1


def test_the_result_of_a_deletion_is_that_of_the_storage() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    clients.commit()
    storage.slow = (RemoveGroup,)
    deletion = clients.send(DeleteGroupsRequest((GROUP, "none")))
    assert clients.is_parked(deletion)
    clients.receive_work(storage.open.pop()[0], WorkFailed(KafkaError.GROUP_AUTHORIZATION_FAILED))
    assert clients.answer(deletion).errors == {GROUP: 30, "none": 69}
    assert clients.fetch() == {"orders/0": 17}


# Delete offsets


def with_two_offsets(**fields: object) -> Clients:
    clients = Clients()
    clients.commit(1, ORDERS)
    clients.commit(2, PAYMENTS)
    clients.stable("a", **fields)
    return clients


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    clients = with_two_offsets()
    assert clients.delete_offsets(ORDERS, PAYMENTS) == (
        "NONE",
        {"orders/0": "GROUP_SUBSCRIBED_TO_TOPIC", "payments/0": "NONE"},
    )
    assert clients.fetch() == {"orders/0": 1}
    assert clients.delete_offsets(ORDERS) == ("NONE", {"orders/0": "GROUP_SUBSCRIBED_TO_TOPIC"})


def test_offsets_of_a_group_without_members_are_deleted() -> None:
    clients = with_two_offsets()
    clients.leave(*clients.members)
    assert clients.delete_offsets(ORDERS, PAYMENTS) == ("NONE", {"orders/0": "NONE", "payments/0": "NONE"})
    assert clients.fetch() == {}


def test_no_offset_is_deleted_if_the_subscriptions_cannot_be_read() -> None:
    clients = with_two_offsets(protocols=protocols("range", metadata=b"?"))
    assert clients.delete_offsets(PAYMENTS) == ("NONE", {"payments/0": "GROUP_SUBSCRIBED_TO_TOPIC"})


def test_no_offset_is_deleted_before_the_first_generation() -> None:
    clients = Clients(CoordinatorConfig())
    clients.commit()
    clients.join(**OLD)
    assert clients.delete_offsets(PAYMENTS) == ("NONE", {"payments/0": "GROUP_SUBSCRIBED_TO_TOPIC"})


def test_offsets_of_a_group_with_members_of_another_kind_are_not_deleted() -> None:
    assert with_two_offsets(protocol_type="connect").delete_offsets(PAYMENTS) == ("NON_EMPTY_GROUP", {})


def test_offsets_of_a_group_that_does_not_exist_cannot_be_deleted() -> None:
    assert Clients().delete_offsets(ORDERS) == ("GROUP_ID_NOT_FOUND", {})


@pytest.mark.parametrize("failure", [KafkaError.NOT_COORDINATOR, None])
def test_the_result_of_deleting_offsets_is_that_of_the_storage(failure: KafkaError | None) -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    clients.commit()
    storage.slow = (RemoveOffsets,)
    deletion = clients.send_delete_offsets(ORDERS)
    assert clients.is_parked(deletion)
    clients.receive_work(*(storage.take() if failure is None else (storage.open.pop()[0], WorkFailed(failure))))
    assert clients.answer(deletion).errors == {ORDERS: failure or KafkaError.NONE}
