"""`zkgroups groups list`, `describe`, `create` and `delete`."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import Registry, TopicPartition
from zkgroups.core.times import to_ms, utc
from zkgroups.exceptions import NoPermissionError

from .conftest import Zkgroups
from .running import started

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)


# list


def test_a_listing_has_the_names_in_order(zkgroups: Zkgroups, registry: Registry) -> None:
    for name in ("b", "a", "Ünïcode"):
        registry.group(name).create()
    ended = zkgroups("groups", "list")
    assert (ended.code, ended.lines, ended.err) == (0, ["GROUP", "a", "b", "Ünïcode"], "")


def test_a_wide_listing_has_states_and_totals(zkgroups: Zkgroups, billing: Any) -> None:
    [header, line] = zkgroups("groups", "list", "-o", "wide").lines
    totals = ["MEMBERS", "TOPICS", "PARTITIONS", "OWNED", "OFFSETS"]
    assert header.split() == ["GROUP", "STATE", *totals, "LAST-COMMIT", "UNEVALUABLE"]
    assert line.split()[:-2] == ["billing", "CompletingRebalance", "2", "1", "2", "1", "1"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line.split()[-2])
    assert line.split()[-1] == "-"


def test_a_listing_in_json_has_states_and_totals_as_numbers(zkgroups: Zkgroups, billing: Any) -> None:
    found = zkgroups("groups", "list", "-o", "json").json
    [group] = found["groups"]
    assert found["schema"] == 1
    assert group.pop("last_commit_ms") == to_ms(billing.describe().last_commit_at)
    assert group == {
        "group": "billing",
        "state": "CompletingRebalance",
        "totals": {"members": 2, "topics": 1, "partitions": 2, "owned": 1, "offsets": 1},
        "unevaluable": [],
    }


@pytest.mark.usefixtures("cluster")
def test_without_groups_the_data_is_empty_and_a_message_goes_to_stderr(zkgroups: Zkgroups) -> None:
    table = zkgroups("groups", "list")
    assert (table.code, table.out, table.err) == (0, "", "There are no groups.\n")
    assert zkgroups("groups", "list", "-o", "json").json == {"schema": 1, "groups": []}
    assert zkgroups("groups", "list", "-o", "jsonl").out == ""


def test_a_group_that_only_has_offsets_is_listed(zkgroups: Zkgroups, kazoo: KazooClient) -> None:
    kazoo.create("/consumers/storm/offsets/orders/0", b"17", makepath=True)
    [line] = zkgroups("groups", "list", "-o", "wide", "--no-headers").lines
    assert line.split()[:7] == ["storm", "Empty", "0", "1", "1", "0", "1"]


def test_a_listing_can_be_limited_to_some_names(zkgroups: Zkgroups, registry: Registry) -> None:
    for name in ("bill", "billing", "invoices"):
        registry.group(name).create()
    assert zkgroups("groups", "list", "--groups", "bill(ing)?", "-o", "name").lines == ["bill", "billing"]
    assert zkgroups("groups", "list", "--groups", "ill", "-o", "name").err == "No group matches.\n"
    assert zkgroups("groups", "list", "--groups", "(").code == 2


def test_a_listing_can_be_limited_to_one_state(
    zkgroups: Zkgroups, registry: Registry, billing: Any, secret: str
) -> None:
    registry.group("idle").create()
    found = {
        state: zkgroups("groups", "list", "--state", state, "-o", "csv", "--no-headers").lines
        for state in ("Empty", "completingrebalance", "Stable", "Unknown")
    }
    assert {state: [line.split(",")[0] for line in lines] for state, lines in found.items()} == {
        "Empty": ["idle"],
        "completingrebalance": ["billing"],
        "Stable": [],
        "Unknown": ["secret"],
    }
    assert zkgroups("groups", "list", "--state", "Empty").lines == ["GROUP", "idle"]
    assert zkgroups("groups", "list", "--state", "Fine").code == 2


def test_the_first_lines_appear_before_the_last_groups_are_read(zookeeper_hosts: str, kazoo: KazooClient) -> None:
    made = kazoo.transaction()
    for path in ("", *(f"/g{number:04}" for number in range(1500))):
        made.create(f"/consumers{path}")
    made.commit()
    with started("groups", "list", "-z", zookeeper_hosts, "-o", "jsonl") as listing:
        assert listing.stdout is not None
        assert json.loads(listing.stdout.readline())["group"] == "g0000"
        kazoo.delete("/consumers/g1499")  # before the group is read, because the output is larger than a pipe
        names = [json.loads(line)["group"] for line in listing.stdout]
    assert (names[0], names[-1]) == ("g0001", "g1498")


# describe


def test_a_description_shows_instances_owners_offsets_and_unowned_partitions(zkgroups: Zkgroups, billing: Any) -> None:
    ended = zkgroups("groups", "describe", "billing")
    summary, instances, partitions = (block.splitlines() for block in ended.out.split("\n\n"))
    session = f"{billing.owner(AT).session:#x}"
    assert ended.code == 0
    assert summary[1].split()[:2] == ["billing", "CompletingRebalance"]
    assert instances[0].split() == ["INSTANCE", "STATE", "OWNED", "SUBSCRIPTION", "DIALECT", "SESSION", "SINCE"]
    assert instances[1].split()[:6] == ["anna", "AwaitingSync", "1", "orders", "zkgroups", session]
    assert instances[2].split()[:5] == ["ben", "Joining", "0", "orders", "x2"]
    assert partitions[0].split() == ["TOPIC", "PARTITION", "CURRENT-OFFSET", "OWNER", "SESSION", "SINCE", "NOTE"]
    assert partitions[1].split()[:5] == ["orders", "0", "100", "anna", session]
    assert partitions[2].split() == ["orders", "1", "-", "-", "-", "-", "unowned"]


def test_a_description_in_json_has_all_fields_with_numbers_and_nulls(zkgroups: Zkgroups, billing: Any) -> None:
    [group] = zkgroups("groups", "describe", "billing", "-o", "json").json["groups"]
    owner = billing.owner(AT)
    committed = billing.offsets.fetch(AT)
    assert (group["group"], group["state"], group["topics"]) == ("billing", "CompletingRebalance", ["orders"])
    assert [instance["instance"] for instance in group["instances"]] == ["anna", "ben"]
    assert group["instances"][1]["subscription"] == {"pattern": "static", "streams": {"orders": 2}}
    nobody_knows = {"log_start": None, "log_end": None, "lag": None}
    assert group["partitions"] == [
        {
            "topic": "orders",
            "partition": 0,
            "offset": 100,
            "committed_ms": to_ms(committed.committed_at),
            "owners": [{"id": "anna", "session": f"{owner.session:#x}", "claimed_ms": to_ms(owner.claimed_at)}],
            "note": None,
        }
        | nobody_knows,
        {"topic": "orders", "partition": 1, "offset": None, "committed_ms": None, "owners": [], "note": "unowned"}
        | nobody_knows,
    ]
    assert (group["orphans"], group["unowned"]) == ([], [{"topic": "orders", "partition": 1}])
    assert group["blocked"] == []
    assert group["malformed"] == []


def test_a_description_as_csv_has_a_line_for_each_partition(zkgroups: Zkgroups, billing: Any) -> None:
    lines = list(csv.DictReader(io.StringIO(zkgroups("groups", "describe", "billing", "-o", "csv").out)))
    assert [(line["group"], line["topic"], line["partition"], line["offset"], line["owners.id"]) for line in lines] == [
        ("billing", "orders", "0", "100", "anna"),
        ("billing", "orders", "1", "", ""),
    ]


def test_an_owner_that_is_not_a_registered_instance_is_an_orphan(zkgroups: Zkgroups, kazoo: KazooClient) -> None:
    kazoo.create("/consumers/billing/owners/orders/0", b"nobody-0", ephemeral=True, makepath=True)
    ended = zkgroups("groups", "describe", "billing")
    assert ended.lines[-1].split()[-1] == "orphan"
    [group] = zkgroups("groups", "describe", "billing", "-o", "json").json["groups"]
    assert [(orphan["topic"], orphan["partition"], orphan["id"]) for orphan in group["orphans"]] == [
        ("orders", 0, "nobody-0")
    ]
    assert [(instance["state"], instance["subscription"]) for instance in group["instances"]] == [("Leaving", None)]


def test_the_owner_of_a_blocked_partition_is_shown_with_the_time_of_its_claim(zkgroups: Zkgroups, billing: Any) -> None:
    cron = billing.instance("cron")
    cron.register()
    cron.claim(TopicPartition("orders", 1))
    held = billing.owner(TopicPartition("orders", 1))
    for option in ((), ("-o", "wide")):
        *_, header, line = zkgroups("groups", "describe", "billing", *option).lines
        assert header.split() == ["BLOCKED-TOPIC", "PARTITION", "HELD-BY", "SESSION", "SINCE", "PROBLEM"]
        session, since = f"{held.session:#x}", utc(to_ms(held.claimed_at))
        assert line.split() == ["orders", "1", "cron", session, since, "not", "subscribed"]
    [group] = zkgroups("groups", "describe", "billing", "-o", "json").json["groups"]
    assert [partition["note"] for partition in group["partitions"]] == [None, "blocked"]
    assert group["blocked"] == [
        {
            "topic": "orders",
            "partition": 1,
            "holder": "cron",
            "session": session,
            "claimed_ms": to_ms(held.claimed_at),
            "obstacle": "not subscribed",
        }
    ]


def test_an_unreadable_owner_node_blocks_its_partition(zkgroups: Zkgroups, kazoo: KazooClient, billing: Any) -> None:
    kazoo.create("/consumers/billing/owners/orders/1", b"some/body", ephemeral=True)
    stat = kazoo.exists("/consumers/billing/owners/orders/1")
    [group] = zkgroups("groups", "describe", "billing", "-o", "json").json["groups"]
    [found] = group["blocked"]
    assert (found["holder"], found["obstacle"]) == ("b'some/body'", "owner cannot be read")
    assert (found["claimed_ms"], found["session"]) == (stat.ctime, f"{stat.ephemeralOwner:#x}")
    assert group["partitions"][1]["note"] == "blocked"
    assert [node["path"] for node in group["malformed"]] == ["/consumers/billing/owners/orders/1"]


def test_two_owners_of_one_partition_in_two_dialects_are_both_shown(zkgroups: Zkgroups, kazoo: KazooClient) -> None:
    kazoo.create("/consumers/billing/owners/orders/0", b"scala-0", ephemeral=True, makepath=True)
    kazoo.create("/consumers/billing/owners/orders/1001-0", b"pykafka", ephemeral=True)
    [group] = zkgroups("groups", "describe", "billing", "-o", "json").json["groups"]
    [partition] = group["partitions"]
    assert {owner["id"] for owner in partition["owners"]} == {"scala-0", "pykafka"}
    assert partition["note"] == "two owners"


def test_an_unreadable_node_is_shown_by_path_beside_the_others(zkgroups: Zkgroups, kazoo: KazooClient) -> None:
    kazoo.create("/consumers/billing/offsets/orders/0", b"many", makepath=True)
    kazoo.create("/consumers/billing/offsets/orders/1", b"7")
    ended = zkgroups("groups", "describe", "billing")
    assert ended.code == 0
    assert ended.lines[-2].split() == ["CANNOT-BE-READ", "REASON", "DATA"]
    assert ended.lines[-1].startswith("/consumers/billing/offsets/orders/0 ")
    assert ended.lines[-1].endswith("b'many'")
    [group] = zkgroups("groups", "describe", "billing", "-o", "json").json["groups"]
    assert group["totals"]["offsets"] == 1


def test_a_pattern_is_shown_as_one(zkgroups: Zkgroups, kazoo: KazooClient) -> None:
    registration = b'{"version":1,"subscription":{"ord.*":3},"pattern":"white_list","timestamp":"1"}'
    kazoo.create("/consumers/billing/ids/billing_h-1-ab", registration, ephemeral=True, makepath=True)
    assert "white_list ord.* x3" in zkgroups("groups", "describe", "billing").out


@pytest.mark.usefixtures("cluster")
def test_a_missing_group_is_exit_code_3(zkgroups: Zkgroups) -> None:
    ended = zkgroups("groups", "describe", "nobody")
    assert (ended.code, ended.out, ended.err) == (
        3,
        "",
        "zkgroups: group 'nobody' does not exist: check the name and the address\n",
    )
    missing = zkgroups("groups", "describe", "nobody", "-o", "json")
    assert (missing.code, missing.json) == (3, {"schema": 1, "groups": []})


def test_a_missing_group_does_not_hide_the_others(zkgroups: Zkgroups) -> None:
    zkgroups("groups", "create", "a", "c")
    ended = zkgroups("groups", "describe", "a", "b", "c", "-o", "name")
    assert (ended.code, ended.lines, ended.err) == (
        9,
        ["a", "c"],
        "zkgroups: group 'b' does not exist: check the name and the address\n",
    )


# create


def test_create_creates_groups_and_reports_them_on_stderr(zkgroups: Zkgroups, registry: Registry) -> None:
    ended = zkgroups("groups", "create", "b", "a", "b")
    assert (ended.code, ended.out, ended.err) == (0, "", "created b\ncreated a\n")
    assert registry.groups() == ["a", "b"]


def test_create_leaves_an_existing_group_unchanged(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("billing").offsets.set(AT, 5)
    ended = zkgroups("groups", "create", "billing")
    assert (ended.code, ended.err) == (0, "billing already exists\n")
    assert registry.group("billing").offsets.fetch(AT).offset == 5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("create", "a/b"),
        ("create", ".."),
        ("create", "a\x1b[2Jb"),
        ("create", b"a\xffb"),
        ("describe", "a/ids"),
        ("delete", "a/ids"),
        ("delete", ""),
    ],
)
def test_a_bad_name_is_exit_code_2_before_anything_is_done(
    zkgroups: Zkgroups, registry: Registry, command: str, name: str | bytes
) -> None:
    registry.group("good").create()
    ended = zkgroups("groups", command, "good", "new", name)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("zkgroups: group '")
    assert len(ended.err.splitlines()) == 1
    assert "\x1b" not in ended.err
    assert registry.groups() == ["good"]


# delete


def test_delete_removes_groups_with_their_offsets(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("billing").offsets.set(AT, 5)
    registry.group("other").create()
    ended = zkgroups("groups", "delete", "billing", "--execute", "-o", "name")
    assert (ended.code, ended.out, ended.err) == (0, "billing\n", "deleted billing\n")
    assert registry.groups() == ["other"]


def test_without_execute_the_groups_are_shown_and_nothing_is_deleted(
    zkgroups: Zkgroups, registry: Registry, kazoo: KazooClient, billing: Any, tmp_path: Path
) -> None:
    registry.group("invoices").offsets.set_many({AT: 5, TopicPartition("orders", 1): 0})
    before = tree(kazoo, "/consumers")
    shown = zkgroups("groups", "delete", "invoices", "--undo-file", tmp_path / "undo.json")
    assert (shown.code, shown.err) == (0, "Nothing was changed: add --execute to apply.\n")
    assert [line.split()[:3] for line in shown.lines] == [["GROUP", "TOPICS", "OFFSETS"], ["invoices", "1", "2"]]
    refused = zkgroups("groups", "delete", "billing", "invoices", "-o", "name")
    assert (refused.code, refused.lines) == (9, ["invoices"])
    assert (tree(kazoo, "/consumers"), list(tmp_path.iterdir())) == (before, [])


def test_the_undo_file_of_a_deletion_restores_the_offsets(
    zkgroups: Zkgroups, registry: Registry, kazoo: KazooClient, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        registry.group(name).offsets.set_many({AT: 5, TopicPartition("orders", 1): 0})
    kazoo.create("/consumers/b/offsets/orders/2", b"7 ")
    file = tmp_path / "undo.json"
    done = zkgroups("groups", "delete", "a", "b", "--undo-file", file, "--execute")
    assert (done.code, registry.groups()) == (0, [])
    assert "Partitions among them that had no valid offset: 1." in done.err
    restored = zkgroups("offsets", "import", file, "--backward", "--execute")
    assert restored.code == 0
    found = [(each.group, each.at.partition, each.offset) for each in registry.offsets()]  # type: ignore[union-attr]
    assert found == [("a", 0, 5), ("a", 1, 0), ("b", 0, 5), ("b", 1, 0)]


def test_an_undo_file_is_never_overwritten(zkgroups: Zkgroups, registry: Registry, tmp_path: Path) -> None:
    registry.group("a").offsets.set(AT, 5)
    (tmp_path / "undo.json").write_text("mine")
    refused = zkgroups("groups", "delete", "a", "--undo-file", tmp_path / "undo.json", "--execute")
    assert (refused.code, registry.groups(), (tmp_path / "undo.json").read_text()) == (4, ["a"], "mine")


def test_a_live_group_is_not_deleted_and_none_of_its_nodes_is_changed(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Any
) -> None:
    before = tree(kazoo, "/consumers/billing")
    ended = zkgroups("groups", "delete", "billing", "--execute")
    assert (ended.code, ended.out) == (4, "")
    assert ended.err == "zkgroups: group 'billing' is in use by anna, ben: stop its instances first\n"
    assert tree(kazoo, "/consumers/billing") == before


def test_delete_continues_with_other_groups_and_reports_a_partial_success(
    zkgroups: Zkgroups, registry: Registry, billing: Any
) -> None:
    registry.group("a").create()
    registry.group("z").create()
    ended = zkgroups("groups", "delete", "a", "billing", "gone", "z", "--execute")
    assert ended.code == 9
    assert [line.split()[0] for line in ended.err.splitlines()] == ["zkgroups:", "zkgroups:", "deleted", "deleted"]
    assert registry.groups() == ["billing"]


def test_deleting_a_missing_group_is_exit_code_3(zkgroups: Zkgroups) -> None:
    assert zkgroups("groups", "delete", "nobody").code == 3


# Connections


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "-o", "jsonl"],
        ["describe", "billing"],
        ["describe", "billing", "--watch"],
        ["create", "billing"],
        ["delete", "billing"],
        ["delete", "billing", "--execute"],
        ["copy", "billing", "blue"],
        ["copy", "billing", "blue", "--execute"],
        ["prune", "--older-than", "0s"],
        ["prune", "--older-than", "0s", "--export", "nowhere/pruned.jsonl", "--execute"],
    ],
    ids=" ".join,
)
def test_an_unreachable_server_is_exit_code_7(zkgroups: Zkgroups, arguments: list[str]) -> None:
    ended = zkgroups("groups", *arguments, "-z", "127.0.0.1:1", "--timeout", "0.3")
    assert (ended.code, ended.out) == (7, "")
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize("command", [("create", "billing", "new"), ("delete", "billing", "--execute")])
def test_with_read_only_nothing_is_written(zkgroups: Zkgroups, registry: Registry, command: tuple[str, ...]) -> None:
    registry.group("billing").create()
    assert zkgroups("groups", *command, "--read-only").code == 4
    assert registry.groups() == ["billing"]


# Permissions


def test_a_forbidden_group_is_unknown_and_not_empty(zkgroups: Zkgroups, secret: str) -> None:
    ended = zkgroups("groups", "describe", secret, "-o", "json")
    [group] = ended.json["groups"]
    assert ended.code == 6
    assert ended.err.startswith("zkgroups: no permission on /consumers/secret/")
    assert group["state"] is None
    assert set(group["totals"].values()) == {None}
    assert zkgroups("groups", "list", "-o", "wide").code == 6


def test_without_permission_nothing_changes(zkgroups: Zkgroups, kazoo: KazooClient, secret: str) -> None:
    before = tree(kazoo, "/consumers/secret")
    ended = zkgroups("groups", "delete", secret, "--execute")
    assert (ended.code, ended.out) == (6, "")
    assert ended.err.startswith("zkgroups: no permission on /consumers/secret")
    assert tree(kazoo, "/consumers/secret") == before


def test_with_permission_a_group_is_read_and_deleted(zkgroups: Zkgroups, secret: str) -> None:
    alice = {"ZKGROUPS_DIGEST_USER": "alice", "ZKGROUPS_PASSWORD": "sesame"}
    assert zkgroups("groups", "list", "-o", "csv", "--no-headers", **alice).out.startswith("secret,Empty,0,1,1,0,1,")
    assert zkgroups("groups", "delete", secret, "--execute", **alice).code == 0


def test_a_listing_without_permission_is_exit_code_6(zkgroups: Zkgroups, kazoo: KazooClient, secret: str) -> None:
    kazoo.set_acls("/consumers", kazoo.get_acls("/consumers/secret/ids")[0])
    ended = zkgroups("groups", "list")
    assert (ended.code, ended.out, ended.err) == (
        6,
        "",
        f"zkgroups: {NoPermissionError('/consumers')}\n",
    )


def test_an_invisible_group_is_exit_code_6(zkgroups: Zkgroups, kazoo: KazooClient, secret: str) -> None:
    kazoo.set_acls("/consumers/secret", kazoo.get_acls("/consumers/secret/ids")[0])
    ended = zkgroups("groups", "describe", secret)
    assert (ended.code, ended.err) == (
        6,
        f"zkgroups: {NoPermissionError('/consumers/secret/ids')}\n",
    )
    assert ended.out.splitlines()[1].split() == ["secret", *"-------"]  # it exists, but nothing is known about it


def tree(kazoo: KazooClient, path: str) -> dict[str, tuple[bytes, int]]:
    """Everything below a path, with its data and the time of its last change."""
    data, stat = kazoo.get(path)
    found = {path: (data, stat.mzxid)}
    for name in kazoo.get_children(path):
        found |= tree(kazoo, f"{path}/{name}")
    return found
