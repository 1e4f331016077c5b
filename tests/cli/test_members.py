"""`zkgroups members list` and `show`."""

from __future__ import annotations

import csv
import io
from base64 import b64decode
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import Registry
from zkgroups.core.times import to_ms
from zkgroups.core.znodes.registration_codec import encode_registration
from zkgroups.core.znodes.values import Dialect, Registration
from zkgroups.exceptions import NoPermissionError

from ..zookeeper.sick import OURS, POISON, SCALA, Tree
from ..zookeeper.tree import dump
from .conftest import Zkgroups

pytestmark = pytest.mark.zookeeper

HEADERS = ["GROUP", "INSTANCE", "STATE", "OWNED", "SUBSCRIPTION", "DIALECT", "SESSION", "SINCE"]


@pytest.fixture
def tree(kazoo: KazooClient) -> Tree:
    return Tree(kazoo)


# list


def test_a_listing_has_every_instance_of_every_group(zkgroups: Zkgroups, kazoo: KazooClient, billing: Any) -> None:
    kazoo.create("/consumers/audit/ids/audit_h-1-ab", SCALA, ephemeral=True, makepath=True)
    ended = zkgroups("members", "list")
    session = f"{billing.instances()[0].session:#x}"
    [header, audit, anna, ben] = [line.split() for line in ended.lines]
    assert (ended.code, ended.err, header) == (0, "", HEADERS)
    assert audit[:6] == ["audit", "audit_h-1-ab", "Joining", "0", "orders", "scala"]
    assert anna[:7] == ["billing", "anna", "AwaitingSync", "1", "orders", "zkgroups", session]
    assert ben[:6] == ["billing", "ben", "Joining", "0", "orders", "x2"]


def test_a_client_of_a_gateway_is_listed_with_its_id_and_host(zkgroups: Zkgroups, tree: Tree) -> None:
    registration = Registration(
        {"orders": 1}, dialect=Dialect.GATEWAY, client_id="billing-app", client_host="/10.0.0.7"
    )
    tree.member("billing", "one", encode_registration(registration))
    tree.member("billing", "two", SCALA)
    [header, one, two] = [line.split() for line in zkgroups("members", "list", "-o", "wide").lines]
    assert header[5:8] == ["DIALECT", "CLIENT-ID", "HOST"]
    assert (one[5:8], two[5:8]) == (["gateway", "billing-app", "/10.0.0.7"], ["scala", "-", "-"])
    assert "billing-app" in zkgroups("groups", "describe", "billing", "-o", "wide").out


def test_a_registration_without_a_session_is_listed_and_shown_as_dead(zkgroups: Zkgroups, tree: Tree) -> None:
    path = tree.put("billing/ids/gone", SCALA)
    [line] = zkgroups("members", "list", "--no-headers").lines
    assert line.split()[:7] == ["billing", "gone", "Dead", "0", "orders", "scala", "-"]
    ended = zkgroups("members", "show", "billing", "gone")
    assert (ended.code, "Dead" in ended.out, path in ended.out) == (0, True, True)


def test_a_listing_in_json_has_numbers_and_nulls(zkgroups: Zkgroups, kazoo: KazooClient, billing: Any) -> None:
    kazoo.create("/consumers/billing/ids/bad", b"", ephemeral=True)
    found = zkgroups("members", "list", "billing", "-o", "json").json
    [anna, bad, _ben] = found["members"]
    registered = billing.instances()[0]
    assert found["schema"] == 1
    assert anna == {
        "group": "billing",
        "instance": "anna",
        "state": "AwaitingSync",
        "owned": 1,
        "subscription": {"pattern": "static", "streams": {"orders": 1}},
        "dialect": "zkgroups",
        "client_id": None,
        "client_host": None,
        "session": f"{registered.session:#x}",
        "registered_ms": to_ms(registered.registered_at),
    }
    assert (bad["instance"], bad["state"], bad["subscription"], bad["dialect"]) == ("bad", "Unknown", None, None)


