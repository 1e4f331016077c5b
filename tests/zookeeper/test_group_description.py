"""Descriptions of groups whose members are of all clients."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from zkgroups import (
    Consumergroup,
    Dialect,
    GroupState,
    InstanceState,
    Registration,
    TopicPartition,
)
from zkgroups.core.times import to_ms

from .conftest import Connect

pytestmark = pytest.mark.zookeeper


P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
GROUP = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{GROUP}/ids", f"{GROUP}/owners", f"{GROUP}/offsets"


def test_a_missing_group_is_dead_and_a_group_with_offsets_only_is_empty(group: Consumergroup, raw: Any) -> None:
    description = group.describe()
    assert (description.state, description.partitions, description.last_commit_at) == (GroupState.DEAD, (), None)
    group.offsets.set(P0, 5)
    description = group.describe()
    assert (description.state, description.members, description.offsets) == (GroupState.EMPTY, 0, 1)
    assert to_ms(description.last_commit_at) == raw.get(f"{OFFSETS}/orders/0")[1].mtime
    assert group.topics() == ["orders"]


def test_a_group_with_members_of_all_clients_is_described(group: Consumergroup, connect: Connect, raw: Any) -> None:
    scala, go, pykafka = (connect().client for _ in range(3))
    scala_id, go_id, pykafka_id = "billing_host-1795255170109-ab12cd34", f"host:{uuid.uuid4()}", f"host:{uuid.uuid4()}"
    raw.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1],"7":[1]}}', makepath=True)
    raw.create("/brokers/topics/refunds", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    raw.create("/brokers/topics/__consumer_offsets", b'{"version":1,"partitions":{"0":[1]}}')
    raw.ensure_path(IDS)
    fields: dict[str, Any] = {
        "version": 1,
        "subscription": {"ord.*": 2},
        "pattern": "white_list",
        "timestamp": "1795255170109",
    }
    scala.create(f"{IDS}/{scala_id}", json.dumps(fields).encode(), ephemeral=True)
    fields = {"pattern": "static", "subscription": {"orders": 1}, "timestamp": 1795255543, "version": 1}
    go.create(f"{IDS}/{go_id}", json.dumps(fields).encode(), ephemeral=True)
    pykafka.create(f"{IDS}/{pykafka_id}", b"refunds", ephemeral=True)
    description = group.describe()
    assert description.state is GroupState.PREPARING_REBALANCE
    assert {instance.state for instance in description.instances} == {InstanceState.JOINING}

    scala.create(f"{OWNERS}/orders/0", f"{scala_id}-0".encode(), ephemeral=True, makepath=True)
    scala.create(f"{OWNERS}/orders/1", f"{scala_id}-1".encode(), ephemeral=True)
    go.create(f"{OWNERS}/orders/2", go_id.encode(), ephemeral=True)
    for number in (0, 1):
        pykafka.create(f"{OWNERS}/b'refunds'/1-{number}", pykafka_id.encode(), ephemeral=True, makepath=True)
    group.offsets.set_many({P0: 5, TopicPartition("refunds", 1): 6})
    description = group.describe()
    instances = {instance.id: instance for instance in description.instances}
    assert description.state is GroupState.COMPLETING_REBALANCE
    assert description.unowned == (TopicPartition("orders", 7),)
    assert {id: instance.state for id, instance in instances.items()} == {
        scala_id: InstanceState.AWAITING_SYNC,
        go_id: InstanceState.AWAITING_SYNC,
        pykafka_id: InstanceState.STABLE,
    }
    assert instances[scala_id].owned == (P0, P1)
    assert {id: i.registration.dialect for id, i in instances.items() if isinstance(i.registration, Registration)} == {
        scala_id: Dialect.SCALA,
        go_id: Dialect.KAZOO_GO,
        pykafka_id: Dialect.PYKAFKA,
    }
    assert description.topics == ("orders", "refunds")
    assert (description.members, description.owned, description.offsets) == (3, 5, 2)

    go.create(f"{OWNERS}/orders/7", go_id.encode(), ephemeral=True)
    assert group.describe().state is GroupState.STABLE
    scala.delete(f"{IDS}/{scala_id}")
    description = group.describe()
    assert description.state is GroupState.COMPLETING_REBALANCE
    assert {(owner.id, owner.at) for owner in description.orphans} == {(f"{scala_id}-0", P0), (f"{scala_id}-1", P1)}
    assert description.unowned == (P0, P1)
    assert [i.state for i in description.instances].count(InstanceState.LEAVING) == 2


def test_malformed_nodes_are_listed_by_path_beside_the_others(group: Consumergroup, raw: Any) -> None:
    raw.create(
        f"{IDS}/me", b'{"version":1,"subscription":{"orders":1},"pattern":"static"}', ephemeral=True, makepath=True
    )
    bad = {
        f"{IDS}/bad": b"what is this",
        f"{OWNERS}/orders/x": b"me",
        f"{OWNERS}/orders/1": b"\xff",
        f"{OFFSETS}/orders/1": b"",
        f"{OFFSETS}/orders/01": b"5",
        "/brokers/topics/orders": b"[]",
    }
    for path, data in bad.items():
        raw.create(path, data, ephemeral=path.startswith((IDS, OWNERS)), makepath=True)
    raw.create(f"{OWNERS}/orders/0", b"me", ephemeral=True)
    raw.create(f"{OFFSETS}/orders/0", b"5")
    description = group.describe()
    assert {node.path: node.data for node in description.unreadable} == bad
    assert all(node.reason for node in description.unreadable)
    assert (description.state, description.members, description.owned, description.offsets) == (
        GroupState.STABLE,
        2,
        1,
        1,
    )


def test_an_owner_of_another_session_with_the_name_of_an_instance_is_an_orphan(
    group: Consumergroup, connect: Connect, raw: Any
) -> None:
    raw.create(f"{IDS}/me", b"orders", ephemeral=True, makepath=True)
    connect().client.create(f"{OWNERS}/orders/0", b"me", ephemeral=True, makepath=True)
    description = group.describe()
    assert [owner.id for owner in description.orphans] == ["me"]
    assert description.owned == 0
    assert sorted(instance.state for instance in description.instances) == [
        InstanceState.JOINING,
        InstanceState.LEAVING,
    ]
