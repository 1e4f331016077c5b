"""Members of a gateway are registered as the old clients are, own their partitions by owner nodes, and share them."""

from __future__ import annotations

import pytest

from tests.testing.waiting import eventually
from zkgroups import Consumergroup, Registration, Registry, TopicPartition
from zkgroups.coordinator import CommittedValue, KafkaError, Subscription, encode_assignment
from zkgroups.coordinator.storage.work import (
    OffsetsStored,
    PlannedMember,
    StoredMember,
    StoreGeneration,
    StoreOffsets,
    WorkFailed,
)
from zkgroups.core.znodes.values import Dialect
from zkgroups.migration.current_state import read_sources

from .conftest import Join, Serve
from .kafka_member import KafkaMember
from .old_members import ALL, create_topic, orders, owners
from .script import PLANNED, Script
from .served import Served

pytestmark = pytest.mark.zookeeper

DELAY = 15.0
"""In seconds: longer than a slow machine needs until all members have joined. The clock of the test jumps over it."""


def test_a_member_is_registered_and_owns_its_partitions(group: Consumergroup, join: Join, served: Served) -> None:
    member = join(client_id="my/app")
    assert eventually(lambda: member.assigned == ALL)
    [instance] = group.instances()
    assert instance.id == member.member_id.replace("/", "_")
    assert isinstance(instance.registration, Registration)
    assert dict(instance.registration.streams) == {"orders": 1}
    assert instance.registration.dialect is Dialect.GATEWAY
    assert (instance.registration.client_id, instance.registration.client_host) == ("my/app", "/10.0.0.7")
    assert owners(group) == dict.fromkeys(range(6), f"{instance.id}-0")
    assert served.list() == {"billing": "Stable"}
    [described] = served.describe("billing").members
    assert described.member_id == member.member_id


def test_the_doctor_finds_nothing_wrong_with_a_member_and_a_migration_waits_for_its_end(
    registry: Registry, group: Consumergroup, join: Join
) -> None:
    member = join()
    assert eventually(lambda: member.assigned == ALL)
    [checkup] = registry.check()
    assert {finding.code for finding in checkup.findings} <= {"open-acl"}
    assert read_sources(registry, ["billing"])["billing"].instances == (member.member_id,)
    member.leave()
    assert eventually(lambda: read_sources(registry, ["billing"])["billing"].instances == ())


def test_members_share_and_take_over(group: Consumergroup, join: Join) -> None:
    first = join(client_id="a")
    assert eventually(lambda: len(first.assigned) == 6)
    second = join(client_id="b")
    assert eventually(lambda: (first.assigned, second.assigned) == (orders(0, 1, 2), orders(3, 4, 5)))
    first.leave()
    assert eventually(lambda: second.assigned == ALL)
    second.leave()
    assert eventually(lambda: (group.instances(), owners(group)) == ([], {}))


def test_closing_the_storage_lets_all_members_leave(registry: Registry, group: Consumergroup, orders: None) -> None:
    with Served(registry) as served, KafkaMember(served, "billing", "orders") as member:
        assert eventually(lambda: len(member.assigned) == 6)
        member.kill()
    assert (group.instances(), owners(group)) == ([], {})


def test_offsets_are_committed_with_their_details(group: Consumergroup, join: Join, served: Served) -> None:
    member = join()
    assert eventually(lambda: len(member.assigned) == 6)
    at = TopicPartition("orders", 3)
    assert member.commit(17, at, metadata="half of the file", leader_epoch=4) == {at: "NONE"}
    found = group.offsets.fetch(at)
    assert found is not None
    assert found.offset == 17
    value = served.fetch("billing", at)[at]
    assert (value.offset, value.metadata, value.leader_epoch) == (17, "half of the file", 4)
    assert member.commit(18, at) == {at: "NONE"}
    assert served.fetch("billing")[at].metadata == ""


def test_members_that_join_together_are_registered_in_one_transaction(
    registry: Registry, serve: Serve, join: Join
) -> None:
    """Otherwise, each Scala member would rebalance once for each of them."""
    served = serve(config={"initial_rebalance_delay": DELAY})
    members = [join(served=served, client_id=name) for name in "abc"]
    assert eventually(lambda: len(served.describe("billing").members) == 3)
    for _ in range(2):  # the first delay is extended, because members have come meanwhile
        served.pass_time(DELAY)
        served.describe("billing")
    assert eventually(lambda: all(len(member.assigned) == 2 for member in members))
    created = {registry.client.exists(f"/consumers/billing/ids/{member.member_id}").czxid for member in members}
    assert len(created) == 1


