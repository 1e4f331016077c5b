"""Hostile registrations beside a healthy group: each command ends, and shows the healthy group as before."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import TopicPartition

from .conftest import Zkgroups

pytestmark = pytest.mark.zookeeper

TOPIC = "a" * 40
HOSTILE = {
    "backtracking": {"(a+)+b": 1},
    "java-only": {r"(a)\1.*": 1},
    "long": {"(a|b)*" * 133_000: 1},
    "large": {"(?:a|b)*a(?:a|b){900}" * 20: 1},
}
COMMANDS = {
    "groups": (["groups", "list", "-o", "json"], "groups"),
    "describe": (["groups", "describe", "-o", "json", "billing"], "groups"),
    "doctor": (["doctor", "-o", "json"], "findings"),
    "members": (["members", "list", "-o", "json"], "members"),
    "owners": (["owners", "list", "-o", "json"], "owners"),
    "prune": (["groups", "prune", "--older-than", "0s", "-o", "json"], "groups"),
}


@pytest.fixture
def plant(kazoo: KazooClient, billing: Any) -> Any:
    """Register a live member in its own group, which owns a partition."""
    kazoo.create(f"/brokers/topics/{TOPIC}", b'{"version":1,"partitions":{"0":[0],"1":[0]}}')

    def plant(group: str, subscription: dict[str, int], pattern: str = "white_list") -> None:
        fields = {"version": 1, "subscription": subscription, "pattern": pattern, "timestamp": "1795255170109"}
        kazoo.create(f"/consumers/{group}/ids/m", json.dumps(fields).encode(), ephemeral=True, makepath=True)
        kazoo.create(f"/consumers/{group}/owners/{TOPIC}/0", b"m-0", ephemeral=True, makepath=True)

    return plant


def rows(zkgroups: Zkgroups, name: str, *more: str) -> list[Any]:
    arguments, key = COMMANDS[name]
    ended = zkgroups(*arguments, *more)
    assert ended.code in (0, 10), ended
    found: list[Any] = ended.json[key]
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_and_shows_the_healthy_group_as_without_the_hostile_ones(
    zkgroups: Zkgroups, plant: Any, name: str
) -> None:
    def healthy(*more: str) -> list[Any]:
        return [row for row in rows(zkgroups, name, *more) if row["group"] == "billing"]

    before = healthy()
    for group, subscription in HOSTILE.items():
        plant(group, subscription)
    plant("many", {TOPIC: 2**31 - 1}, "static")
    plant("wide", {f"topic-{number}": 1 for number in range(30_000)}, "static")
    assert healthy(*([*HOSTILE, "many", "wide"] if name == "describe" else [])) == before


def test_a_subscription_that_cannot_be_evaluated_is_marked_everywhere(zkgroups: Zkgroups, plant: Any) -> None:
    plant("java-only", HOSTILE["java-only"])
    [group] = [row for row in rows(zkgroups, "groups") if row["group"] == "java-only"]
    [member] = [row for row in rows(zkgroups, "members") if row["group"] == "java-only"]
    [owner] = [row for row in rows(zkgroups, "owners") if row["group"] == "java-only"]
    findings = [row["code"] for row in rows(zkgroups, "doctor") if row["group"] == "java-only"]
    described = zkgroups("groups", "describe", "java-only", "-o", "json").json["groups"][0]
    assert group["unevaluable"] == ["m"]
    assert (member["state"], member["dialect"], member["subscription"]["pattern"]) == ("Unknown", "scala", "white_list")
    assert member["subscription"]["streams"] == HOSTILE["java-only"]
    assert "only Java supports" in member["subscription"]["unevaluable"]
    assert (owner["state"], owner["reason"]) == ("live", "the subscription of 'm' cannot be evaluated")
    assert "unevaluable-subscription" in findings
    assert "blocked-partition" not in findings
    assert described["unevaluable"] == ["m"]
    assert described["malformed"][0]["reason"].startswith("its subscription cannot be evaluated: ")
    assert r"white_list (a)\1.* (cannot be evaluated)" in zkgroups("members", "list", "java-only").out
    assert zkgroups("groups", "list", "-o", "wide").lines[-1].split()[-1] == "m"


def test_nothing_is_claimed_beside_a_member_that_may_subscribe_to_the_topic(zkgroups: Zkgroups, plant: Any) -> None:
    plant("java-only", HOSTILE["java-only"])
    refused = zkgroups("claim", "java-only", TOPIC, "1", "--", "true")
    assert (refused.code, "m" in refused.err) == (4, True)
    assert zkgroups("claim", "java-only", TOPIC, "1", "--force", "--", "true").code == 0


def test_a_member_that_may_subscribe_to_the_topic_blocks_no_other(
    zkgroups: Zkgroups, plant: Any, registry: Any
) -> None:
    plant("java-only", HOSTILE["java-only"])
    with registry.group("java-only").instance("z") as other:
        other.register([TOPIC])
        [described] = zkgroups("groups", "describe", "java-only", "-o", "json").json["groups"]
        assert described["blocked"] == []
        assert other.claim(TopicPartition(TOPIC, 1)).held
