"""`zkgroups groups explain`: the sentences, and the command."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient
from zkgroups_cli.groups.explanation_text import explanation_lines

from zkgroups import TopicPartition

from ..core.doctor_nodes import SCALA, member
from ..core.test_explanation import announcing, explained
from .conftest import Zkgroups
from .test_groups import tree


def lines(*instances: Any, **more: Any) -> list[str]:
    return list(explanation_lines(explained(*instances, **more)))


def test_a_settled_group_takes_a_few_lines() -> None:
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
    found = lines(announcing("a", "range"), announcing("b", "range"), owners={0: "gone", 1: "b"}, without=("b",))
    assert found[0] == "Group billing is CompletingRebalance. 2 members share 4 partitions; not as planned: 4."
    assert found[5:] == [
        "Members, in this order:",
        "  a  zkgroups  owns nothing; should own orders 0-1",
        "  b  zkgroups  owns orders 1; should own orders 2-3",
        "",
        "Not as planned:",
        "  orders 0: owned by gone, which is not registered, so a cannot claim it.",
        "  orders 1: owned by b; a waits until b releases it.",
        "  orders 2-3: no owner; b should claim them.",
        "",
        "What blocks:",
        "  orders/0 is held by 'gone' of session 0x63 since 1970-01-01T00:00:00Z, "
        "which is not registered with that name and session",
        "    if it no longer reads: zkgroups release --expect-owner=gone --expect-session=0x63 billing orders 0",
        "",
        "If b leaves, partitions that move: 2.",
        "  a gets orders 2-3",
    ]


def test_a_scala_member_claims_in_its_next_rebalance_and_its_strategy_is_assumed() -> None:
    found = lines(member("s", SCALA), partitions={"orders": (0,)}, without=("s",))
    assert found[2].startswith("Strategy range: the default, as s cannot announce one. --foreign-assignor roundrobin")
    assert "  orders 0: no owner; s should claim it in its next rebalance." in found
    assert found[-3] == "If s leaves, nobody reads: no other member shares partitions."


def test_many_names_are_counted() -> None:
    topics = {f"t{number:02}": (0, 1, 2, 5) for number in range(20)}
    found = lines(announcing("a", "range", topics=tuple(topics)), partitions=topics)
    assert "t07 and 12 more: 4 partitions each, for 1 stream (a-0): 4 in a row for each" in found[3]
    assert "t07 0-2, 5 and 12 more: no owner; a should claim them." in found[9]


def test_of_findings_of_one_kind_the_first_ones_are_shown() -> None:
    found = lines(announcing("a", "range"), owners=dict.fromkeys(range(4), "gone"))
    assert "  and 1 more of orphan-owner: zkgroups doctor billing" in found


def test_braces_in_names_are_shown_as_they_are() -> None:
    assert "  orders 0: owned by {x}, which is not registered, so a cannot claim it." in lines(
        announcing("a", "range"), owners={0: "{x}"}
    )


@pytest.mark.zookeeper
def test_the_command_explains_and_changes_nothing(zkgroups: Zkgroups, kazoo: KazooClient, billing: Any) -> None:
    before = tree(kazoo, "/")
    shown = zkgroups("groups", "explain", "billing", "--without", "anna")
    assert (shown.code, shown.err) == (0, "")
    assert "  orders 1: no owner; ben should claim it." in shown.lines
    assert "  anna  zkgroups  owns orders 0; chooses its partitions itself, whatever the plan is" in shown.lines
    assert shown.lines[-4:-2] == ["If anna leaves, partitions that move: 1.", "  ben gets orders 0"]
    [group] = zkgroups("groups", "explain", "billing", "-o", "json").json["groups"]
    assert [(each["owner"], each["planned"], each["placement"]) for each in group["partitions"]] == [
        ("anna", "anna", "as planned"),
        (None, "ben", "unowned"),
    ]
    assert zkgroups("groups", "explain", "billing", "-o", "csv", "--no-headers").lines == [
        "billing,orders,0,anna,anna,as planned,",
        "billing,orders,1,,ben,unowned,",
    ]
    assert tree(kazoo, "/") == before


@pytest.mark.zookeeper
def test_a_missing_group_or_instance_is_exit_code_3_and_a_forbidden_one_6(
    zkgroups: Zkgroups, billing: Any, secret: str
) -> None:
    assert zkgroups("groups", "explain", "nobody").code == 3
    assert zkgroups("groups", "explain", "billing", "--without", "nobody").code == 3
    assert zkgroups("groups", "explain", secret).code == 6


@pytest.mark.zookeeper
def test_a_group_without_members_is_read_by_nobody(zkgroups: Zkgroups, registry: Any) -> None:
    registry.group("idle").offsets.set(TopicPartition("orders", 0), 5)
    assert zkgroups("groups", "explain", "idle").lines == [
        "Group idle is Empty: no member shares partitions, so nobody reads."
    ]