def test_a_static_member_that_restarts_keeps_its_partitions(
    registry: Registry, group: Consumergroup, join: Join
) -> None:
    other = join(client_id="a")
    former = join(client_id="b", instance_id="worker-1")
    assert eventually(lambda: (len(other.assigned), len(former.assigned)) == (3, 3))
    before = [registry.client.exists(f"/consumers/billing/owners/orders/{n}").czxid for n in range(6)]
    settled = len(other.history)
    former.kill()
    again = join(client_id="b", instance_id="worker-1")
    assert eventually(lambda: again.assigned == former.assigned)
    at = min(again.assigned)
    assert again.commit(7, at) == {at: "NONE"}
    assert former.commit(9, at) == {at: "UNKNOWN_MEMBER_ID"}
    assert [registry.client.exists(f"/consumers/billing/owners/orders/{n}").czxid for n in range(6)] == before
    assert len(other.history) == settled


def test_partitions_that_are_added_are_assigned(registry: Registry, join: Join) -> None:
    member = join()
    assert eventually(lambda: member.assigned == ALL)
    registry.client.delete("/brokers/topics/orders")
    create_topic(registry.client, "orders", 8)
    assert eventually(lambda: member.assigned == orders(*range(8)))


def test_a_cooperative_member_keeps_a_partition_until_it_has_given_it_up(group: Consumergroup, join: Join) -> None:
    first = join(client_id="a", cooperative=True)
    assert eventually(lambda: first.assigned == ALL)
    kept = owners(group)
    second = join(client_id="b", cooperative=True)
    assert eventually(lambda: len(first.assigned) == len(second.assigned) == 3)
    assert first.assigned | second.assigned == ALL
    assert {n: id for n, id in owners(group).items() if id == kept[n]}.keys() == {at.partition for at in first.assigned}
    assert all(first.assigned <= share for share in first.history)


def test_a_generation_gives_no_member_a_partition_that_it_does_not_own(registry: Registry, orders: None) -> None:
    script = Script(registry)
    shares = script.assign(1, {"a-1": PLANNED, "b-1": PLANNED})
    stolen = {id: StoredMember(None, "", "", b"", encode_assignment(shares["b-1"])) for id in shares}
    refused = script.ask(StoreGeneration("billing", 1, "consumer", "range", "", stolen))
    assert refused == WorkFailed(KafkaError.REBALANCE_IN_PROGRESS)
    script.storage.close()


def test_members_that_are_no_consumers_are_refused(registry: Registry, orders: None) -> None:
    """Their leader assigns, and knows nothing of the members of other clients."""
    script = Script(registry)
    stored = {"a-1": StoredMember(None, "", "", b"", b"")}
    refused = script.ask(StoreGeneration("billing", 1, "connect", "range", "a-1", stored))
    assert refused == WorkFailed(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
    script.storage.close()


def test_a_client_with_impossible_topics_does_not_stop_the_others(registry: Registry, orders: None) -> None:
    names = {"orders", "..", "a/b", "x" * 300, "\x00", *(f"{n:0249}" for n in range(6000))}
    hostile = PlannedMember(Subscription(frozenset(names)), client_id="\ud800" * 9_000)
    script = Script(registry)
    shares = script.assign(1, {"a-1": hostile, "b-1": PLANNED})
    assert {id: len(share) for id, share in shares.items()} == {"a-1": 3, "b-1": 3}
    script.storage.close()


def test_a_cooperative_member_commits_in_a_generation_that_never_became_stable(
    registry: Registry, group: Consumergroup, orders: None
) -> None:
    """The rebalance began again before the generation was stored: the members know its number, and keep their work."""
    script = Script(registry)
    [at, *_] = script.generation(1, "a-1")["a-1"]
    script.assign(2, {"a-1": PLANNED})
    assert script.do(StoreOffsets("billing", "a-1", 2, {at: CommittedValue(5)})) == OffsetsStored()
    found = group.offsets.fetch(at)
    assert found is not None
    assert found.offset == 5
    script.storage.close()