def test_an_unregistered_instance_that_still_owns_is_leaving(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.owner("billing", "orders", "0", "nobody-0")
    [member] = zkgroups("members", "list", "-o", "json").json["members"]
    assert (member["instance"], member["state"], member["owned"], member["registered_ms"]) == (
        "nobody-0",
        "Leaving",
        1,
        None,
    )


def test_groups_are_chosen_by_name_and_by_expression(zkgroups: Zkgroups, tree: Tree) -> None:
    for group in ("a1", "a2", "b1"):
        tree.member(group, f"of-{group}")
    assert zkgroups("members", "list", "b1", "--groups", "a.", "-o", "name").lines == ["of-b1", "of-a1", "of-a2"]
    assert zkgroups("members", "list", "a2", "-o", "name").lines == ["of-a2"]
    rows = list(csv.DictReader(io.StringIO(zkgroups("members", "list", "-o", "csv").out)))
    assert [(row["group"], row["instance"]) for row in rows] == [(g, f"of-{g}") for g in ("a1", "a2", "b1")]


def test_without_instances_the_data_is_empty_and_a_message_goes_to_stderr(
    zkgroups: Zkgroups, registry: Registry
) -> None:
    registry.group("billing").create()
    for arguments in (["list"], ["list", "billing"], ["list", "--groups", "x"]):
        table = zkgroups("members", *arguments)
        assert (table.code, table.out, table.err) == (0, "", "There are no registered instances.\n")
    assert zkgroups("members", "list", "-o", "json").json == {"schema": 1, "members": []}


def test_a_missing_group_does_not_hide_the_others(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.member("billing", "anna")
    ended = zkgroups("members", "list", "nobody")
    assert (ended.code, ended.out, ended.err) == (
        3,
        "",
        "zkgroups: group 'nobody' does not exist: check the name and the address\n",
    )
    ended = zkgroups("members", "list", "nobody", "billing", "-o", "name")
    assert (ended.code, ended.lines, ended.err) == (
        9,
        ["anna"],
        "zkgroups: group 'nobody' does not exist: check the name and the address\n",
    )


# show


def test_one_instance_is_shown_with_its_partitions_and_its_registration(
    zkgroups: Zkgroups, tree: Tree, registry: Registry
) -> None:
    tree.member("billing", "anna", SCALA)
    owned = [tree.owner("billing", "orders", partition, "anna-0") for partition in ("0", "10", "2")]
    tree.owner("billing", "orders", "3", "ben-0")
    registry.client.create("/consumers/billing/owners/orders/4", b"anna-0", ephemeral=True)  # of another session
    ended = zkgroups("members", "show", "billing", "anna")
    [summary, partitions, registration] = [block.splitlines() for block in ended.out.split("\n\n")]
    assert (ended.code, ended.err) == (0, "")
    assert summary[0].split() == HEADERS
    assert summary[1].split()[:6] == ["billing", "anna", "AwaitingSync", "3", "orders", "scala"]
    assert partitions[0].split() == ["TOPIC", "PARTITION", "CLAIMED", "OWNER-NODE"]
    assert [line.split()[-1] for line in partitions[1:]] == [owned[0], owned[2], owned[1]]
    assert registration[1].split() == ["/consumers/billing/ids/anna", SCALA.decode(), "-", "reads", "it"]


def test_one_instance_in_json_has_all_fields(zkgroups: Zkgroups, tree: Tree, registry: Registry) -> None:
    path = tree.member("billing", "anna", OURS)
    owned = tree.owner("billing", "b'orders'", "1001-0", "anna")
    [instance] = registry.group("billing").instances()
    [owner] = registry.group("billing").owners()
    [member] = zkgroups("members", "show", "billing", "anna", "-o", "json").json["members"]
    [node] = member.pop("nodes")
    assert b64decode(node.pop("data_base64")) == OURS
    assert node == {"path": path, "data": OURS.decode(), "reason": None, "to_scala": "reads it"}
    assert member == {
        "group": "billing",
        "instance": "anna",
        "state": "AwaitingSync",
        "owned": 1,
        "subscription": {"pattern": "static", "streams": {"orders": 1}},
        "dialect": "zkgroups",
        "client_id": None,
        "client_host": None,
        "session": f"{instance.session:#x}",
        "registered_ms": to_ms(instance.registered_at),
        "timestamp_ms": 1795255543000,
        "partitions": [{"topic": "orders", "partition": 0, "claimed_ms": to_ms(owner.claimed_at), "path": owned}],
    }


@pytest.mark.parametrize("kind", ["empty", "no-expression"])
def test_an_unreadable_registration_is_shown_and_exit_code_10(zkgroups: Zkgroups, tree: Tree, kind: str) -> None:
    path = tree.member("billing", "anna", POISON[kind])
    ended = zkgroups("members", "show", "billing", "anna", "-o", "json")
    [member] = ended.json["members"]
    [node] = member["nodes"]
    assert ended.code == 10
    assert ended.err.startswith(f"zkgroups: {path} is malformed: {node['reason']}")
    assert b64decode(node["data_base64"]) == POISON[kind]
    assert node["to_scala"].startswith("stops every Scala member: ")
    assert (member["state"], member["dialect"]) == ("Unknown", None)


def test_a_bare_name_is_readable_but_stops_scala_members(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.member("billing", "py", b"orders")
    ended = zkgroups("members", "show", "billing", "py")
    assert ended.code == 0
    assert ended.lines[-1].endswith("stops every Scala member: it is not a JSON object")


def test_to_scala_is_empty_if_only_java_can_tell(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.member("billing", "java", SCALA.replace(b"orders", rb"\\p{Lu}+").replace(b"static", b"white_list"))
    ended = zkgroups("members", "show", "billing", "java", "-o", "json")
    assert ended.code == 10
    assert ended.json["members"][0]["nodes"][0]["to_scala"] is None


def test_an_escape_sequence_in_a_registration_does_not_reach_the_terminal(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.member("billing", "anna", b"\x1b[2J")
    ended = zkgroups("members", "show", "billing", "anna")
    assert ended.code == 10
    assert "\x1b" not in ended.out + ended.err


def test_an_unregistered_instance_is_exit_code_3(zkgroups: Zkgroups, tree: Tree) -> None:
    tree.owner("billing", "orders", "0", "leaving")
    for instance in ("nobody", "leaving"):
        ended = zkgroups("members", "show", "billing", instance)
        sentence = (
            f"zkgroups: instance '{instance}' is not registered in group 'billing': register it first, or give "
            "the id of a registered instance\n"
        )
        assert (ended.code, ended.out, ended.err) == (3, "", sentence)


# Both commands


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("arguments", [["list", "nobody"], ["show", "nobody", "anna"]], ids=["list", "show"])
def test_a_missing_group_is_exit_code_3(zkgroups: Zkgroups, arguments: list[str]) -> None:
    ended = zkgroups("members", *arguments)
    assert (ended.code, ended.out, ended.err.splitlines()[0]) == (
        3,
        "",
        "zkgroups: group 'nobody' does not exist: check the name and the address",
    )


@pytest.mark.parametrize("arguments", [["list", "a/ids"], ["show", "a/ids", "anna"], ["show", "billing", "a/b"]])
def test_a_bad_name_is_exit_code_2(zkgroups: Zkgroups, arguments: list[str]) -> None:
    ended = zkgroups("members", *arguments, "-z", "127.0.0.1:1")
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1)


@pytest.mark.parametrize("arguments", [["list"], ["show", "billing", "anna"]], ids=["list", "show"])
def test_without_a_server_it_is_exit_code_7(zkgroups: Zkgroups, arguments: list[str]) -> None:
    ended = zkgroups("members", *arguments, "-z", "127.0.0.1:1", "--timeout", "0.3")
    assert (ended.code, ended.out) == (7, "")


@pytest.mark.parametrize("arguments", [["list"], ["show", "secret", "anna"]], ids=["list", "show"])
def test_without_permission_it_is_exit_code_6(
    zkgroups: Zkgroups, kazoo: KazooClient, secret: str, arguments: list[str]
) -> None:
    before = dump(kazoo)
    ended = zkgroups("members", *arguments)
    assert (ended.code, ended.out) == (6, "")
    assert f"zkgroups: {NoPermissionError('/consumers/secret/ids')}\n" in ended.err
    assert dump(kazoo) == before
