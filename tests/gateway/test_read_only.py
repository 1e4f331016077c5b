"""A read-only storage shows the groups of all old clients, and refuses every request that writes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.zookeeper.tree import dump
from zkgroups import Consumergroup, Registry, TopicPartition, coordinator
from zkgroups.coordinator import KafkaError
from zkgroups.coordinator.storage import (
    ExpireOffsets,
    LoadGroup,
    PerformAssignment,
    ReleaseMembers,
    RemoveGroup,
    RemoveOffsets,
    StoreGeneration,
    StoreOffsets,
    Work,
    WorkFailed,
)
from zkgroups.core.times import to_ms
from zkgroups.gateway.zookeeper_storage import ZooKeeperStorage

from .conftest import Serve
from .old_members import KAZOO_GO, SCALA, claim, commit, create_topic, register
from .served import Served

ORDERS = TopicPartition("orders", 0)
JOIN = coordinator.JoinRequest(
    "billing",
    "",
    (
        coordinator.GroupProtocol(
            "range", coordinator.encode_subscription(coordinator.Subscription(frozenset({"orders"})))
        ),
    ),
    10.0,
    60.0,
)


@pytest.fixture
def client(registry: Registry) -> Any:
    return registry.client


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve(read_only=True)


def shares(described: Any) -> dict[str, list[str]]:
    return {
        member.member_id: sorted(map(str, coordinator.decode_assignment(member.assignment) or ()))
        for member in described.members
    }


def test_groups_of_old_clients_are_listed_with_their_states(client: Any, served: Served) -> None:
    create_topic(client, "orders", 2)
    register(client, "stable", "stable_a", {"orders": 1})
    claim(client, "stable", "stable_a-0", "orders", 0, 1)
    register(client, "claiming", "claiming_a", {"orders": 1})
    claim(client, "claiming", "claiming_a-0", "orders", 0)
    register(client, "joining", "joining_a", {"orders": 1})
    commit(client, "stopped", "orders", 0, b"17")
    assert served.list() == {
        "claiming": "CompletingRebalance",
        "joining": "PreparingRebalance",
        "stable": "Stable",
        "stopped": "Empty",
    }


def test_members_of_old_clients_are_described_with_their_hosts_and_partitions(client: Any, served: Served) -> None:
    create_topic(client, "orders", 3)
    register(client, "billing", SCALA, {"ord.*": 2}, pattern="white_list")
    register(client, "billing", KAZOO_GO, {"orders": 1})
    client.create("/consumers/billing/ids/broken", b"{", ephemeral=True)
    claim(client, "billing", f"{SCALA}-1", "orders", 0, 2)
    claim(client, "billing", KAZOO_GO, "orders", 1)

    found = served.describe("billing")

    assert (found.error, found.state, found.protocol_type, found.protocol) == (0, "Stable", "consumer", "range")
    assert shares(found) == {SCALA: ["orders/0", "orders/2"], KAZOO_GO: ["orders/1"], "broken": []}
    clients = {member.member_id: (member.client_id, member.client_host) for member in found.members}
    assert clients == {SCALA: ("scala", "/app-1"), KAZOO_GO: ("kazoo-go", "/app-2"), "broken": ("", "")}
    subscriptions = [coordinator.decode_subscription(member.metadata) for member in found.members if member.metadata]
    assert subscriptions == [coordinator.Subscription(frozenset({"orders"}))] * 2


def test_offsets_are_fetched_with_the_time_of_their_commit(client: Any, group: Consumergroup, served: Served) -> None:
    group.offsets.set_many({ORDERS: 17, TopicPartition("orders", 1): 4})
    committed = group.offsets.fetch(ORDERS)
    assert committed is not None
    assert served.fetch("billing") == {
        ORDERS: coordinator.CommittedValue(17, committed_at=to_ms(committed.committed_at) / 1000),
        TopicPartition("orders", 1): served.fetch("billing")[TopicPartition("orders", 1)],
    }
    assert [value.offset for value in served.fetch("billing", TopicPartition("orders", 1)).values()] == [4]
    assert served.fetch("billing", TopicPartition("orders", 9)) == served.fetch("missing") == {}


def test_an_offset_that_cannot_be_read_is_an_error_for_the_consumer_that_asks_for_it(
    client: Any, group: Consumergroup, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the error, the consumer would start where its own settings say, and skip or repeat messages."""
    group.offsets.set(TopicPartition("orders", 1), 4)
    commit(client, "billing", "orders", 0, b"1.0")
    found = served.ask(coordinator.FetchRequest({"billing": (ORDERS, TopicPartition("orders", 1))})).groups["billing"]
    assert found.error is KafkaError.NONE
    assert {at.partition: each.offset for at, each in found.offsets.items()} == {1: 4}
    assert found.errors == {ORDERS: KafkaError.UNKNOWN_SERVER_ERROR}
    assert "offset that cannot be read: /consumers/billing/offsets/orders/0: " in caplog.text
    assert [at.partition for at in served.fetch("billing")] == [1]


