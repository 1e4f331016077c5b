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
JAVA_ONLY = {r"(a)\1.*": 1}
SUBSCRIPTIONS: dict[str, tuple[dict[str, int], str]] = {
    "backtracking": ({"(a+)+b": 1}, "white_list"),
    "java-only": (JAVA_ONLY, "white_list"),
    "long": ({"(a|b)*" * 133_000: 1}, "white_list"),
    "large": ({"(?:a|b)*a(?:a|b){900}" * 20: 1}, "white_list"),
    "many": ({TOPIC: 2**31 - 1}, "static"),
    "wide": ({f"topic-{number}": 1 for number in range(30_000)}, "static"),
}
"""Groups of one live member each, which owns a partition of the topic, with its subscription."""

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

COMMANDS = {
    "groups": (["groups", "list", "-o", "json"], "groups", "ids owners offsets"),
    "describe": (["groups", "describe", "-o", "json", "billing", *SUBSCRIPTIONS], "groups", ""),
    "doctor": (["doctor", "-o", "json"], "findings", "ids owners offsets"),
    "members": (["members", "list", "-o", "json"], "members", "ids owners offsets"),
    "owners": (["owners", "list", "-o", "json"], "owners", "owners"),
    "prune": (["groups", "prune", "--older-than", "0s", "-o", "json"], "groups", "ids owners offsets"),
    "offsets": (["offsets", "get", "-o", "json"], "offsets", "offsets"),
    "export": (["offsets", "export", "--groups", ".*", "--format", "jsonl"], "", "offsets"),
    "watch": (["watch", "--all", "-o", "json", "--for"], "events", "ids owners offsets"),
}
"""Commands that work on all groups or on the hostile ones, with the key of their rows, and the parts that they read."""


def subscribe(kazoo: KazooClient, group: str, subscription: dict[str, int], pattern: str) -> None:
    fields = {"version": 1, "subscription": subscription, "pattern": pattern, "timestamp": "1795255170109"}
    kazoo.create(f"/consumers/{group}/ids/m", json.dumps(fields).encode(), ephemeral=True, makepath=True)
    kazoo.create(f"/consumers/{group}/owners/{TOPIC}/0", b"m-0", ephemeral=True, makepath=True)


@pytest.fixture
def topic(kazoo: KazooClient, billing: Any) -> None:
    kazoo.create(f"/brokers/topics/{TOPIC}", b'{"version":1,"partitions":{"0":[0],"1":[0]}}')


@pytest.fixture
def bad(kazoo: KazooClient, topic: None) -> None:
    """All hostile groups, beside the healthy group `billing`."""
    kazoo.add_auth("digest", "alice:sesame")
    for group, subscription in SUBSCRIPTIONS.items():
        subscribe(kazoo, group, *subscription)
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


def rows(out: str, key: str, group: str = "billing") -> list[Any]:
    found = json.loads(out)[key] if key else list(map(json.loads, out.splitlines()))
    return [row for row in found if row["group"] == group]


@pytest.mark.parametrize("name", COMMANDS)
def test_hostile_groups_stop_nothing_and_forbidden_ones_are_reported_with_exit_code_9(
    zkgroups: Zkgroups, request: pytest.FixtureRequest, topic: None, name: str
) -> None:
    arguments, key, parts = COMMANDS[name]
    before = ended(zkgroups, arguments, "Watching 1 group.")
    request.getfixturevalue("bad")
    done = ended(zkgroups, arguments, f"Watching {1 + len(BAD) + len(SUBSCRIPTIONS)} groups.")
    assert rows(done.out, key) == rows(before.out, key), done.err
    assert done.code == (9 if parts else 0), done.err
    for group, (_data, forbidden) in BAD.items():
        paths = [f"/consumers/{group}{path}:" for path in forbidden if path and path.split("/")[1] in parts]
        assert not paths or any(path in done.err for path in paths), group


def test_a_subscription_that_cannot_be_evaluated_is_marked_everywhere_and_prevents_claims(
    zkgroups: Zkgroups, kazoo: KazooClient, topic: None
) -> None:
    subscribe(kazoo, "java-only", JAVA_ONLY, "white_list")

    def found(name: str) -> list[Any]:
        arguments, key, _ = COMMANDS[name]
        return rows(zkgroups(*arguments).out, key, "java-only")

    [group], [member], [owner], findings = map(found, ("groups", "members", "owners", "doctor"))
    [described] = zkgroups("groups", "describe", "java-only", "-o", "json").json["groups"]
    assert group["unevaluable"] == described["unevaluable"] == ["m"]
    assert (member["state"], member["dialect"], member["subscription"]["pattern"]) == ("Unknown", "scala", "white_list")
    assert member["subscription"]["streams"] == JAVA_ONLY
    assert "only Java supports" in member["subscription"]["unevaluable"]
    assert (owner["state"], owner["reason"]) == ("live", "the subscription of 'm' cannot be evaluated")
    assert "unevaluable-subscription" in [row["code"] for row in findings]
    assert "blocked-partition" not in [row["code"] for row in findings]
    assert described["malformed"][0]["reason"].startswith("its subscription cannot be evaluated: ")
    assert r"white_list (a)\1.* (cannot be evaluated)" in zkgroups("members", "list", "java-only").out
    assert zkgroups("groups", "list", "-o", "wide").lines[-1].split()[-2:] == ["m", "-"]
    refused = zkgroups("claim", "java-only", TOPIC, "1", "--", "true")
    assert (refused.code, "m" in refused.err) == (4, True)
    assert zkgroups("claim", "java-only", TOPIC, "1", "--force", "--", "true").code == 0


def test_the_status_of_a_group_with_forbidden_nodes_is_unknown_and_a_snapshot_is_partial(
    zkgroups: Zkgroups, bad: None, tmp_path: Path
) -> None:
    """Its owners are not orphaned: the forbidden registration may be theirs."""
    rows = {row["group"]: row["status"] for row in zkgroups("status", "-o", "json").json["groups"]}
    for group in BAD:
        if group.startswith(("ids-", "owners-")):
            assert rows[group] == "UNKNOWN", group
    assert zkgroups("snapshot", tmp_path / "snapshots", "--engine", "local", "-o", "json").code == 9
