"""The doctor's checks: codes, order of findings, unused groups, and open directories."""

from __future__ import annotations

import re
from typing import Any

import pytest

from zkgroups import Severity
from zkgroups.core.doctor.all_checks import CHECKS, run_checks
from zkgroups.core.doctor.group_nodes import Directory, GroupNodes
from zkgroups.core.znodes.group_view import GroupView
from zkgroups.core.znodes.values import (
    CommittedOffset,
    ForbiddenNode,
)

from .doctor_nodes import AT, PATHS, SCALA, bad_offset, codes, group, litter, member, owner, the


def test_the_codes_are_unique_lowercase_words() -> None:
    names = [check.code for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", name) for name in names)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_each_check_has_a_meaning_a_reason_not_to_repair_and_its_own_function(check: Any) -> None:
    assert check.meaning
    assert check.not_repaired
    assert check.find.__doc__
    assert [each.code for each in CHECKS if each.find is check.find] == [check.code]


def test_a_group_without_nodes_has_no_findings() -> None:
    assert run_checks(GroupNodes(GroupView("billing", offsets=(CommittedOffset("billing", AT, 5),)))) == []


def test_empty_directories_are_deleted_from_the_bottom_up_each_as_it_was_seen() -> None:
    repair = the("empty-group", litter(topics=[])).repair
    assert repair is not None
    assert [(step.path, step.version) for step in repair.steps] == [
        (PATHS.owners + "/orders", 2),
        (PATHS.ids, 0),
        (PATHS.owners, 0),
        (PATHS.root, 0),
    ]


def test_an_empty_group_is_one_finding() -> None:
    assert codes(litter(topics=[])) == ["empty-group"]


@pytest.mark.parametrize(
    "fields",
    [
        {"root": Directory(PATHS.root, ("ids", "owners", "state"))},
        {"root": Directory(PATHS.root, ("ids", "owners"), b"x")},
        {"owned": Directory(PATHS.owners + "/orders", data=b"x")},
    ],
    ids=["something else", "data", "data below"],
)
def test_an_empty_group_with_unknown_nodes_is_not_repaired(fields: dict[str, Any]) -> None:
    assert not the("empty-group", litter(**fields)).repairable


@pytest.mark.parametrize(
    "fields",
    [
        {"offsets": (CommittedOffset("billing", AT, 5),)},
        {"owners": (owner("anna"),)},
        {"unreadable": (bad_offset(b"x"),)},
        {"unreadable": (ForbiddenNode(PATHS.offsets),)},
        {"owned": Directory(PATHS.owners + "/orders", ("0",))},
    ],
)
def test_a_group_with_any_content_is_not_empty(fields: dict[str, Any]) -> None:
    assert "empty-group" not in codes(litter(**fields))
    assert "empty-group" not in codes(group(member("anna")))


def test_many_nested_nodes_are_reported_in_short() -> None:
    finding = the("nested-node", group(nested={PATHS.offset(AT): ("a", "b", "c", "d")}))
    assert finding.what.endswith("'a', 'b', 'c' and 1 more")


def test_open_directories_are_one_finding_for_the_group() -> None:
    finding = the("open-acl", group(open_to_all=(PATHS.root, PATHS.offsets)))
    assert (finding.severity, finding.path) == (Severity.INFO, PATHS.root)
    assert finding.what.endswith("may change the group, offsets")


def test_the_worst_comes_first_and_within_that_the_order_of_the_table() -> None:
    nodes = group(
        member("scala", SCALA),
        member("bad", b""),
        owners=(owner("nobody"),),
        partitions={"orders": (0,)},
        open_to_all=(PATHS.root,),
    )
    assert codes(nodes) == ["orphan-owner", "scala-cannot-read", "unowned-partition", "open-acl"]
