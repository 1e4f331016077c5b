"""`zkgroups doctor`: its output and exit codes. tests/core and tests/zookeeper test what it finds and repairs."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from zkgroups_cli.main import root
from zkgroups_cli.shared.options import Options

from zkgroups.core.doctor.all_checks import CHECKS
from zkgroups.exceptions import NoPermissionError

from ..zookeeper.sick import CLOSED, Tree, plant
from ..zookeeper.tree import dump
from .conftest import Zkgroups

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def tree(kazoo: KazooClient) -> Tree:
    return Tree(kazoo)


def test_every_check_finds_something_in_planted_groups_and_every_suggested_command_is_valid(
    zkgroups: Zkgroups, tree: Tree
) -> None:
    plant(tree)
    before = dump(tree.client)
    ended = zkgroups("doctor", "--stale-after", "0s", "-o", "json")
    found = ended.json["findings"]
    assert {finding["code"] for finding in found} == {check.code for check in CHECKS}
    severities = [finding["severity"] for finding in found]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    said = f"zkgroups: {NoPermissionError('/consumers/hidden/offsets')}"
    assert (ended.code, ended.err.splitlines()[0]) == (9, said)
    lines = {finding["fix"] for finding in found if "zkgroups " in finding["fix"]}
    assert {finding["code"] for finding in found if finding["fix"] in lines} >= {
        *("orphan-owner", "unowned-partition", "mixed-dialects", "missing-topic", "unknown-partition"),
        *("padded-offset", "unreadable-offset", "stale-offset", "empty-group"),
    }
    for line in lines:
        _command, *words = shlex.split(line[line.index("zkgroups ") :].replace("OFFSET", "5"))
        parse(words)
    dry = zkgroups("doctor", "--repair", "-o", "json", ZKGROUPS_DIGEST_USER="alice", ZKGROUPS_PASSWORD="sesame")
    assert "Nothing was changed: add --execute to repair 8 of them." in dry.err
    assert {each["repair"].split()[0] for each in dry.json["findings"] if each["repairable"]} == {"would"}
    assert {each["repair"][:14] for each in dry.json["findings"] if not each["repairable"]} == {"not repaired: "}
    assert (dry.code, dump(tree.client)) == (10, before)


def parse(words: list[str]) -> None:
    """Parse the words as the command does, without running it."""
    command: click.Command | None = root
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None
    command.make_context(command.name, words, obj=Options())


def test_a_table_has_a_line_per_finding_and_a_wide_table_the_command_to_type(zkgroups: Zkgroups, tree: Tree) -> None:
    path = tree.owner("billing", "orders", "0", "nobody-0")
    ended = zkgroups("doctor", "billing")
    [header, orphan, everybody] = ended.lines
    assert header.split() == ["SEVERITY", "GROUP", "CHECK", "PATH", "WHAT"]
    assert orphan.split()[:6] == ["error", "billing", "orphan-owner", path, "orders/0", "is"]
    assert everybody.split()[:4] == ["info", "billing", "open-acl", "/consumers/billing"]
    assert (ended.code, ended.err) == (10, "Findings: 2 (error: 1, info: 1).\n")
    wide = zkgroups("doctor", "billing", "-o", "wide").lines
    assert wide[0].split()[-1] == "FIX"
    assert "zkgroups release --expect-owner=nobody-0 --expect-session=0x" in wide[1]


def test_many_findings_of_one_kind_are_one_line_of_a_table_and_left_out_ones_are_counted(
    zkgroups: Zkgroups, tree: Tree
) -> None:
    for number in range(6):
        tree.put(f"g{number}/offsets/orders/0", b"1")
    tree.put("g0/offsets/orders/1", b"x")
    folded = zkgroups("doctor")
    assert folded.err == "Findings: 7 (error: 1, info: 6). Left out: 5.\n"
    assert [line.partition(" (and ")[2] for line in folded.lines if "open-acl" in line] == ["5 more: add -o wide)"]
    for every in ("wide", "csv", "json"):
        whole = zkgroups("doctor", "-o", every)
        assert (whole.err, whole.out.count("open-acl")) == ("Findings: 7 (error: 1, info: 6).\n", 6)
    worst = zkgroups("doctor", "--severity", "error", "-o", "json")
    assert (len(worst.json["findings"]), worst.json["left_out"]) == (1, 6)
    assert worst.err == "Findings: 1 (error: 1). Left out: 6.\n"
    assert zkgroups("doctor", "--ignore", "open-acl", "--repair", "-o", "yaml").lines[-1] == "left_out: 6"
    assert zkgroups("doctor", "g1", "--severity", "error").err == "No problems found. Left out: 1.\n"


def test_the_exit_code_depends_on_the_chosen_severity(zkgroups: Zkgroups, tree: Tree) -> None:
    """An offset `x` is an error, `-1` a warning; every group here has the info `open-acl`."""
    for options, error, warning, info in (
        ("", 10, 10, 0),
        ("--fail-on error", 10, 0, 0),
        ("--fail-on info", 10, 10, 10),
        ("--fail-on never", 0, 0, 0),
        ("--ignore unreadable-offset", 0, 10, 0),
    ):
        tree.put("billing/offsets/orders/0", b"x")
        found = []
        for worst in (b"x", b"-1", b"1"):
            tree.client.set("/consumers/billing/offsets/orders/0", worst)
            found.append(zkgroups("doctor", *options.split()).code)
        assert found == [error, warning, info], options
        tree.client.delete("/consumers/billing/offsets/orders/0")


def test_a_topic_hidden_from_several_groups_is_reported_once(zkgroups: Zkgroups, kazoo: KazooClient) -> None:
    kazoo.ensure_path("/brokers/topics")
    kazoo.create("/brokers/topics/orders", b"{}", acl=[make_digest_acl("bob", "x", all=True)])
    for name in ("billing", "invoices"):
        kazoo.create(f"/consumers/{name}/offsets/orders/0", b"7", makepath=True)
    for command in (("doctor",), ("groups", "list", "-o", "wide")):
        ended = zkgroups(*command)
        said = f"zkgroups: {NoPermissionError('/brokers/topics/orders')}\n"
        assert (ended.code, ended.err.count(said)) == (6, 1)
    kazoo.delete("/brokers/topics/orders")
    assert "not compared with topics: ZooKeeper has none. Give the brokers with -b." in zkgroups("doctor").err


def test_a_failed_repair_is_reported_with_its_code_and_stops_no_other(zkgroups: Zkgroups, tree: Tree) -> None:
    def repair(*groups: str) -> tuple[Any, list[Any]]:
        ended = zkgroups("doctor", *groups, "--repair", "--execute", "-o", "json")
        return ended.code, [(each["repaired"], each["repair"]) for each in ended.json["findings"] if each["repairable"]]

    tree.put("a/offsets/orders/0", b"7 ")
    tree.put("b", acl=CLOSED)
    tree.put("b/ids", acl=CLOSED)
    tree.put("b/offsets/orders/0", b"7 ", acl=CLOSED)
    code, [(repaired, text)] = repair("b")
    assert (code, repaired, text.startswith("failed: no permission on /consumers/b/ids")) == (6, False, True)
    assert repair()[0] == 9
    assert [tree.client.get(f"/consumers/{group}/offsets/orders/0")[0] for group in "ab"] == [b"7", b"7 "]


def test_if_all_findings_are_repaired_the_exit_code_is_0(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.put("billing/offsets/orders/0", b"7 ")
    [header, padded, everybody] = zkgroups("doctor", "--repair").lines
    assert header.split() == ["SEVERITY", "GROUP", "CHECK", "PATH", "REPAIR"]
    assert padded.endswith("would write 7 instead of '7 '")
    assert everybody.endswith("not repaired: members without credentials would be locked out")
    ended = zkgroups("doctor", "--repair", "--execute")
    assert (ended.code, ended.err) == (0, "Repaired: 1. Left: 1 (info: 1).\n")
    assert ended.lines[1].endswith("done: write 7 instead of '7 '")
    assert tree.client.get("/consumers/billing/offsets/orders/0")[0] == b"7"
