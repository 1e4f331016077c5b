"""`zkgroups doctor`: its findings, its suggested commands, and repairs that are safe."""

from __future__ import annotations

import csv
import io
import json
import shlex
import uuid
from typing import Any

import click
import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from zkgroups_cli.main import root
from zkgroups_cli.shared.options import Options

from zkgroups import Registry, TopicPartition
from zkgroups.core.doctor.all_checks import CHECKS
from zkgroups.exceptions import NoPermissionError
from zkgroups.testing import KafkaBroker

from ..zookeeper.sick import CLOSED, SCALA, Tree, plant, plant_healthy
from ..zookeeper.tree import dump
from .conftest import Zkgroups

pytestmark = pytest.mark.zookeeper

ALICE = {"ZKGROUPS_DIGEST_USER": "alice", "ZKGROUPS_PASSWORD": "sesame"}

FIELDS = {"severity", "group", "code", "path", "what", "fix", "repairable", "repaired", "repair"}


@pytest.fixture
def tree(kazoo: KazooClient) -> Tree:
    return Tree(kazoo)


# Findings


def test_every_planted_problem_is_found_and_nothing_is_changed(zkgroups: Zkgroups, tree: Tree) -> None:
    planted = plant(tree)
    before = dump(tree.client)
    ended = zkgroups("doctor", "-o", "json")
    found = ended.json["findings"]
    assert planted - {(finding["code"], finding["path"]) for finding in found} == set()
    assert {finding["group"] for finding in found} == set(tree.client.get_children("/consumers")) - {"healthy"}
    assert {finding["code"] for finding in found} == {check.code for check in CHECKS} - {"stale-offset"}
    assert all(finding.keys() == FIELDS for finding in found)
    assert (ended.code, ended.err.splitlines()[0]) == (
        9,
        f"zkgroups: {NoPermissionError('/consumers/hidden/offsets')}",
    )
    assert dump(tree.client) == before


def test_findings_end_with_10_if_everything_is_readable(zkgroups: Zkgroups, tree: Tree) -> None:
    plant(tree)
    ended = zkgroups("doctor", "-o", "json", **ALICE)
    assert ended.code == 10
    assert "no-permission" not in {finding["code"] for finding in ended.json["findings"]}


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


def test_the_worst_findings_of_all_groups_come_first(zkgroups: Zkgroups, tree: Tree) -> None:
    plant(tree)
    found = [each["severity"] for each in zkgroups("doctor", "-o", "json").json["findings"]]
    assert found == sorted(found, key=["error", "warning", "info"].index)
    assert len(set(found)) == 3


def test_a_table_has_one_line_for_many_findings_of_one_kind(zkgroups: Zkgroups, tree: Tree) -> None:
    for number in range(6):
        tree.put(f"g{number}/offsets/orders/0", b"1")
        tree.put(f"bad/offsets/orders/{number}", b"x")
    lines = zkgroups("doctor").lines[1:]
    assert [line.split()[:3] for line in lines if "open-acl" in line] == [["info", "bad", "open-acl"]]
    assert [line.partition(" (and ")[2] for line in lines if "open-acl" in line] == ["6 more: add -o wide)"]
    [unreadable] = [line for line in lines if "unreadable-offset" in line]
    assert unreadable.endswith(" (and 5 more: add -o wide)")
    for every in ("wide", "json", "csv"):
        assert zkgroups("doctor", "-o", every).out.count("open-acl") == 7


def test_the_last_line_and_json_count_the_findings_that_are_left_out(zkgroups: Zkgroups, tree: Tree) -> None:
    for number in range(6):
        tree.put(f"g{number}/offsets/orders/0", b"1")
    tree.put("g0/offsets/orders/1", b"x")
    folded = zkgroups("doctor")
    assert folded.err == "Findings: 7 (error: 1, info: 6). Left out: 5.\n"
    assert len(folded.lines) - 1 + 5 == 7
    for every in ("wide", "csv", "json"):
        assert zkgroups("doctor", "-o", every).err == "Findings: 7 (error: 1, info: 6).\n"
    worst = zkgroups("doctor", "--severity", "error", "-o", "json")
    assert (len(worst.json["findings"]), worst.json["left_out"]) == (1, 6)
    assert worst.err == "Findings: 1 (error: 1). Left out: 6.\n"
    ignored = zkgroups("doctor", "--ignore", "open-acl", "--repair", "-o", "yaml")
    assert ignored.lines[-1] == "left_out: 6"
    assert zkgroups("doctor", "g1", "--severity", "error").err == "No problems found. Left out: 1.\n"