def test_groups_are_shown_beside_one_that_does_not_exist_and_a_name_that_cannot_exist(
    group: Consumergroup, served: Served
) -> None:
    group.offsets.set(ORDERS, 17)
    states = {name: served.describe(name).state for name in ("missing", "a/b", "billing")}
    assert states == {"missing": "Dead", "a/b": "Dead", "billing": "Empty"}
    found = served.ask(coordinator.FetchRequest({"billing": None, "a/b": None})).groups
    assert found["billing"].offsets[ORDERS].offset == 17
    assert found["a/b"].error.name == "INVALID_GROUP_ID"


WRITES: list[coordinator.Request] = [
    JOIN,
    coordinator.SyncRequest("billing", "m", 1, {}),
    coordinator.HeartbeatRequest("billing", "m", 1),
    coordinator.LeaveRequest("billing", (coordinator.MemberIdentity("m"),)),
    coordinator.CommitRequest("billing", {ORDERS: coordinator.CommittedValue(1)}),
    coordinator.CommitRequest("billing", {ORDERS: coordinator.CommittedValue(1)}, "m", 1),
    coordinator.DeleteGroupsRequest(("billing",)),
    coordinator.DeleteOffsetsRequest("billing", (ORDERS,)),
]


def test_every_request_that_writes_is_refused_and_changes_nothing(
    client: Any, group: Consumergroup, served: Served
) -> None:
    group.offsets.set(ORDERS, 17)
    before = dump(client)
    for request in WRITES:
        answer = served.ask(request)
        errors = {answer.error} if hasattr(answer, "error") else set(answer.errors.values())
        assert {error.name for error in errors} == {"GROUP_AUTHORIZATION_FAILED"}, request
    assert dump(client) == before


WORK_THAT_WRITES: list[Work] = [
    LoadGroup("billing"),
    PerformAssignment("billing", 1, "range", {}),
    StoreGeneration("billing", 1, "consumer", "range", "", {}),
    ReleaseMembers("billing", ("m",)),
    StoreOffsets("billing", "", -1, {ORDERS: coordinator.CommittedValue(1)}),
    RemoveOffsets("billing", (ORDERS,)),
    ExpireOffsets("billing", 1e12, frozenset()),
    RemoveGroup("billing"),
]


def test_work_that_writes_is_refused_even_without_the_rules_of_a_coordinator(
    registry: Registry, group: Consumergroup
) -> None:
    group.offsets.set(ORDERS, 17)
    before = dump(registry.client)
    events: list[Any] = []
    with ZooKeeperStorage(registry, events.append, read_only=True) as storage:
        for number, work in enumerate(WORK_THAT_WRITES):
            assert storage.start(number, work) is None
    assert [event.work_id for event in events] == list(range(len(WORK_THAT_WRITES)))
    assert {event.result for event in events} == {WorkFailed(events[0].result.error)}
    assert events[0].result.error.name == "GROUP_AUTHORIZATION_FAILED"
    assert dump(registry.client) == before


def test_a_closed_storage_refuses_work_at_once(registry: Registry) -> None:
    storage = ZooKeeperStorage(registry, print, read_only=True)
    storage.close()
    refused = storage.start(1, LoadGroup("billing"))
    assert isinstance(refused, WorkFailed)
    assert refused.error.name == "COORDINATOR_NOT_AVAILABLE"
