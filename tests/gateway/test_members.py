"""Members of a gateway are registered as the old clients are, own their partitions by owner nodes, and share them.

In simulated time, as all files here that join members by the fixture `join`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.simulation.world import World
from tests.waiting import eventually
from zkgroups import Consumergroup, Registration, Registry, TopicPartition
from zkgroups.coordinator import (
    CommittedValue,
    GroupProtocol,
    JoinRequest,
    KafkaError,
    Subscription,
    decode_subscription,
    encode_assignment,
)
from zkgroups.coordinator.storage import (
    OffsetsStored,
    PlannedMember,
    StoredMember,
    StoreGeneration,
    StoreOffsets,
    WorkFailed,
)
from zkgroups.core.znodes.values import Dialect
from zkgroups.exceptions import NotConnectedError
from zkgroups.gateway.zookeeper_storage import GroupSettings
from zkgroups.migration.current_state import read_sources

from .conftest import Join, Serve
from .old_members import ALL, SCALA, claim, orders, owners, register
from .served import PLANNED, Script, Served


def test_a_member_is_registered_owns_its_partitions_and_leaves_nothing_behind(
    world: World, registry: Registry, group: Consumergroup, join: Join, alone: Join, served: Served
) -> None:
    """The doctor finds nothing wrong with it, and a migration waits for its end."""
    member = alone(client_id="my/app")
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
    [checkup] = registry.check()
    assert {finding.code for finding in checkup.findings} <= {"open-acl"}
    assert read_sources(registry, ["billing"])["billing"].instances == (instance.id,)
    other = join(client_id="z")
    assert eventually(lambda: (member.assigned, other.assigned) == (orders(0, 1, 2), orders(3, 4, 5)))
    member.leave()
    assert eventually(lambda: other.assigned == ALL)
    other.kill()
    with world.machine.process("leaving"):
        served.storage.close()
    assert (group.instances(), owners(group)) == ([], {})
    assert read_sources(registry, ["billing"])["billing"].instances == ()


def test_members_that_join_together_are_registered_in_one_transaction(
    registry: Registry, serve: Serve, join: Join
) -> None:
    """Otherwise, each Scala member would rebalance once for each of them."""
    served = serve(config={"initial_rebalance_delay": 3.0})
    members = [join(served=served, client_id=name) for name in "abc"]
    assert eventually(lambda: all(len(member.assigned) == 2 for member in members))
    created = {registry.client.exists(f"/consumers/billing/ids/{member.member_id}").czxid for member in members}
    assert len(created) == 1


def test_a_static_member_that_restarts_keeps_its_partitions(registry: Registry, join: Join) -> None:
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


def test_a_cooperative_member_keeps_a_partition_until_it_has_given_it_up(
    group: Consumergroup, join: Join, alone: Join
) -> None:
    first = alone(client_id="a", cooperative=True)
    kept = owners(group)
    second = join(client_id="b", cooperative=True)
    assert eventually(lambda: len(first.assigned) == len(second.assigned) == 3)
    assert first.assigned | second.assigned == ALL
    assert {n: id for n, id in owners(group).items() if id == kept[n]}.keys() == {at.partition for at in first.assigned}
    assert all(first.assigned <= share for share in first.history)


def test_a_cooperative_member_commits_in_a_generation_that_never_became_stable(
    group: Consumergroup, script: Script
) -> None:
    """The rebalance began again before the generation was stored: the members know its number, and keep their work."""
    [at, *_] = script.generation(1, "a-1")["a-1"]
    script.assign(2, {"a-1": PLANNED})
    assert script.do(StoreOffsets("billing", "a-1", 2, {at: CommittedValue(5)})) == OffsetsStored()
    assert group.offsets.fetch(at).offset == 5  # type: ignore[union-attr]


def test_a_generation_gives_no_member_a_partition_that_it_does_not_own(script: Script) -> None:
    shares = script.assign(1, {"a-1": PLANNED, "b-1": PLANNED})
    stolen = {id: StoredMember(None, "", "", b"", encode_assignment(shares["b-1"])) for id in shares}
    refused = script.ask(StoreGeneration("billing", 1, "consumer", "range", "", stolen))
    assert refused == WorkFailed(KafkaError.REBALANCE_IN_PROGRESS)


@pytest.mark.parametrize(("type", "strategy"), [("connect", "default"), ("consumer", "stream")])
def test_members_to_which_the_gateway_cannot_assign_are_refused_when_they_join(
    served: Served, type: str, strategy: str
) -> None:
    """Workers of Kafka Connect, and instances of Kafka Streams: their own leader must assign."""
    answer = served.ask(JoinRequest("billing", "", (GroupProtocol(strategy, b""),), 10.0, 60.0, type))
    assert answer.error is KafkaError.INCONSISTENT_GROUP_PROTOCOL


def test_a_client_with_impossible_topics_does_not_stop_the_others(script: Script) -> None:
    names = {"orders", "..", "a/b", "x" * 300, "\x00", *(f"{n:0249}" for n in range(6000))}
    hostile = PlannedMember(Subscription(frozenset(names)), client_id="\ud800" * 9_000)
    shares = script.assign(1, {"a-1": hostile, "b-1": PLANNED})
    assert {id: len(share) for id, share in shares.items()} == {"a-1": 3, "b-1": 3}


# Brokers whose topics are elsewhere


class OtherBrokers:
    """Brokers that keep their topics elsewhere, or in this ZooKeeper. None as the partitions: they do not answer."""

    def __init__(self, **partitions: int) -> None:
        self.counts: dict[str, int] | None = partitions
        self.outside = True

    def are_outside(self, _cluster_id: str | None) -> bool:
        return self.outside

    def partitions(self, topics: Iterable[str] | None) -> Any:
        counts = self.counts
        if counts is None:
            return None
        return {name: tuple(range(counts[name])) for name in (topics or counts) if name in counts} | {"hidden": None}

    def call(self, answer: Any, _timeout: float) -> Any:
        if answer is None:
            raise NotConnectedError("no broker answered")
        return answer


@pytest.fixture
def brokers() -> OtherBrokers:
    return OtherBrokers(orders=2)


@pytest.fixture
def beside(serve: Serve, brokers: OtherBrokers, orders: None) -> Served:
    """A coordinator in front of these brokers."""
    return serve(brokers=brokers, settings=GroupSettings(reconcile_every=1.0))


def test_brokers_that_keep_their_topics_elsewhere_are_asked(
    beside: Served, brokers: OtherBrokers, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    """ZooKeeper has another number of partitions. A new topic and a migration to or from there are noticed."""
    brokers.counts = {}
    member = join(served=beside)
    waits = "members of group billing wait for topics: the brokers have no topics orders"
    assert eventually(lambda: waits in caplog.messages)
    brokers.counts = {"orders": 2}
    assert eventually(lambda: member.assigned == orders(0, 1))
    assert beside.describe("billing").state == "Stable"
    brokers.outside = False
    assert eventually(lambda: member.assigned == ALL)
    brokers.outside = True
    assert eventually(lambda: len(member.assigned) == 2)


def test_nothing_is_taken_away_while_no_broker_answers(beside: Served, brokers: OtherBrokers, join: Join) -> None:
    first = join(served=beside)
    assert eventually(lambda: len(first.assigned) == 2)
    settled = len(first.history)
    brokers.counts = None
    later = join(served=beside, client_id="late")
    assert eventually(lambda: later.errors)
    assert first.history[settled:] in ([], [frozenset()])  # it gives its partitions up when it joins, as every client
    brokers.counts = {"orders": 2}
    assert eventually(lambda: (len(first.assigned), len(later.assigned)) == (1, 1))


def test_members_and_offsets_are_shown_with_topics_of_the_brokers(
    registry: Registry, group: Consumergroup, beside: Served, brokers: OtherBrokers
) -> None:
    """Offsets of partitions that do not exist are left out, but not if no broker answers, or shows their topic."""
    register(registry.client, "billing", SCALA, {"ord.*": 1}, pattern="white_list")
    claim(registry.client, "billing", f"{SCALA}-0", "orders", 0, 1)
    [described] = beside.describe("billing").members
    assert decode_subscription(described.metadata) == Subscription(frozenset({"orders"}))
    places = [TopicPartition(*at) for at in (("gone", 0), ("hidden", 0), ("orders", 1), ("orders", 2))]
    for at in places:
        group.offsets.set(at, 17)
    assert sorted(beside.fetch("billing")) == places[1:3]
    assert sorted(beside.fetch("billing", *places)) == places
    brokers.counts = None
    assert eventually(lambda: sorted(beside.fetch("billing")) == places)