def test_findings_can_be_left_out_by_severity_and_by_check(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.owner("billing", "orders", "0", "nobody-0")

    def found(*arguments: str) -> tuple[int, list[str]]:
        ended = zkgroups("doctor", "billing", "-o", "json", *arguments)
        return ended.code, [each["code"] for each in ended.json["findings"]]

    assert found() == (10, ["orphan-owner", "open-acl"])
    assert found("--severity", "warning") == (10, ["orphan-owner"])
    assert found("--ignore", "orphan-owner") == (0, ["open-acl"])
    assert found("--ignore", "orphan-owner", "--ignore", "open-acl") == (0, [])


@pytest.mark.parametrize(
    ("fail_on", "worst", "code"),
    [("error", b"x", 10), ("error", b"-1", 0), ("warning", b"-1", 10), ("info", b"1", 10), ("never", b"x", 0)],
)
def test_the_exit_code_depends_on_the_chosen_severity(
    zkgroups: Zkgroups, tree: Tree, fail_on: str, worst: bytes, code: int
) -> None:
    """An offset `x` is an error, `-1` a warning; every group here has the info `open-acl`."""
    tree.put("billing/offsets/orders/0", worst)
    assert zkgroups("doctor", "--fail-on", fail_on).code == code


def test_with_brokers_offsets_outside_of_the_logs_are_found(
    zkgroups: Zkgroups, kafka_broker: KafkaBroker, registry: Registry
) -> None:
    topic = f"doctor-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, 3)
    kafka_broker.write(topic, 0, 5)
    admin = AdminClient({"bootstrap.servers": kafka_broker.address, "log_level": 0})
    for future in admin.delete_records([Place(topic, 0, 3)]).values():
        future.result()
    offsets = {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 9, TopicPartition(topic, 2): 0}
    registry.group("billing").offsets.set_many(offsets)
    ignored = ("--ignore", "open-acl", "--ignore", "missing-topic")
    ended = zkgroups("doctor", "-b", kafka_broker.address, *ignored, "-o", "json")
    past, before = ended.json["findings"]
    assert ended.code == 10
    assert (past["severity"], past["code"], past["path"]) == (
        "error",
        "past-end",
        f"/consumers/billing/offsets/{topic}",
    )
    assert past["what"].startswith("the offsets of partition 1 are past the log end")
    assert (before["severity"], before["code"]) == ("warning", "before-start")
    assert before["what"].startswith("the offsets of partition 0 are before the log start")
    assert zkgroups("doctor", *ignored, "-o", "json").json["findings"] == []


def test_a_finding_in_json_has_its_fields_as_values(zkgroups: Zkgroups, tree: Tree) -> None:
    path = tree.put("billing/offsets/orders/0", b"7 ")
    [padded, _everybody] = zkgroups("doctor", "-o", "json").json["findings"]
    assert padded == {
        "severity": "error",
        "group": "billing",
        "code": "padded-offset",
        "path": path,
        "what": "b'7 ' has whitespace around the number, which stops Scala members at their start",
        "fix": "zkgroups offsets set --backward billing orders 0 7",
        "repairable": True,
        "repaired": None,
        "repair": None,
    }


def test_jsonl_csv_and_names_are_a_line_for_each_finding(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.put("billing/offsets/orders/0", b"x")
    lines = [json.loads(line) for line in zkgroups("doctor", "-o", "jsonl").lines]
    assert [(line["schema"], line["code"]) for line in lines] == [(1, "unreadable-offset"), (1, "open-acl")]
    rows = list(csv.DictReader(io.StringIO(zkgroups("doctor", "-o", "csv").out)))
    assert [row["code"] for row in rows] == ["unreadable-offset", "open-acl"]
    assert zkgroups("doctor", "-o", "name").lines == ["/consumers/billing/offsets/orders/0", "/consumers/billing"]


def test_a_healthy_group_has_no_data_and_a_message_on_stderr(zkgroups: Zkgroups, tree: Tree) -> None:
    plant_healthy(tree)
    ended = zkgroups("doctor")
    assert (ended.code, ended.out, ended.err) == (0, "", "No problems found.\n")
    assert zkgroups("doctor", "healthy", "-o", "json").json == {"schema": 1, "findings": [], "left_out": 0}
    assert zkgroups("doctor", "-q").err == ""


@pytest.mark.usefixtures("cluster")
def test_without_groups_there_are_no_findings(zkgroups: Zkgroups) -> None:
    ended = zkgroups("doctor", "-o", "json")
    assert (ended.code, ended.json) == (0, {"schema": 1, "findings": [], "left_out": 0})


def test_info_alone_ends_with_0(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("billing").offsets.set(TopicPartition("orders", 0), 5)
    ended = zkgroups("doctor", "-o", "name")
    assert (ended.code, ended.lines, ended.err) == (0, ["/consumers/billing"], "Findings: 1 (info: 1).\n")


def test_a_warning_alone_ends_with_10(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.put("billing/offsets/orders/0", b"-1")
    assert zkgroups("doctor").code == 10


def test_groups_are_chosen_by_name_and_by_expression(zkgroups: Zkgroups, tree: Tree) -> None:
    for group in ("a1", "a2", "b1"):
        tree.put(f"{group}/offsets/orders/0", b"5")
    assert zkgroups("doctor", "b1", "-o", "name").lines == ["/consumers/b1"]
    assert zkgroups("doctor", "b1", "--groups", "a.", "-o", "name").lines == [
        "/consumers/b1",
        "/consumers/a1",
        "/consumers/a2",
    ]


def test_an_expression_that_matches_nothing_examines_nothing(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.put("billing/offsets/orders/0", b"x")
    ended = zkgroups("doctor", "--groups", "nothing.*")
    assert (ended.code, ended.out) == (0, "")


def test_stale_after_sets_the_age_of_stale_offsets(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.put("billing/offsets/orders/0", b"5")
    assert "stale-offset" in {
        each["code"] for each in zkgroups("doctor", "--stale-after", "0s", "-o", "json").json["findings"]
    }
    ended = zkgroups("doctor", "--stale-after", "soon")
    assert (ended.code, ended.out) == (2, "")


def test_the_suggested_command_for_an_orphan_releases_it(zkgroups: Zkgroups, tree: Tree) -> None:
    path = tree.owner("billing", "orders", "0", "no body-0")
    [orphan, _everybody] = zkgroups("doctor", "-o", "json").json["findings"]
    line = orphan["fix"].partition(": ")[2]
    ended = zkgroups(*shlex.split(line)[1:])
    assert (ended.code, tree.client.exists(path)) == (0, None), ended.err


def test_the_suggested_command_for_an_empty_group_deletes_it(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.put("litter/owners/orders")
    [litter, _everybody] = zkgroups("doctor", "-o", "json").json["findings"]
    ended = zkgroups(*shlex.split(litter["fix"])[1:])
    assert (ended.code, tree.client.get_children("/consumers")) == (0, [])


def test_every_suggested_command_line_is_valid(zkgroups: Zkgroups, tree: Tree) -> None:
    plant(tree)
    found = zkgroups("doctor", "--stale-after", "0s", "-o", "json").json["findings"]
    lines = {finding["fix"] for finding in found if "zkgroups " in finding["fix"]}
    assert {finding["code"] for finding in found if finding["fix"] in lines} >= {
        "orphan-owner",
        "unowned-partition",
        "mixed-dialects",
        "missing-topic",
        "unknown-partition",
        "padded-offset",
        "unreadable-offset",
        "stale-offset",
        "empty-group",
    }
    for line in lines:
        _command, *words = shlex.split(line[line.index("zkgroups ") :].replace("OFFSET", "5"))
        taken_by(words)


def taken_by(words: list[str]) -> None:
    """Parse the words as the command does, without running it."""
    command: click.Command | None = root
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None
    command.make_context(command.name, words, obj=Options())


def test_the_suggested_command_for_an_unreadable_offset_works(
    zkgroups: Zkgroups, tree: Tree, registry: Registry
) -> None:
    tree.put("billing/offsets/orders/0", b"x")
    with registry.group("billing").instance("anna") as anna:
        anna.register(["orders"])
        found = zkgroups("doctor", "-o", "json").json["findings"]
        [fix] = [finding["fix"] for finding in found if finding["code"] == "unreadable-offset"]
        _command, *words = shlex.split(fix.replace("OFFSET", "5"))
        assert zkgroups(*words).code == 0
    [offset] = registry.group("billing").offsets
    assert offset.shown == "5"


# Errors


def test_a_missing_group_is_exit_code_3_and_hides_no_other(zkgroups: Zkgroups, tree: Tree) -> None:
    missing = zkgroups("doctor", "nobody", "-o", "json")
    assert (missing.code, missing.json) == (3, {"schema": 1, "findings": [], "left_out": 0})
    assert missing.err == "zkgroups: group 'nobody' does not exist: check the name and the address\nFindings: 0.\n"
    tree.put("billing/offsets/orders/0", b"5")
    assert (zkgroups("doctor", "nobody", "billing", "-o", "name").code) == 9


def test_a_topic_hidden_from_several_groups_is_reported_once(zkgroups: Zkgroups, kazoo: KazooClient) -> None:
    kazoo.ensure_path("/brokers/topics")
    kazoo.create("/brokers/topics/orders", b"{}", acl=[make_digest_acl("bob", "x", all=True)])
    for name in ("billing", "invoices"):
        kazoo.create(f"/consumers/{name}/offsets/orders/0", b"7", makepath=True)
    for command in (("doctor",), ("groups", "list", "-o", "wide")):
        ended = zkgroups(*command)
        assert (
            ended.code,
            ended.err.count(f"zkgroups: {NoPermissionError('/brokers/topics/orders')}\n"),
        ) == (6, 1)


@pytest.mark.parametrize("more", [[], ["--repair", "--execute"]], ids=["look", "repair"])
def test_a_forbidden_node_is_a_finding_and_exit_code_6(
    zkgroups: Zkgroups, kazoo: KazooClient, secret: str, more: list[str]
) -> None:
    before = dump(kazoo)
    ended = zkgroups("doctor", secret, *more, "-o", "json")
    assert ended.code == 6
    assert ended.err.startswith("zkgroups: no permission on /consumers/secret/")
    assert {finding["code"] for finding in ended.json["findings"]} == {"no-permission"}
    assert dump(kazoo) == before


@pytest.mark.parametrize(
    "arguments", [["a/ids"], ["--groups", "("], ["--execute"], ["--execute", "billing"], ["--repair", "a/ids"]]
)
def test_wrong_usage_is_exit_code_2_before_anything_is_done(
    zkgroups: Zkgroups, tree: Tree, arguments: list[str]
) -> None:
    tree.put("billing/ids")
    before = dump(tree.client)
    ended = zkgroups("doctor", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert dump(tree.client) == before


def test_without_a_server_it_is_exit_code_7(zkgroups: Zkgroups) -> None:
    ended = zkgroups("doctor", "-z", "127.0.0.1:1", "--timeout", "0.3")
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (7, "", 1)


# Repairs


def repairs(ended: Any) -> dict[str, tuple[bool, str]]:
    return {each["path"]: (each["repaired"], each["repair"]) for each in ended.json["findings"] if each["repairable"]}


def test_repair_without_execute_shows_the_repairs_and_changes_nothing(zkgroups: Zkgroups, tree: Tree) -> None:
    plant(tree)
    before = dump(tree.client)
    ended = zkgroups("doctor", "--repair", "-o", "json", **ALICE)
    assert ended.code == 10
    assert "Nothing was changed: add --execute to repair 8 of them." in ended.err
    assert set(repairs(ended).values()) == {
        (False, "would delete the group's empty directories"),
        (False, "would delete the node"),
        *((False, f"would write {text}") for text in ("7 instead of b'7 '", "8 instead of b' 8'")),
        *((False, f"would write {text}") for text in ("3 instead of b'3\\n'", "12 instead of b'\\t12\\r\\n'")),
    }
    others = [each for each in ended.json["findings"] if not each["repairable"]]
    assert all(each["repair"].startswith("not repaired: ") for each in others)
    assert dump(tree.client) == before


def test_the_table_of_repairs_shows_the_outcome_of_each(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.put("billing/offsets/orders/0", b"7 ")
    [header, padded, everybody] = zkgroups("doctor", "--repair").lines
    assert header.split() == ["SEVERITY", "GROUP", "CHECK", "PATH", "REPAIR"]
    assert padded.endswith("would write 7 instead of b'7 '")
    assert everybody.endswith("not repaired: members without credentials would be locked out")


def test_with_execute_only_safe_repairs_are_made(zkgroups: Zkgroups, tree: Tree) -> None:
    plant(tree)
    before = dump(tree.client)
    ended = zkgroups("doctor", "--repair", "--execute", "-o", "json", **ALICE)
    after = dump(tree.client)
    assert ended.code == 10
    assert {repaired for repaired, _note in repairs(ended).values()} == {True}
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == {path for path in changed if path.startswith(tuple(repairs(ended)))}
    assert after["/consumers/padded/offsets/orders/3"][0] == b"12"
    # An owner was all there was in one group, and a registration in another, so that these are litter now.
    left = repairs(zkgroups("doctor", "--repair", "-o", "json", **ALICE)).keys()
    assert left == {"/consumers/persistent", "/consumers/for-ever"}


def test_if_all_findings_are_repaired_the_exit_code_is_0(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.put("billing/offsets/orders/0", b"7 ")
    ended = zkgroups("doctor", "--repair", "--execute")
    assert (ended.code, ended.err) == (0, "Repaired: 1. Left: 1 (info: 1).\n")
    assert ended.lines[1].endswith("done: write 7 instead of b'7 '")
    assert tree.client.get("/consumers/billing/offsets/orders/0")[0] == b"7"


def test_a_dead_registration_and_its_owner_nodes_are_repaired_in_one_run(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.put("billing/ids/gone", SCALA)
    tree.put("billing/owners/orders/0", b"gone-0")
    tree.put("billing/offsets/orders/0", b"7")
    shown = repairs(zkgroups("doctor", "--repair", "-o", "json"))
    assert set(shown.values()) == {(False, "would delete the node")}
    done = repairs(zkgroups("doctor", "--repair", "--execute", "-o", "json"))
    assert {path: repaired for path, (repaired, _note) in done.items()} == {
        "/consumers/billing/ids/gone": True,
        "/consumers/billing/owners/orders/0": True,
    }
    assert dump(tree.client).keys() & done.keys() == set()


def test_a_live_group_is_left_unchanged(zkgroups: Zkgroups, kazoo: KazooClient, billing: Any) -> None:
    kazoo.create("/consumers/billing/offsets/orders/1", b"7 ")
    before = dump(kazoo)
    ended = zkgroups("doctor", "--repair", "--execute", "-o", "json")
    assert ended.code == 10
    [padded] = [each for each in ended.json["findings"] if each["code"] == "padded-offset"]
    assert padded["repair"].startswith("not repaired: the group has instances")
    assert dump(kazoo) == before


def test_a_failed_repair_is_reported_with_its_code_and_stops_no_other(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.put("a/offsets/orders/0", b"7 ")
    tree.put("b", acl=CLOSED)
    tree.put("b/ids", acl=CLOSED)
    tree.put("b/offsets/orders/0", b"7 ", acl=CLOSED)
    tree.put("c/offsets/orders/0", b"7 ")
    alone = zkgroups("doctor", "b", "--repair", "--execute", "-o", "json")
    assert alone.code == 6
    assert repairs(alone)["/consumers/b/offsets/orders/0"][1].startswith("failed: no permission on /consumers/b/ids")
    together = zkgroups("doctor", "--repair", "--execute", "-o", "json")
    assert together.code == 9
    assert [repaired for repaired, _note in repairs(together).values()] == [True, False, True]
    assert [tree.client.get(f"/consumers/{group}/offsets/orders/0")[0] for group in "abc"] == [b"7", b"7 ", b"7"]


def test_read_only_allows_the_dry_run_and_refuses_the_rest(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.put("litter/ids")
    before = dump(tree.client)
    assert zkgroups("--read-only", "doctor", "--repair").code == 0
    refused = zkgroups("--read-only", "doctor", "--repair", "--execute")
    assert (refused.code, refused.out) == (4, "")
    assert dump(tree.client) == before
