"""The coordinator assigns the partitions itself: strategies, cooperative members, and failures."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import TopicPartition
from zkgroups.coordinator import (
    AssignmentBy,
    CoordinatorConfig,
    KafkaError,
    RebalanceNeeded,
    Subscription,
    decode_assignment,
    decode_subscription,
)
from zkgroups.coordinator.group import members
from zkgroups.coordinator.rules.assigning import withhold_owned
from zkgroups.coordinator.storage.strategies import BY_KAFKAS_NAME, assign_partitions
from zkgroups.coordinator.storage.work import PerformAssignment, PlannedMember, StoreGeneration, WorkFailed

from .clients import GROUP, REBALANCE, Clients, SlowStorage, join_request, protocols, subscribed

BY_COORDINATOR = CoordinatorConfig(initial_rebalance_delay=0, assignment_by=AssignmentBy.COORDINATOR)
OLD = {"requires_known_member_id": False}


def orders(*numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("orders", number) for number in numbers)


def shares(clients: Clients, *members: str) -> list[list[int]]:
    """The partitions that members get when they sync."""
    answers = [clients.answer(clients.sync(member)) for member in members]
    assert {answer.error for answer in answers} == {0}
    return [sorted(at.partition for at in decode_assignment(answer.assignment) or ()) for answer in answers]


def test_no_client_leads_and_everyone_gets_a_share() -> None:
    clients = Clients(BY_COORDINATOR)
    first, second = clients.joined("a", "b")
    assert clients.group.leader == "zkgroups"
    assert clients.state == "Stable"
    assert shares(clients, first, second) == [[0, 1], [2, 3]]


def test_the_answer_to_a_join_names_the_coordinator_as_the_leader() -> None:
    answer = Clients(BY_COORDINATOR).ask(join_request(**OLD))
    assert (answer.leader, answer.members, answer.protocol) == ("zkgroups", (), "range")


def test_assignments_that_clients_bring_are_ignored() -> None:
    clients = Clients(BY_COORDINATOR)
    [member] = clients.joined("a")
    answer = clients.answer(clients.sync(member, {member: b"mine"}))
    assert decode_assignment(answer.assignment) == frozenset(orders(0, 1, 2, 3))


def test_members_of_another_kind_are_still_led_by_a_member() -> None:
    clients = Clients(BY_COORDINATOR)
    [member] = clients.joined("a", protocol_type="connect")
    assert clients.group.leader == member
    assert clients.answer(clients.sync(member, {member: b"mine"})).assignment == b"mine"


def test_a_subscription_is_decoded_once_each_time_that_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may list very many partitions. All other clients wait meanwhile."""
    decoded: list[bytes] = []

    def decode(data: bytes) -> Subscription | None:
        decoded.append(data)
        return decode_subscription(data)

    monkeypatch.setattr(members, "decode_subscription", decode)
    clients = Clients(BY_COORDINATOR)
    first, second = clients.joined("a", "b")
    assert shares(clients, first, second) == [[0, 1], [2, 3]]
    assert len(decoded) == 2


def test_a_member_with_an_unreadable_subscription_gets_nothing() -> None:
    clients = Clients(BY_COORDINATOR)
    first, second = clients.joined("a", "b")
    clients.join(second, protocols=protocols("range", metadata=b"?"))
    clients.answer(clients.join(first))
    assert shares(clients, first, second) == [[0, 1, 2, 3], []]


def test_new_partitions_are_assigned_in_a_new_generation() -> None:
    clients = Clients(BY_COORDINATOR)
    [member] = clients.joined("a")
    clients.storage.partitions["orders"] = 5
    clients.receive(RebalanceNeeded(GROUP))
    clients.join(member)
    assert shares(clients, member) == [[0, 1, 2, 3, 4]]


