"""`zkgroups groups`: list, describe, explain, create, delete, copy and prune."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from zkgroups_cli.groups.explain import explanation_lines
from zkgroups_cli.offsets import apply_changes
from zkgroups_cli.offsets.apply_changes import recorded_deletion, saved_offsets_file
from zkgroups_cli.shared.options import Options

from zkgroups import Registry, TopicPartition
from zkgroups.core.offsets.files import FileFormat, parse_offsets
from zkgroups.core.offsets.reset import plan_delete
from zkgroups.core.times import to_ms, utc
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.exceptions import InterruptedDeleteError, NoPermissionError
from zkgroups.zookeeper.admin import migration_marks as marks

from ..core.groups import SCALA, member
from ..core.rebalance.test_shared_plan import announcing, explained
from ..zookeeper.tree import dump
from .conftest import Zkgroups
from .running import run_without_space, started

pytestmark = pytest.mark.zookeeper

P0, P1 = (TopicPartition("orders", number) for number in range(2))


@pytest.fixture
def invoices(registry: Registry) -> Any:
    group = registry.group("invoices")
    group.offsets.set_many({P0: 5, P1: 0, TopicPartition("refunds", 7): 3})
    return group


def offsets(group: Any) -> list[tuple[TopicPartition, int]]:
    return [(each.at, each.offset) for each in group.offsets]


# list


def test_a_listing_has_states_and_totals(zkgroups: Zkgroups, kazoo: KazooClient, billing: Any) -> None:
    """Also of a group that has only offsets."""
    kazoo.create("/consumers/Ünïcode/offsets/orders/0", b"17", makepath=True)
    assert zkgroups("groups", "list").lines == ["GROUP", "billing", "Ünïcode"]
    [header, line, other] = zkgroups("groups", "list", "-o", "wide").lines
    totals = ["MEMBERS", "TOPICS", "PARTITIONS", "OWNED", "OFFSETS"]
    assert header.split() == ["GROUP", "STATE", *totals, "LAST-COMMIT", "UNEVALUABLE", "MOVED-TO"]
    assert re.fullmatch(r"billing +CompletingRebalance +2 +1 +2 +1 +1 +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ +- +-", line)
    assert other.split()[:7] == ["Ünïcode", "Empty", "0", "1", "1", "0", "1"]
    assert zkgroups("groups", "list", "-o", "json").json["groups"][0] == {
        "group": "billing",
        "state": "CompletingRebalance",
        "totals": {"members": 2, "topics": 1, "partitions": 2, "owned": 1, "offsets": 1},
        "last_commit_ms": to_ms(billing.describe().last_commit_at),
        "moved_to": None,
        "unevaluable": [],
    }


def test_a_listing_can_be_limited_to_names_and_states(
    zkgroups: Zkgroups, registry: Registry, billing: Any, secret: str
) -> None:
    for name in ("bill", "idle"):
        registry.group(name).create()

    def names(*arguments: str) -> list[str]:
        return zkgroups("groups", "list", *arguments, "-o", "name").lines

    assert names("--groups", "bill(ing)?") == ["bill", "billing"]
    assert zkgroups("groups", "list", "--groups", "ill").err == "No group matches.\n"
    assert names("--state", "Empty") == ["bill", "idle"]
    assert names("--state", "completingREBALANCE", "--state", "Unknown") == ["billing", "secret"]
    none = zkgroups("groups", "list", "--state", "stable", "--state", "PreparingRebalance")
    assert "No group is Stable or PreparingRebalance.\n" in none.err


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
    summary, instances, partitions = (
        block.splitlines() for block in zkgroups("groups", "describe", "billing").out.split("\n\n")
    )
    owner = billing.owner(P0)
    session = f"{owner.session:#x}"
    assert summary[1].split()[:2] == ["billing", "CompletingRebalance"]
    assert instances[0].split() == ["INSTANCE", "STATE", "OWNED", "SUBSCRIPTION", "DIALECT", "SESSION", "SINCE"]
    assert instances[1].split()[:6] == ["anna", "AwaitingSync", "1", "orders", "zkgroups", session]
    assert instances[2].split()[:5] == ["ben", "Joining", "0", "orders", "x2"]
    assert partitions[0].split() == ["TOPIC", "PARTITION", "CURRENT-OFFSET", "OWNER", "SESSION", "SINCE", "NOTE"]
    assert partitions[1].split()[:5] == ["orders", "0", "100", "anna", session]
    assert partitions[2].split() == ["orders", "1", "-", "-", "-", "-", "unowned"]

    [group] = zkgroups("groups", "describe", "billing", "-o", "json").json["groups"]
    assert group["instances"][1]["subscription"] == {"pattern": "static", "streams": {"orders": 2}}
    nobody_knows = {"log_start": None, "log_end": None, "lag": None}
    commit = {"offset": 100, "committed_ms": to_ms(billing.offsets.fetch(P0).committed_at), "note": None}
    owners = {"owners": [{"id": "anna", "session": session, "claimed_ms": to_ms(owner.claimed_at)}]}
    assert group["partitions"] == [
        {"topic": "orders", "partition": 0} | commit | owners | nobody_knows,
        {"topic": "orders", "partition": 1, "offset": None, "committed_ms": None, "owners": [], "note": "unowned"}
        | nobody_knows,
    ]
    assert group["unowned"] == [{"topic": "orders", "partition": 1}]
    assert (group["orphans"], group["blocked"], group["malformed"]) == ([], [], [])


def test_orphans_blocked_partitions_and_unreadable_nodes_are_shown(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Any
) -> None:
    with billing.instance("cron") as cron:
        cron.register()
        cron.claim(P1)
        held = billing.owner(P1)
        kazoo.create("/consumers/billing/owners/orders/2", b"nobody-0", ephemeral=True)
        kazoo.create("/consumers/billing/owners/orders/3", b"some/body", ephemeral=True)
        kazoo.create("/consumers/billing/offsets/orders/1", b"many")
        lines = zkgroups("groups", "describe", "billing").lines
        [group] = zkgroups("groups", "describe", "billing", "-o", "json").json["groups"]
    headers = {line.split()[0]: line.split() for line in lines if line[:1].isupper() and line.isupper()}
    assert headers["BLOCKED-TOPIC"] == ["BLOCKED-TOPIC", "PARTITION", "HELD-BY", "SESSION", "SINCE", "PROBLEM"]
    assert headers["CANNOT-BE-READ"] == ["CANNOT-BE-READ", "REASON", "DATA"]
    session, since = f"{held.session:#x}", utc(to_ms(held.claimed_at))
    assert ["orders", "1", "cron", session, since, "not", "subscribed"] in [line.split() for line in lines]
    assert [line.rsplit(" ", 1)[-1] for line in lines if line.startswith("/consumers/billing/offsets/")] == ["'many'"]
    assert {each["obstacle"] for each in group["blocked"]} >= {"not subscribed"}
    assert group["blocked"][0] == {
        "topic": "orders",
        "partition": 1,
        "holder": "cron",
        "session": session,
        "claimed_ms": to_ms(held.claimed_at),
        "obstacle": "not subscribed",
    }
    assert [(each["topic"], each["partition"], each["id"]) for each in group["orphans"]] == [("orders", 2, "nobody-0")]
    assert {node["path"] for node in group["malformed"]} >= {
        "/consumers/billing/owners/orders/3",
        "/consumers/billing/offsets/orders/1",
    }


def test_a_group_that_was_moved_is_shown_with_its_mark_and_cannot_be_joined(
    zkgroups: Zkgroups, registry: Registry, billing: Any
) -> None:
    registry.client.create("/consumers/billing/migration", b"who was this?")
    shown = zkgroups("groups", "describe", "billing").out
    assert ("/consumers/billing/migration" in shown, "MOVED-TO" in shown) == (True, False)
    registry.client.delete("/consumers/billing/migration")
    marks.put(registry._context, {"billing": "accounts"}, plan="p1", state=MarkState.MOVED)  # without a migration
    lines = zkgroups("groups", "describe", "billing").lines
    assert ["accounts", "moved", "p1"] in [line.split()[:3] for line in lines]
    [found] = zkgroups("groups", "describe", "billing", "-o", "json").json["groups"]
    assert found["migration"][0].keys() == {"target", "state", "plan", "since_ms"}
    claimed = zkgroups("claim", "billing", "orders", "1", "--force")
    assert (claimed.code, claimed.out) == (4, "")
    assert "was moved to Kafka's own offsets as 'accounts', by plan p1" in claimed.err


def test_a_forbidden_group_is_unknown_and_not_empty(zkgroups: Zkgroups, kazoo: KazooClient, secret: str) -> None:
    [group] = zkgroups("groups", "describe", secret, "-o", "json").json["groups"]
    assert (group["state"], set(group["totals"].values())) == (None, {None})
    hidden = kazoo.get_acls("/consumers/secret/ids")[0]
    kazoo.set_acls("/consumers/secret", hidden)
    ended = zkgroups("groups", "describe", secret)
    assert (ended.code, ended.err) == (6, f"zkgroups: {NoPermissionError('/consumers/secret/ids')}\n")
    assert ended.lines[1].split() == ["secret", *"-------"]  # it exists, but nothing is known about it
    kazoo.set_acls("/consumers", hidden)
    listing = zkgroups("groups", "list")
    assert (listing.code, listing.out, listing.err) == (6, "", f"zkgroups: {NoPermissionError('/consumers')}\n")


# explain


def lines(*instances: Any, **more: Any) -> list[str]:
    return list(explanation_lines(explained(*instances, **more)))


def test_a_settled_group_is_explained_in_a_few_lines() -> None:
    owners = {0: "a-0", 1: "a-0", 2: "b-0", 3: "b-0"}
    assert lines(announcing("a", "range"), announcing("b", "range"), owners=owners) == [
        "Group billing is Stable. 2 members share 4 partitions; all are as planned.",
        "",
        "Strategy range: the first one in the list of a that all members support.",
        "  orders: 4 partitions, for 2 streams (a-0, b-0): 2 in a row for each",
        "",
        "Members, in this order:",
        "  a  zkgroups  owns orders 0-1",
        "  b  zkgroups  owns orders 2-3",
        "",
        "Nothing blocks the group.",
    ]


def test_problems_are_named_with_the_command_that_helps() -> None:
    found = lines(announcing("a", "range"), announcing("b", "range"), owners={0: "{x}", 1: "b"}, without=("b",))
    assert found[0] == "Group billing is CompletingRebalance. 2 members share 4 partitions; not as planned: 4."
    assert found[5:] == [
        "Members, in this order:",
        "  a  zkgroups  owns nothing; should own orders 0-1",
        "  b  zkgroups  owns orders 1; should own orders 2-3",
        "",
        "Not as planned:",
        "  orders 0: owned by {x}, which is not registered, so a cannot claim it.",
        "  orders 1: owned by b; a waits until b releases it.",
        "  orders 2-3: no owner; b should claim them.",
        "",
        "What blocks:",
        "  orders/0 is held by '{x}' of session 0x63 since 1970-01-01T00:00:00Z, "
        "which is not registered with that name and session",
        "    if it no longer reads: zkgroups release '--expect-owner={x}' --expect-session=0x63 billing orders 0",
        "",
        "If b leaves, partitions that move: 2.",
        "  a gets orders 2-3",
    ]


def test_names_and_findings_of_one_kind_are_counted() -> None:
    topics = {f"t{number:02}": (0, 1, 2, 5) for number in range(20)}
    found = lines(announcing("a", "range", topics=tuple(topics)), partitions=topics)
    assert "t07 and 12 more: 4 partitions each, for 1 stream (a-0): 4 in a row for each" in found[3]
    assert "t07 0-2, 5 and 12 more: no owner; a should claim them." in found[9]
    found = lines(announcing("a", "range"), owners=dict.fromkeys(range(4), "gone"))
    assert "  and 1 more of orphan-owner: zkgroups doctor billing" in found
    found = lines(member("s", SCALA), partitions={"orders": (0,)}, without=("s",))
    assert found[2].startswith("Strategy range: the default, as s cannot announce one. --foreign-assignor roundrobin")
    assert "  orders 0: no owner; s should claim it in its next rebalance." in found
    assert found[-3] == "If s leaves, nobody reads: no other member shares partitions."


def test_the_command_explains_groups_with_and_without_members(zkgroups: Zkgroups, billing: Any, invoices: Any) -> None:
    shown = zkgroups("groups", "explain", "billing", "--without", "anna")
    assert "  orders 1: no owner; ben should claim it." in shown.lines
    assert shown.lines[-4:-2] == ["If anna leaves, partitions that move: 1.", "  ben gets orders 0"]
    assert zkgroups("groups", "explain", "billing", "-o", "csv", "--no-headers").lines == [
        "billing,orders,0,anna,anna,as planned,",
        "billing,orders,1,,ben,unowned,",
    ]
    empty = "Group invoices is Empty: no member shares partitions, so nobody reads."
    assert zkgroups("groups", "explain", "invoices").lines == [empty]


# create, delete and copy


def test_create_creates_groups_and_reports_them_on_stderr(zkgroups: Zkgroups, invoices: Any) -> None:
    before = offsets(invoices)
    ended = zkgroups("groups", "create", "b", "a", "b", "invoices")
    assert (ended.code, ended.out, ended.err) == (0, "", "created b\ncreated a\ninvoices already exists\n")
    assert offsets(invoices) == before


def test_delete_deletes_groups_and_an_undo_file_restores_their_offsets(
    zkgroups: Zkgroups, registry: Registry, kazoo: KazooClient, invoices: Any, tmp_path: Path
) -> None:
    before, file = offsets(invoices), tmp_path / "undo.json"
    kazoo.create("/consumers/b/offsets/orders/2", b"7 ", makepath=True)
    delete = ("groups", "delete", "invoices", "b", "--undo-file", file)
    shown = zkgroups(*delete)
    assert (shown.code, shown.err) == (0, "Nothing was changed: add --execute to apply.\n")
    assert [line.split()[:3] for line in shown.lines[:2]] == [["GROUP", "TOPICS", "OFFSETS"], ["invoices", "2", "3"]]
    assert (offsets(invoices), file.exists()) == (before, False)
    file.write_text("mine")
    assert (zkgroups(*delete, "--execute").code, file.read_text(), offsets(invoices)) == (4, "mine", before)
    file.unlink()
    done = zkgroups(*delete, "--execute", "-o", "name")
    assert (done.code, done.lines, registry.groups()) == (0, ["invoices", "b"], [])
    assert "Partitions among them that had no valid offset: 1." in done.err
    assert zkgroups("offsets", "import", file, "--backward", "--execute").code == 0
    assert offsets(invoices) == before


def test_delete_goes_on_beside_live_and_missing_groups(
    zkgroups: Zkgroups, registry: Registry, kazoo: KazooClient, billing: Any
) -> None:
    for name in "az":
        registry.group(name).create()
    before = {path: node for path, node in dump(kazoo).items() if path.startswith("/consumers/billing")}
    ended = zkgroups("groups", "delete", "a", "billing", "gone", "z", "--execute")
    assert ended.code == 9
    assert "zkgroups: group 'billing' is in use by anna, ben: stop its instances first\n" in ended.err
    assert [line.split()[0] for line in ended.err.splitlines()] == ["zkgroups:", "zkgroups:", "deleted", "deleted"]
    after = dump(kazoo)
    assert registry.groups() == ["billing"]
    assert {path: node for path, node in after.items() if path.startswith("/consumers/billing")} == before


def test_copy_shows_and_makes_a_group_with_the_same_offsets_and_no_members(
    zkgroups: Zkgroups, kazoo: KazooClient, registry: Registry, invoices: Any
) -> None:
    kazoo.create("/consumers/invoices/offsets/orders/9", b"many")
    rows = ["blue,orders,0,5", "blue,orders,1,0", "blue,refunds,7,3"]
    for execute in ((), ("--execute",)):
        ended = zkgroups("groups", "copy", "invoices", "blue", *execute, "-o", "csv", "--no-headers")
        assert (ended.code, ended.lines) == (9, rows)
        assert "zkgroups: left out: /consumers/invoices/offsets/orders/9 (not a decimal number)\n" in ended.err
        assert bool(kazoo.exists("/consumers/blue")) is bool(execute)
    assert (kazoo.get_children("/consumers/blue/ids"), len(offsets(registry.group("blue")))) == ([], 3)
    for to in ("blue", "invoices"):
        for execute in ((), ("--execute",)):
            refused = zkgroups("groups", "copy", "invoices", to, *execute)
            assert (refused.code, refused.err) == (4, f"zkgroups: group '{to}' already exists: choose another name\n")


@pytest.fixture
def old(registry: Registry) -> Registry:
    """Two unused groups, one of them without offsets. `billing`, if it exists, is in use."""
    registry.group("invoices").offsets.set_many({P0: 5, P1: 0})
    registry.group("litter").create()
    return registry


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return tmp_path / "pruned.jsonl"


def test_unused_groups_are_shown_and_then_deleted_with_their_offsets_in_a_file(
    zkgroups: Zkgroups, kazoo: KazooClient, old: Registry, billing: Any, export: Path
) -> None:
    before = dump(kazoo, "/consumers")
    named = zkgroups("groups", "prune", "billing", "invoices", "--older-than", "1d")
    assert (named.code, named.out) == (0, "")
    assert [line.partition(": ")[2] for line in named.err.splitlines()] == ["it is in use", "it is not old enough"]
    ended = zkgroups("groups", "prune", "--older-than", "0s", "--export", export)
    assert (ended.code, ended.err) == (0, "Nothing was changed: add --execute to apply.\n")
    [header, *lines] = [line.split() for line in ended.lines]
    assert header == ["GROUP", "OFFSETS", "LAST-COMMIT", "AGE"]
    assert [line[:2] for line in lines] == [["invoices", "2"], ["litter", "0"]]
    assert (lines[0][2][-1], lines[1][2]) == ("Z", "-")
    assert (dump(kazoo, "/consumers"), export.exists()) == (before, False)
    ended = zkgroups("groups", "prune", "--older-than", "0s", "--export", export, "--execute", "-o", "name")
    assert (ended.code, ended.lines) == (0, ["invoices", "litter"])
    assert ended.err == (
        f"Saved the old offsets to {export}. To restore them: zkgroups offsets import {export} --execute\n"
        "deleted invoices\ndeleted litter\n"
    )
    assert old.groups() == ["billing"]
    assert [(found.group, found.at, found.offset) for found in parse_offsets(export.read_text(), FileFormat.JSONL)] == [
        ("invoices", P0, 5),
        ("invoices", P1, 0),
    ]


@pytest.mark.parametrize(
    "command",
    [
        ("groups", "prune", "--older-than", "0s", "--export"),
        ("offsets", "delete", "invoices", "--all-topics", "--undo-file"),
    ],
)
def test_nothing_is_deleted_if_the_disk_is_too_full_for_the_saved_offsets(
    kazoo: KazooClient, zookeeper_hosts: str, old: Registry, export: Path, command: tuple[str, ...]
) -> None:
    before = dump(kazoo, "/consumers")
    ended = run_without_space(*command, export, "--execute", env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    assert (ended.code, ended.err) == (
        1,
        f"zkgroups: {export} could not be written: File too large; no offset was changed\n",
    )
    assert not export.exists()
    assert dump(kazoo, "/consumers") == before


@pytest.mark.parametrize(
    ("act", "command"),
    [
        ("commit", ("prune", "--older-than", "0s", "--export")),
        ("register", ("delete", "invoices", "litter", "other", "--undo-file")),
    ],
)
def test_a_commit_or_registration_after_the_export_keeps_the_group_and_takes_it_out_of_the_file(
    zkgroups: Zkgroups,
    old: Registry,
    kazoo: KazooClient,
    export: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    act: str,
) -> None:
    real = apply_changes.write_new_file
    old.group("other").offsets.set(P0, 7)

    def meanwhile(*arguments: Any) -> None:
        real(*arguments)
        if act == "commit":
            old.group("invoices").offsets.set(P0, 6)
        else:
            kazoo.create("/consumers/invoices/ids/late", b"{}", ephemeral=True, makepath=True)

    monkeypatch.setattr(apply_changes, "write_new_file", meanwhile)
    told = zkgroups("groups", *command, export, "--execute", "-o", "name")
    reason = "group 'invoices': offset of orders/0 was" if act == "commit" else "group 'invoices' is in use by late"
    assert (told.code, told.lines) == (9, ["litter", "other"])
    kept = parse_offsets(export.read_text(), FileFormat.JSONL if command[0] == "prune" else FileFormat.JSON)
    assert [(each.group, each.offset) for each in kept] == [("other", 7)], "to restore it must not set others back"
    assert f"zkgroups: {reason}" in told.err
    assert old.groups() == ["invoices"]
    assert [found.offset for found in old.group("invoices").offsets] == [6 if act == "commit" else 5, 0]  # type: ignore[union-attr]


def test_the_file_of_a_partly_deleted_group_has_only_the_deleted_offsets(old: Registry, export: Path) -> None:
    group = old.group("invoices")
    changes = plan_delete({each.at: each for each in group.offsets})  # type: ignore[misc, union-attr]
    with (
        suppress(InterruptedDeleteError),
        saved_offsets_file(Options(), [("invoices", changes)], export) as made,
        recorded_deletion(old, "invoices", changes, made),
    ):
        group.offsets.delete([P0])
        raise InterruptedDeleteError("invoices", ["orders"], "it is in use")
    assert [each.at for each in parse_offsets(export.read_text(), FileFormat.JSON)] == [P0]


def test_pruning_is_completed_when_stdout_is_closed(zookeeper_hosts: str, old: Registry, export: Path) -> None:
    arguments = ("groups", "prune", "--older-than", "0s", "--export", export, "--execute", "-o", "jsonl")
    with started(*arguments, env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(30) == 0
    assert old.groups() == []
