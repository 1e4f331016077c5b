"""The coordinator assigns the partitions itself. And the format of subscriptions and assignments inside of requests."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest
from hypothesis import example, given
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
    encode_assignment,
    encode_subscription,
)
from zkgroups.coordinator import group as members
from zkgroups.coordinator.generation_rules import withhold_owned
from zkgroups.coordinator.memory_storage import BY_KAFKAS_NAME, assign_partitions
from zkgroups.coordinator.storage import PerformAssignment, PlannedMember, StoreGeneration, WorkFailed

from .clients import GROUP, OLD, REBALANCE, Clients, SlowStorage, join_request, protocols, subscribed

BY_COORDINATOR = CoordinatorConfig(initial_rebalance_delay=0, assignment_by=AssignmentBy.COORDINATOR)


def orders(*numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("orders", number) for number in numbers)


def shares(clients: Clients, *members: str) -> list[list[int]]:
    """The partitions that members get when they sync."""
    answers = [clients.answer(clients.sync(member)) for member in members]
    assert {answer.error for answer in answers} == {0}
    return [sorted(at.partition for at in decode_assignment(answer.assignment) or ()) for answer in answers]


def test_no_client_leads_everyone_gets_a_share_and_assignments_that_clients_bring_are_ignored() -> None:
    clients = Clients(BY_COORDINATOR)
    first, second = clients.joined("a", "b")
    assert (clients.group.leader, clients.state) == ("zkgroups", "Stable")
    assert shares(clients, first, second) == [[0, 1], [2, 3]]
    brought = clients.answer(clients.sync(first, {first: b"mine"}))
    assert decode_assignment(brought.assignment) == frozenset(orders(0, 1))
    answer = Clients(BY_COORDINATOR).ask(join_request(**OLD))
    assert (answer.leader, answer.members, answer.protocol) == ("zkgroups", (), "range")


def test_members_of_another_kind_are_still_led_by_a_member() -> None:
    clients = Clients(BY_COORDINATOR)
    [member] = clients.joined("a", protocol_type="connect")
    assert clients.group.leader == member
    assert clients.answer(clients.sync(member, {member: b"mine"})).assignment == b"mine"


def test_a_member_that_offers_only_unknown_strategies_is_refused() -> None:
    for offered in (["stream"], ["stream", "rack-affinity"]):
        clients = Clients(BY_COORDINATOR)
        assert clients.ask(join_request(protocols=protocols(*offered))).error is KafkaError.INCONSISTENT_GROUP_PROTOCOL
        assert clients.coordinator.groups() == []
        assert Clients().ask(join_request(protocols=protocols(*offered))).error is KafkaError.MEMBER_ID_REQUIRED


def test_an_unknown_strategy_is_neither_common_nor_chosen() -> None:
    clients = Clients(BY_COORDINATOR)
    first, second = clients.joined("a", "b", protocols=protocols("mine", "sticky", "range"))
    assert clients.group.protocol == "sticky"
    for member in (second, ""):
        refused = clients.ask(join_request(member, protocols=protocols("mine", "roundrobin")))
        assert refused.error is KafkaError.INCONSISTENT_GROUP_PROTOCOL
    assert clients.members == [first, second]


def test_a_rejoin_begins_a_rebalance_if_the_member_would_lead() -> None:
    clients = Clients(BY_COORDINATOR)
    first, second = clients.joined("a", "b")
    repeated = clients.ask(join_request(second))
    assert (repeated.error, repeated.generation, clients.state) == (0, 2, "Stable")
    assert clients.is_parked(clients.join(first))
    clients.join(second)
    assert (clients.group.generation, clients.state) == (3, "Stable")
    assert clients.commit(member_id=first, generation=2) == "ILLEGAL_GENERATION"
    assert clients.commit(member_id=first, generation=3) == "NONE"


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


PARTITIONS = st.frozensets(st.integers(0, 5).map(lambda number: orders(number)[0]))


@given(st.dictionaries(st.sampled_from("abc"), PARTITIONS), st.dictionaries(st.sampled_from("abc"), PARTITIONS))
@example(
    {"a": frozenset(orders(0)), "b": frozenset(orders(1))}, {"a": frozenset(orders(0)), "b": frozenset(orders(0, 1))}
)
def test_what_another_member_lists_is_not_assigned(assigned: Mapping, owned: Mapping) -> None:
    for member, partitions in withhold_owned(assigned, owned).items():
        others = {at for other, listed in owned.items() if other != member for at in listed}
        assert partitions == assigned[member] - others


def test_each_strategy_assigns_each_partition_to_one_subscriber() -> None:
    members = {name: PlannedMember(Subscription(frozenset({"orders"}))) for name in "abc"}
    members["d"] = PlannedMember(Subscription(frozenset({"payments", "unknown"})))
    for strategy in BY_KAFKAS_NAME:
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
def test_an_assignment_that_fails_or_takes_too_long_answers_the_parked_syncs_and_begins_a_rebalance(kind: type) -> None:
    clients, storage = slow(kind)
    [member] = clients.joined("a")
    sync = clients.sync(member)
    clients.receive_work(storage.open.pop()[0], WorkFailed(KafkaError.NOT_COORDINATOR))
    assert clients.answer(sync).error == KafkaError.NOT_COORDINATOR
    assert (clients.state, clients.reported) == ("PreparingRebalance", ["GENERATION_FAILED"])
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


# The format of subscriptions and assignments

TOPICS = st.text("abc._-0", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))
OWNED = st.frozensets(st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), max_size=8)
SUBSCRIPTIONS = st.builds(Subscription, st.frozensets(TOPICS, max_size=5), OWNED)


@given(SUBSCRIPTIONS, OWNED, st.binary(max_size=30))
def test_subscriptions_and_assignments_are_read_as_they_were_written_and_later_fields_ignored(
    subscription: Subscription, partitions: frozenset[TopicPartition], more: bytes
) -> None:
    data = encode_subscription(subscription)
    assert decode_subscription(data) == subscription
    assert decode_subscription(struct.pack(">h", 3) + data[2:] + more) == subscription
    assert decode_assignment(encode_assignment(partitions)) == partitions


def test_subscriptions_of_other_clients_are_read() -> None:
    only_orders = encode_subscription(Subscription(frozenset({"orders"})))
    read = {
        struct.pack(">h", 0) + only_orders[2:-4]: {"orders"},  # of version 0
        only_orders[:-4]: {"orders"},  # of version 1 without owned partitions, as kafka-go writes it
        b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\3abc" + b"\0\0\0\0": {"t"},  # with user data
        b"\0\1" + b"\xff" * 12: set(),  # null arrays
    }
    assert {data: decode_subscription(data) for data in read} == {
        data: Subscription(frozenset(topics)) for data, topics in read.items()
    }


def test_hostile_bytes_are_malformed() -> None:
    for data in (
        b"",
        struct.pack(">hi", 1, 2**31 - 1),  # more topics than bytes
        struct.pack(">hih", 1, 1, -2) + b"\0" * 20,  # a length below zero
        struct.pack(">hihi", 0, 1, 1, -1) + b"\xff",  # not UTF-8
    ):
        assert decode_subscription(data) is None
    assert decode_assignment(b"") == frozenset()


def test_a_subscription_with_a_negative_partition_or_a_wrong_topic_is_malformed() -> None:
    def owning(topic: bytes, *numbers: int) -> bytes:
        name = struct.pack(">ih", 1, len(topic)) + topic
        return b"\0\1" + b"\xff" * 8 + name + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)

    assert decode_subscription(owning(b"t", 3, 1)) == Subscription(
        frozenset(), frozenset({TopicPartition("t", 1), TopicPartition("t", 3)})
    )
    for malformed in (owning(b"t", 3, -1), owning(b"..", 1), owning(b"a/b"), owning(b"t", 3)[:-1]):
        assert decode_subscription(malformed) is None


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_read_or_malformed(data: bytes) -> None:
    assert decode_subscription(data) is None or isinstance(decode_subscription(data), Subscription)
    assert decode_assignment(data) is None or isinstance(decode_assignment(data), frozenset)


@given(SUBSCRIPTIONS, st.data())
def test_a_subscription_that_was_cut_off_is_malformed(subscription: Subscription, data: st.DataObject) -> None:
    whole = encode_subscription(subscription)
    without_owned = len(encode_subscription(Subscription(subscription.topics))) - 4
    length = data.draw(st.integers(0, len(whole) - 1).filter(lambda length: length != without_owned))
    assert decode_subscription(whole[:length]) is None