def test_sticky_members_keep_what_they_had() -> None:
    clients = Clients(BY_COORDINATOR)
    sticky = protocols("sticky")
    first, second, third = clients.joined("a", "b", "c", protocols=sticky)
    before = shares(clients, first, second, third)
    clients.leave(first)
    for member in (second, third):
        clients.join(member, protocols=sticky)
    after = shares(clients, second, third)
    assert set(before[1]) <= set(after[0])
    assert set(before[2]) <= set(after[1])


def cooperative(*owned: int) -> dict:
    return {"protocols": protocols("cooperative-sticky", metadata=subscribed("orders", owned=orders(*owned)))}


def test_a_partition_is_withheld_until_its_owner_no_longer_lists_it() -> None:
    clients = Clients(BY_COORDINATOR)
    [first] = clients.joined("a", **cooperative())
    assert shares(clients, first) == [[0, 1, 2, 3]]
    new = clients.join(client_id="b", **cooperative(), **OLD)
    clients.join(first, **cooperative(0, 1, 2, 3))
    second = clients.answer(new).member_id
    kept, nothing = shares(clients, first, second)
    assert len(kept) == 2
    assert nothing == []
    clients.join(first, **cooperative(*kept))  # it has given up the others
    assert clients.beat(second) == "REBALANCE_IN_PROGRESS"
    clients.join(second, **cooperative())
    after = shares(clients, first, second)
    assert after[0] == kept
    assert sorted(after[0] + after[1]) == [0, 1, 2, 3]


def test_a_withheld_partition_is_assigned_although_its_static_owner_restarts_before_it_gives_it_up() -> None:
    """The new client lists nothing, and does not know that it should join again."""
    clients = Clients(BY_COORDINATOR)
    [first] = clients.joined("a", instance_id="i", **cooperative())
    new = clients.join(client_id="b", **cooperative(), **OLD)
    clients.join(first, instance_id="i", **cooperative(0, 1, 2, 3))
    second = clients.answer(new).member_id
    assert shares(clients, second) == [[]]
    restarted = clients.join(client_id="a", instance_id="i", **cooperative(), **OLD)
    assert clients.beat(second) == "REBALANCE_IN_PROGRESS"
    clients.join(second, **cooperative())
    found = clients.sync(clients.answer(restarted).member_id, instance_id="i"), clients.sync(second)
    given = [decode_assignment(clients.answer(id).assignment) or frozenset() for id in found]
    assert sorted(at.partition for each in given for at in each) == [0, 1, 2, 3]


def test_a_partition_of_a_cooperative_member_that_left_is_free_at_once() -> None:
    clients = Clients(BY_COORDINATOR)
    first, second = clients.joined("a", "b", **cooperative())
    kept, lost = shares(clients, first, second)
    clients.leave(second)
    clients.join(first, **cooperative(*kept))
    assert shares(clients, first) == [sorted(kept + lost)]


def test_a_partition_that_two_members_list_goes_to_nobody() -> None:
    listed = {"a": frozenset(orders(0)), "b": frozenset(orders(0, 1))}
    assert withhold_owned({"a": frozenset(orders(0)), "b": frozenset(orders(1))}, listed) == {
        "a": frozenset(),
        "b": frozenset(orders(1)),
    }


PARTITIONS = st.frozensets(st.integers(0, 5).map(lambda number: orders(number)[0]))


@given(st.dictionaries(st.sampled_from("abc"), PARTITIONS), st.dictionaries(st.sampled_from("abc"), PARTITIONS))
def test_what_is_assigned_is_never_listed_by_another_member(assigned: Mapping, owned: Mapping) -> None:
    for member, partitions in withhold_owned(assigned, owned).items():
        assert partitions <= assigned[member]
        assert all(at not in owned[other] for at in partitions for other in owned if other != member)


