"""Members beside hostile registrations: they get their partitions, and no other claim is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.consumer.events import EventKind
from zkgroups.core.rebalance.round_robin import java_hash

from .conftest import Run, ats, plant_topic

pytestmark = pytest.mark.zookeeper

TOPIC = "a" * 40


def register(group: Consumergroup, registry: Registry, id: str, subscription: dict[str, int], pattern: str) -> None:
    fields: dict[str, Any] = {"version": 1, "subscription": subscription, "pattern": pattern, "timestamp": "1"}
    path = group.paths.instance(id)
    registry.client.create(path, json.dumps(fields).encode(), ephemeral=True, makepath=True)


@pytest.mark.parametrize("expression", ["(a+)+b", r"(a)\1.*", "(a|b)*" * 133_000], ids=["slow", "java-only", "long"])
def test_a_member_settles_and_another_claim_of_the_process_is_kept(
    registry: Registry, group: Consumergroup, run: Run, expression: str
) -> None:
    plant_topic(registry.client, TOPIC, 2)
    register(group, registry, "m", {expression: 1}, "white_list")
    with registry.group("other").instance("x") as other:
        other.register(["orders"])
        claim = other.claim(TopicPartition("orders", 0))
        member = run([TOPIC]).until_holding(ats(TOPIC, 0, 1))
        assert claim.held
        claim.commit(5)
    if expression != "(a+)+b":
        member.until(lambda: any(event.kind is EventKind.MALFORMED for event in member.events), "a warning")
        [event] = [event for event in member.events if event.kind is EventKind.MALFORMED]
        assert "its subscription cannot be evaluated: " in str(event)


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_a_member_beside_billions_of_streams_gets_the_partition_of_the_first_stream(
    registry: Registry, group: Consumergroup, run: Run, orders: frozenset[TopicPartition], strategy: str
) -> None:
    register(group, registry, "zz", {"orders": 2**31 - 1}, "static")
    first = min(orders, key=lambda at: at.partition if strategy == "range" else java_hash(f"orders-{at.partition}"))
    run(["orders"], id="a", foreign_assignor=strategy).until_holding(first)


def test_a_log_line_names_a_few_nodes_and_the_number_of_the_others(
    registry: Registry, group: Consumergroup, run: Run, orders: frozenset[TopicPartition]
) -> None:
    for n in range(8):
        registry.client.create(group.paths.instance(f"bad-{n}"), b"no JSON", ephemeral=True, makepath=True)
        register(group, registry, f"old-{n}", {"orders": 1}, "static")
    member = run(["orders"])
    member.until(lambda: {EventKind.MALFORMED, EventKind.FOREIGN} <= {event.kind for event in member.events})
    details = {event.kind: event.detail for event in member.events}
    malformed, foreign = details[EventKind.MALFORMED], details[EventKind.FOREIGN]
    assert ("/bad-4" in malformed, "/bad-5" in malformed) == (True, False)
    assert malformed.endswith(" and 3 more")
    assert foreign == "scala: old-0, old-1, old-2, old-3, old-4 and 3 more"
