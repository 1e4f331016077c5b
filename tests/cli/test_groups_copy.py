"""`zkgroups groups copy`: copies the offsets of a group, and refuses groups that it must not read."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import Registry, TopicPartition

from .conftest import Zkgroups
from .test_groups import tree

pytestmark = pytest.mark.zookeeper

P0, P1 = (TopicPartition("orders", number) for number in range(2))


@pytest.fixture
def invoices(registry: Registry) -> Any:
    group = registry.group("invoices")
    group.offsets.set_many({P0: 5, P1: 0, TopicPartition("refunds", 7): 3})
    return group


def test_without_execute_the_copy_is_shown_and_nothing_changes(
    zkgroups: Zkgroups, kazoo: KazooClient, invoices: Any
) -> None:
    before = tree(kazoo, "/consumers")
    ended = zkgroups("groups", "copy", "invoices", "blue")
    assert (ended.code, ended.err) == (0, "Nothing was changed: add --execute to apply.\n")
    assert [line.split() for line in ended.lines] == [
        ["GROUP", "TOPIC", "PARTITION", "OFFSET"],
        ["blue", "orders", "0", "5"],
        ["blue", "orders", "1", "0"],
        ["blue", "refunds", "7", "3"],
    ]
    assert tree(kazoo, "/consumers") == before


def test_with_execute_it_copies_and_shows_the_new_group(zkgroups: Zkgroups, registry: Registry, invoices: Any) -> None:
    ended = zkgroups("groups", "copy", "invoices", "blue", "--execute", "-o", "json")
    assert (ended.code, ended.err) == (0, "copied invoices to blue\n")
    assert ended.json["offsets"] == [
        {"group": "blue", "topic": "orders", "partition": 0, "offset": 5},
        {"group": "blue", "topic": "orders", "partition": 1, "offset": 0},
        {"group": "blue", "topic": "refunds", "partition": 7, "offset": 3},
    ]
    assert [(each.at, each.offset) for each in registry.group("blue").offsets] == [
        (each.at, each.offset) for each in invoices.offsets
    ]


def test_neither_instances_nor_owners_are_copied(zkgroups: Zkgroups, kazoo: KazooClient, billing: Any) -> None:
    assert zkgroups("groups", "copy", "billing", "blue", "--execute").code == 0
    assert (kazoo.get_children("/consumers/blue/ids"), kazoo.get_children("/consumers/blue/owners")) == ([], [])


def test_a_group_without_offsets_is_copied(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("empty").create()
    ended = zkgroups("groups", "copy", "empty", "blue", "--execute", "-o", "json")
    assert (ended.code, ended.json["offsets"]) == (0, [])
    assert registry.groups() == ["blue", "empty"]


@pytest.mark.parametrize("execute", [[], ["--execute"]], ids=["shown", "done"])
def test_malformed_offsets_are_left_out_and_reported(
    zkgroups: Zkgroups, kazoo: KazooClient, invoices: Any, execute: list[str]
) -> None:
    kazoo.create("/consumers/invoices/offsets/orders/9", b"many")
    ended = zkgroups("groups", "copy", "invoices", "blue", *execute, "-o", "csv", "--no-headers")
    assert (ended.code, ended.lines) == (9, ["blue,orders,0,5", "blue,orders,1,0", "blue,refunds,7,3"])
    assert "zkgroups: left out: /consumers/invoices/offsets/orders/9 (not a plain decimal number)\n" in ended.err
    assert bool(kazoo.exists("/consumers/blue")) is bool(execute)


@pytest.mark.parametrize("execute", [[], ["--execute"]], ids=["shown", "done"])
@pytest.mark.parametrize(
    ("group", "to", "code", "sentence"),
    [
        ("invoices", "taken", 4, "group 'taken' already exists"),
        ("invoices", "invoices", 4, "group 'invoices' already exists"),
        ("nobody", "blue", 3, "group 'nobody' does not exist: check the name and the address"),
        ("secret", "blue", 6, "no permission on /consumers/secret/offsets"),
        ("invoices", "a/b", 2, "group 'a/b' contains a slash"),
        ("a/ids", "blue", 2, "group 'a/ids' contains a slash"),
    ],
)
def test_a_refused_copy_changes_nothing(
    zkgroups: Zkgroups,
    kazoo: KazooClient,
    registry: Registry,
    invoices: Any,
    secret: str,
    execute: list[str],
    group: str,
    to: str,
    code: int,
    sentence: str,
) -> None:
    registry.group("taken").create()
    before = tree(kazoo, "/consumers")
    ended = zkgroups("groups", "copy", group, to, *execute)
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith(f"zkgroups: {sentence}")
    assert tree(kazoo, "/consumers") == before


def test_with_read_only_the_dry_run_works_and_execute_is_refused(
    zkgroups: Zkgroups, registry: Registry, invoices: Any
) -> None:
    assert zkgroups("groups", "copy", "invoices", "blue", "--read-only").code == 0
    assert zkgroups("groups", "copy", "invoices", "blue", "--read-only", "--execute").code == 4
    assert registry.groups() == ["invoices"]
