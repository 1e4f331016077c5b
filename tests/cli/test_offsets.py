"""`zkgroups offsets`: what get, set, diff, reset and delete show and change, and when they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import CommittedOffset, Consumergroup, Registry, TopicPartition
from zkgroups.core.times import to_ms
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.exceptions import NoPermissionError
from zkgroups.zookeeper.admin import migration_marks as marks

from ..zookeeper.tree import dump
from .conftest import Zkgroups
from .running import run

pytestmark = pytest.mark.zookeeper

P0, P1 = (TopicPartition("orders", number) for number in range(2))
REFUNDS = TopicPartition("refunds", 0)


@pytest.fixture
def invoices(registry: Registry) -> Consumergroup:
    """A group of offsets only: orders/0 at 50, orders/1 at 60, and refunds/0 at 7."""
    group = registry.group("invoices")
    group.offsets.set_many({P0: 50, P1: 60, REFUNDS: 7})
    return group


@pytest.fixture
def litter(kazoo: KazooClient) -> str:
    """Nodes that are malformed offsets, and nodes with invalid partition numbers. All are readable."""
    kazoo.create("/consumers/litter/offsets/orders/0", b"many", makepath=True)
    kazoo.create("/consumers/litter/offsets/orders/01", b"5")
    return "litter"


def numbers(group: Any) -> dict[str, int]:
    return {str(each.at): each.offset for each in group.offsets if isinstance(each, CommittedOffset)}


# get


def test_offsets_are_shown_for_each_partition_with_times_and_versions(
    zkgroups: Zkgroups, invoices: Any, billing: Any
) -> None:
    assert [line.split() for line in zkgroups("offsets", "get", "invoices").lines] == [
        ["GROUP", "TOPIC", "PARTITION", "OFFSET", "NOTE"],
        ["invoices", "orders", "0", "50", "-"],
        ["invoices", "orders", "1", "60", "-"],
        ["invoices", "refunds", "0", "7", "-"],
    ]
    committed = invoices.offsets.fetch(REFUNDS)
    [line] = zkgroups("offsets", "get", "invoices", "--topic", "refunds", "-o", "wide", "--no-headers").lines
    assert re.fullmatch(rf"invoices +refunds +0 +7 +\d{{4}}-\S+Z +0 +{committed.zxid:#x} +-", line)
    [row] = zkgroups("offsets", "get", "invoices", "--topic", "refunds", "-o", "json").json["offsets"]
    assert row == {
        "group": "invoices",
        "topic": "refunds",
        "partition": 0,
        "offset": 7,
        "committed_ms": to_ms(committed.committed_at),
        "version": 0,
        "zxid": committed.zxid,
        "note": None,
    }


def test_without_a_group_all_are_shown_and_names_expressions_and_topics_choose_some(
    zkgroups: Zkgroups, invoices: Any, billing: Any
) -> None:
    def groups(*arguments: str) -> list[str]:
        return [json.loads(line)["group"] for line in zkgroups("offsets", "get", *arguments, "-o", "jsonl").lines]

    assert groups() == ["billing", "invoices", "invoices", "invoices"]
    assert groups("--groups", "inv.*", "--topic", "orders") == ["invoices", "invoices"]
    assert groups("invoices", "--groups", "b.*", "--topic", "orders:0") == ["invoices", "billing"]


def test_malformed_and_forbidden_offsets_are_lines_with_the_reason(
    zkgroups: Zkgroups, litter: str, secret: str, kazoo: KazooClient
) -> None:
    alone = zkgroups("offsets", "get", litter, "-o", "json")
    assert alone.code == 10
    assert [(each["partition"], each["offset"], each["note"]) for each in alone.json["offsets"]] == [
        (None, None, "01: its name is not a partition: '5'"),
        (0, None, "not a decimal number: 'many'"),
    ]
    kazoo.create("/consumers/litter/offsets/orders/1", b"0")
    assert zkgroups("offsets", "get", litter, "--topic", "orders:0,1").code == 0
    everything = zkgroups("offsets", "get", "-o", "json")
    assert (everything.code, everything.err) == (9, f"zkgroups: {NoPermissionError('/consumers/secret/offsets')}\n")
    hidden = everything.json["offsets"][-1]
    assert (hidden["group"], hidden["offset"], hidden["note"]) == ("secret", None, "no permission")
    alice = {"ZKGROUPS_DIGEST_USER": "alice", "ZKGROUPS_PASSWORD": "sesame"}
    assert zkgroups("offsets", "get", secret, "-o", "name", **alice).lines == ["0"]


# set


@pytest.mark.parametrize(
    ("arguments", "code", "said", "left"),
    [
        ("invoices orders 0 55", 0, "invoices: set the offset of orders/0 to 55; it was 50\n", 55),
        ("invoices orders 0 70 --expect 50", 0, "it was 50\n", 70),
        ("fresh orders 0 0 --expect none", 0, "fresh: set the offset of orders/0 to 0; it had none\n", 0),
        ("invoices orders 0 49", 4, "is 50 and would go back to 49: --backward allows it\n", 50),
        ("invoices orders 0 49 --backward", 0, "it was 50\n", 49),
        ("invoices orders 0 70 --expect 49", 5, "was changed by another client and is now 50: check it", 50),
        ("invoices orders 0 70 --expect none", 5, "is now 50", 50),
        ("fresh orders 0 70 --expect 0", 5, "orders/0", None),
        ("litter orders 0 7", 4, "the new one might go back: --backward allows it", None),
        ("litter orders 0 7 --expect none", 5, "'many'", None),
        ("litter orders 0 7 --backward", 0, "litter: set the offset of orders/0 to 7; it was 'many'\n", 7),
        ("billing orders 0 200", 4, "group 'billing' is in use by anna, ben: stop its instances first\n", 100),
        ("billing orders 0 200 --expect 7", 5, "is now 100", 100),
        ("billing orders 0 200 --force", 0, "it was 100\n", 200),
        ("invoices order 0 5", 3, "Kafka has no topic 'order': check the name and the number, or use --force\n", None),
        ("invoices orders 2 5", 3, "Kafka has no partition orders/2: check the name and the number", None),
        ("invoices orders 2 5 --force", 0, "it had none\n", 5),
    ],
)
def test_an_offset_is_set_or_the_reason_is_named(
    zkgroups: Zkgroups, registry: Registry, billing: Any, invoices: Any, litter: str,
    arguments: str, code: int, said: str, left: int | None,
) -> None:  # fmt: skip
    registry.group("fresh").create()
    group, topic, partition, *_ = arguments.split()
    ended = zkgroups("offsets", "set", *arguments.split())
    assert (ended.code, ended.out, said in ended.err) == (code, "", True), ended
    assert numbers(registry.group(group)).get(f"{topic}/{partition}") == left


# diff


def test_two_groups_differ_in_their_offsets(zkgroups: Zkgroups, invoices: Any, billing: Any, litter: str) -> None:
    ended = zkgroups("offsets", "diff", "billing", "invoices")
    assert ended.code == 10
    assert [line.split() for line in ended.lines] == [
        ["TOPIC", "PARTITION", "A", "B", "DELTA", "NOTE"],
        ["orders", "0", "100", "50", "-50", "-"],
        ["orders", "1", "-", "60", "-", "only", "in", "B"],
        ["refunds", "0", "-", "7", "-", "only", "in", "B"],
    ]
    found = zkgroups("offsets", "diff", "invoices", "billing", "--topic", "orders:0", "-o", "json")
    assert found.json["differences"] == [
        {"topic": "orders", "partition": 0, "a": 50, "b": 100, "delta": 50, "note": None}
    ]
    malformed = zkgroups("offsets", "diff", litter, litter, "-o", "json")
    assert malformed.code == 10
    assert malformed.json["differences"][0]["note"].startswith("A has an invalid offset: not a decimal")


def test_groups_and_files_are_compared_and_two_files_need_no_server(
    zkgroups: Zkgroups, invoices: Any, registry: Registry, tmp_path: Path
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for form in ("json", "path", "spark"):
        a.write_text(zkgroups("offsets", "export", "invoices", "--format", form).out)
        same = zkgroups("offsets", "diff", f"@{a}", "invoices")
        assert (same.code, same.out, same.err) == (0, "", "The offsets are equal.\n"), form
    invoices.offsets.set(P0, 51)
    assert zkgroups("offsets", "diff", f"@{a}", "invoices").code == 10
    registry.group("@home").offsets.set(P0, 5)
    assert zkgroups("offsets", "diff", "@@home", "@@home").code == 0
    a.write_text("/consumers/x/offsets/t/0:5\n/consumers/y/offsets/t/0:6\n")
    b.write_text("t,0,6\n")
    for group, code in (("", 2), ("x", 10), ("y", 0), ("z", 3)):
        chosen = ("--group", group) if group else ()
        assert run("offsets", "diff", f"@{a}", f"@{b}", *chosen, "-z", "127.0.0.1:1").code == code, group


# reset and delete


def test_many_groups_are_reset_by_an_expression_and_one_in_use_does_not_stop_the_others(
    zkgroups: Zkgroups, registry: Registry, billing: Any
) -> None:
    for name in ("bill", "billions"):
        registry.group(name).offsets.set_many({P0: 5, REFUNDS: 7})
    to = ("--topic", "orders:0", "--to-offset", "9", "-o", "json")
    shown = zkgroups("offsets", "reset", "--groups", "bill.*", "nobody", *to).json["changes"]
    place = {"group": "bill", "topic": "orders", "partition": 0}
    assert shown[0] == place | {"old": 5, "new": 9, "delta": 4, "note": None, "done": False}
    ended = zkgroups("offsets", "reset", "--groups", "bill.*", "nobody", *to, "--execute")
    assert ended.code == 9
    assert "zkgroups: group 'nobody' does not exist: check the name and the address\n" in ended.err
    assert "zkgroups: group 'billing' is in use by anna, ben: stop its instances first\n" in ended.err
    assert ended.err.endswith("Changed: 2. Unchanged: 0.\n")
    assert ended.json["changes"] == [row | {"done": True} for row in shown if row["group"] != "billing"]
    for name in ("bill", "billions"):
        assert numbers(registry.group(name)) == {"orders/0": 9, "refunds/0": 7}
    assert numbers(billing) == {"orders/0": 100}


def test_a_malformed_offset_can_be_reset_but_not_shifted_or_restored(
    zkgroups: Zkgroups, litter: str, registry: Registry, tmp_path: Path
) -> None:
    shifted = zkgroups("offsets", "reset", litter, "--topic", "orders", "--shift-by", "1")
    assert shifted.code == 4
    assert "group 'litter': 1 offset is left unchanged: invalid offset: not a decimal number" in shifted.err
    assert "/consumers/litter/offsets/orders/01 is left unchanged: its name is not a partition" in shifted.err
    undo = tmp_path / "undo"
    to = ("--topic", "orders:0", "--to-offset", "5", "--execute", "--undo-file", undo)
    ended = zkgroups("offsets", "reset", litter, *to)
    assert (ended.code, numbers(registry.group(litter))) == (0, {"orders/0": 5})
    assert "Partitions among them that had no valid offset: 1." in ended.err
    [kept] = json.loads(undo.read_text())["offsets"]
    assert (kept["offset"], kept["note"]) == (None, "invalid offset: 'many'")
    back = zkgroups("offsets", "import", undo, "--backward", "--execute")
    assert (back.code, "no offset is given for it" in back.err) == (4, True)


def test_delete_deletes_offsets_and_keeps_the_group(zkgroups: Zkgroups, invoices: Any, kazoo: KazooClient) -> None:
    kazoo.create("/consumers/invoices/offsets/refunds/1", b"many")
    ended = zkgroups("offsets", "delete", "invoices", "--topic", "orders:1", "--topic", "refunds", "--execute")
    assert ended.code == 0
    assert [line.split()[1:4] for line in ended.lines[1:]] == [
        ["orders", "1", "60"],
        ["refunds", "0", "7"],
        ["refunds", "1", "-"],
    ]
    assert numbers(invoices) == {"orders/0": 50}
    assert zkgroups("offsets", "delete", "invoices", "--all-topics", "--execute").code == 0
    again = zkgroups("offsets", "delete", "invoices", "--all-topics", "--execute")
    assert (again.code, again.out, again.err) == (0, "", "There are no offsets to delete.\n")
    assert invoices.exists()


# All commands that change many offsets

MANY = ["reset {} --all-topics --to-offset 500", "delete {} --all-topics", "import {file}"]


@pytest.fixture
def command(zkgroups: Zkgroups, tmp_path: Path) -> Callable[..., Any]:
    """Run one of the commands above on a group."""

    def command(line: str, group: str, *more: str | Path) -> Any:
        file = tmp_path / "offsets"
        file.write_text(json.dumps({"group": group, "topic": "orders", "partition": 0, "offset": 500}) + "\n")
        return zkgroups("offsets", *line.format(group, file=file).split(), *more)

    return command


@pytest.mark.parametrize("line", MANY)
def test_without_execute_the_changes_are_only_shown(
    command: Any, kazoo: KazooClient, invoices: Any, billing: Any, line: str
) -> None:
    """Also those of a group with instances, which `--execute` refuses."""
    before, new = dump(kazoo), None if line.startswith("delete") else 500
    ended = command(line, "invoices", "--read-only", "-o", "json")
    assert (ended.code, ended.err) == (0, "Nothing was changed: add --execute to apply.\n")
    assert (ended.json["changes"][0]["old"], ended.json["changes"][0]["new"]) == (50, new)
    in_use = command(line, "billing", "-o", "json")
    assert (in_use.code, [row["old"] for row in in_use.json["changes"]]) == (4, [100])
    assert in_use.err.endswith("Nothing was changed, and --execute would be refused: see above.\n")
    refused = command(line, "billing", "--execute", "-o", "json")
    assert (refused.code, refused.json["changes"]) == (4, [])
    assert refused.err == "zkgroups: group 'billing' is in use by anna, ben: stop its instances first\n"
    assert dump(kazoo) == before


@pytest.mark.parametrize("line", MANY)
def test_force_changes_offsets_beside_instances_and_warns(command: Any, billing: Any, line: str) -> None:
    ended = command(line, "billing", "--execute", "--force")
    assert ended.code == 0
    assert "in use by anna, ben: they keep reading from their own positions" in ended.err
    assert "their next commit may overwrite the new offsets" in ended.err
    assert numbers(billing) == ({} if line.startswith("delete") else {"orders/0": 500})


@pytest.mark.oldest
@pytest.mark.parametrize("line", MANY)
def test_an_undo_file_restores_the_previous_offsets_and_no_file_is_overwritten(
    command: Any, zkgroups: Zkgroups, invoices: Any, tmp_path: Path, line: str
) -> None:
    before, undo = numbers(invoices), tmp_path / "undo.json"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    for file, code in ((link, 4), (tmp_path / "none" / "undo", 2)):
        refused = command(line, "invoices", "--undo-file", file, "--execute")
        assert (refused.code, refused.out, numbers(invoices)) == (code, "", before)
    assert command(line, "invoices", "--undo-file", undo).code == 0
    assert not undo.exists()  # nothing was changed, so there is nothing to restore
    done = command(line, "invoices", "--undo-file", undo, "--execute")
    restore = f"zkgroups offsets import {undo} --backward --execute"
    assert (done.code, done.err.splitlines()[0]) == (0, f"Saved the old offsets to {undo}. To restore them: {restore}")
    assert numbers(invoices) != before
    assert zkgroups(*restore.split()[1:]).code == 0
    assert numbers(invoices) == before


@pytest.mark.parametrize("line", ["set invoices orders 0 500", *MANY])
def test_offsets_of_a_group_that_was_moved_to_the_brokers_change_only_with_force(
    command: Any, registry: Registry, invoices: Any, line: str
) -> None:
    marks.put(registry._context, {"invoices": "accounts"}, plan="p1", state=MarkState.MOVED)  # without a migration
    before, execute = numbers(invoices), () if line.startswith("set") else ("--execute",)
    refused = command(line, "invoices", *execute)
    assert (refused.code, numbers(invoices)) == (4, before)
    assert "group 'invoices' was moved to Kafka's own offsets as 'accounts', by plan p1: change its" in refused.err
    assert command(line, "invoices", *execute, "--force").code == 0
    assert numbers(invoices) != before