@pytest.mark.parametrize("strategy", [*BY_KAFKAS_NAME, "a strategy of somebody else"])
def test_each_strategy_assigns_each_partition_to_one_subscriber(strategy: str) -> None:
    members = {name: PlannedMember(Subscription(frozenset({"orders"}))) for name in "abc"}
    members["d"] = PlannedMember(Subscription(frozenset({"payments", "unknown"})))
    found = assign_partitions(strategy, members, {"orders": 7, "payments": 1, "unused": 3})
    assert sorted(at for name in "abc" for at in found[name]) == list(orders(*range(7)))
    assert {len(found[name]) for name in "abc"} <= {2, 3}
    assert found["d"] == {TopicPartition("payments", 0)}


def test_what_a_member_lists_counts_more_than_what_it_was_assigned() -> None:
    topics = frozenset({"orders"})
    members = {
        "a": PlannedMember(Subscription(topics, frozenset(orders(2, 3)))),
        "b": PlannedMember(Subscription(topics), frozenset(orders(2, 1))),
    }
    found = assign_partitions("sticky", members, {"orders": 4})
    assert found["a"] == frozenset(orders(2, 3))


# Storage that is slow, or fails


def slow(*kinds: type) -> tuple[Clients, SlowStorage]:
    storage = SlowStorage()
    storage.slow = kinds
    return Clients(BY_COORDINATOR, storage), storage


def test_syncs_wait_until_the_assignment_is_made_and_stored() -> None:
    clients, storage = slow(PerformAssignment, StoreGeneration)
    [member] = clients.joined("a")
    sync = clients.sync(member)
    clients.receive_work(*storage.take())
    assert clients.is_parked(sync)
    clients.receive_work(*storage.take())
    assert decode_assignment(clients.answer(sync).assignment) == frozenset(orders(0, 1, 2, 3))


@pytest.mark.parametrize("kind", [PerformAssignment, StoreGeneration])
def test_a_failure_answers_the_parked_syncs_and_begins_a_rebalance(kind: type) -> None:
    clients, storage = slow(kind)
    [member] = clients.joined("a")
    sync = clients.sync(member)
    clients.receive_work(storage.open.pop()[0], WorkFailed(KafkaError.NOT_COORDINATOR))
    assert clients.answer(sync).error == KafkaError.NOT_COORDINATOR
    assert (clients.state, clients.reported) == ("PreparingRebalance", ["GENERATION_FAILED"])


@pytest.mark.parametrize("kind", [PerformAssignment, StoreGeneration])
def test_an_assignment_that_takes_too_long_is_given_up(kind: type) -> None:
    clients, _storage = slow(kind)
    [member] = clients.joined("a")
    sync = clients.sync(member)
    clients.wait(REBALANCE)
    assert clients.answer(sync).error == KafkaError.COORDINATOR_NOT_AVAILABLE
    assert clients.state == "PreparingRebalance"


@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize("kind", [PerformAssignment, StoreGeneration])
def test_an_assignment_of_a_past_generation_is_ignored(kind: type, failed: bool) -> None:
    clients, storage = slow(kind)
    [first] = clients.joined("a")
    second = clients.join(client_id="b", **OLD)
    clients.answer(clients.join(first))
    work_id, result = storage.take()
    clients.receive_work(work_id, WorkFailed(KafkaError.NOT_COORDINATOR) if failed else result)
    assert (clients.group.generation, clients.state) == (2, "CompletingRebalance")
    assert len(storage.open) == 1
    while storage.open:
        clients.receive_work(*storage.take())
    assert (clients.group.generation, clients.state) == (2, "Stable")
    assert shares(clients, first, clients.answer(second).member_id) == [[0, 1], [2, 3]]


def test_the_storage_is_told_what_members_still_own() -> None:
    clients, storage = slow()
    [member] = clients.joined("a", **cooperative(1))
    [stored] = [work for work in storage.done if isinstance(work, StoreGeneration)]
    assert stored.members[member].still_owned == frozenset(orders(1))
    assert (stored.generation, stored.protocol, stored.leader) == (1, "cooperative-sticky", "zkgroups")
