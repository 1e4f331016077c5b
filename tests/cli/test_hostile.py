"""Hostile and forbidden nodes beside a healthy group: each command ends, and shows the healthy group as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from ..zookeeper.sick import HIDDEN, SCALA
from .conftest import Zkgroups
from .running import Ended

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
    assert zkgroups("groups", "list", "-o", "wide").lines[-1].split()[-2:] == ["m", "-"]


def test_nothing_is_claimed_beside_a_member_that_may_subscribe_to_the_topic(zkgroups: Zkgroups, plant: Any) -> None:
    plant("java-only", HOSTILE["java-only"])
    refused = zkgroups("claim", "java-only", TOPIC, "1", "--", "true")
    assert (refused.code, "m" in refused.err) == (4, True)
    assert zkgroups("claim", "java-only", TOPIC, "1", "--force", "--", "true").code == 0


# Nodes that must not be read, or that cannot be decoded

BAD: dict[str, tuple[dict[str, bytes], tuple[str, ...]]] = {
    "forbidden": ({}, ("",)),
    "ids-forbidden": ({}, ("/ids",)),
    "ids-one-forbidden": ({}, ("/ids/m",)),
    "owners-forbidden": ({}, ("/owners",)),
    "owners-topic-forbidden": ({}, ("/owners/orders",)),
    "owners-one-forbidden": ({}, ("/owners/orders/0",)),
    "offsets-forbidden": ({}, ("/offsets",)),
    "offsets-topic-forbidden": ({}, ("/offsets/orders",)),
    "offsets-one-forbidden": ({}, ("/offsets/orders/0",)),
    "ids-owners-offsets-forbidden": ({}, ("", "/ids", "/owners", "/offsets")),
    "malformed-registration": ({"/ids/m": b"{nonsense"}, ()),
    "malformed-owner": ({"/owners/orders/0": b"\xff\xfe"}, ()),
    "malformed-offset": ({"/offsets/orders/0": b"abc"}, ()),
    "huge-registration": ({"/ids/m": b'{"x":"' + b"a" * 900_000 + b'"}'}, ()),
    "huge-offset": ({"/offsets/orders/0": b"1" * 900_000}, ()),
    "-o odd 'n\u00e4me\" %s: =@\u202e{}[]$(x)`;*?\\": ({}, ()),
}
"""For each bad group, the data of some of its nodes, and its forbidden nodes."""

OF_ALL_GROUPS = {
    **{
        name: (arguments, key, "ids owners offsets")
        for name, (arguments, key) in COMMANDS.items()
        if name != "describe"
    },
    "owners": (["owners", "list", "-o", "json"], "owners", "owners"),
    "offsets": (["offsets", "get", "-o", "json"], "offsets", "offsets"),
    "export": (["offsets", "export", "--groups", ".*", "--format", "jsonl"], "", "offsets"),
    "watch": (["watch", "--all", "-o", "json", "--for"], "events", "ids owners offsets"),
}
"""Commands that work on all groups, with the key of their rows, and the parts of groups that they read."""


@pytest.fixture
def bad(kazoo: KazooClient, billing: Any) -> None:
    kazoo.add_auth("digest", "alice:sesame")
    nodes = {"/ids/m": SCALA, "/owners/orders/0": b"m-0", "/offsets/orders/0": b"7"}
    for group, (data, forbidden) in BAD.items():
        for path, value in (nodes | data).items():
            kazoo.create(f"/consumers/{group}{path}", value, ephemeral="offsets" not in path, makepath=True)
        for path in reversed(forbidden):
            kazoo.set_acls(f"/consumers/{group}{path}", HIDDEN)


def ended(zkgroups: Zkgroups, arguments: list[str], begun: str) -> Ended:
    """Run a command to its end. Run `watch` for longer if it has not begun."""
    for seconds in ("2", "20", "100") if "watch" in arguments else ():
        done = zkgroups(*arguments, seconds)
        if begun in done.err:
            return done
    return zkgroups(*arguments)


def healthy_rows(out: str, key: str) -> list[Any]:
    rows = json.loads(out)[key] if key else list(map(json.loads, out.splitlines()))
    return [row for row in rows if row["group"] == "billing"]


@pytest.mark.parametrize("name", OF_ALL_GROUPS)
def test_a_bad_group_stops_nothing_and_a_forbidden_one_is_reported_with_exit_code_9(
    zkgroups: Zkgroups, request: pytest.FixtureRequest, billing: Any, name: str
) -> None:
    arguments, key, parts = OF_ALL_GROUPS[name]
    before = ended(zkgroups, arguments, "Watching 1 group.")
    request.getfixturevalue("bad")
    done = ended(zkgroups, arguments, f"Watching {1 + len(BAD)} groups.")
    assert (done.code, healthy_rows(done.out, key)) == (9, healthy_rows(before.out, key)), done.err
    for group, (_data, forbidden) in BAD.items():
        paths = [f"/consumers/{group}{path}:" for path in forbidden if path and path.split("/")[1] in parts]
        assert not paths or any(path in done.err for path in paths), group


def test_the_status_of_a_group_with_forbidden_nodes_is_unknown(zkgroups: Zkgroups, bad: None) -> None:
    """Its owners are not orphaned: the forbidden registration may be theirs."""
    rows = {row["group"]: row["status"] for row in zkgroups("status", "-o", "json").json["groups"]}
    for group in BAD:
        if group.startswith(("ids-", "owners-")):
            assert rows[group] == "UNKNOWN", group


def test_a_snapshot_with_bad_groups_is_exit_code_9(zkgroups: Zkgroups, bad: None, tmp_path: Path) -> None:
    done = zkgroups("snapshot", tmp_path / "snapshots", "--engine", "local", "-o", "json")
    assert done.code == 9, done
