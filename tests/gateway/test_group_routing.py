"""Which groups are answered here, and under which broker's address."""

from __future__ import annotations

import pytest

from zkgroups.exceptions import InvalidOptionError
from zkgroups.gateway.protocol.group_routing import GroupRouting, Route, coordinator_node


def test_groups_whose_whole_name_matches_are_answered_here() -> None:
    routing = GroupRouting("billing-.*|audit")
    assert {name: routing.route(name) for name in ("billing-1", "audit", "audit-2", "a billing-1", "")} == {
        "billing-1": Route.HERE,
        "audit": Route.HERE,
        "audit-2": Route.KAFKA,
        "a billing-1": Route.KAFKA,
        "": Route.KAFKA,
    }


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "größe", "x" * 250])
def test_without_an_expression_a_name_that_no_node_can_have_goes_nowhere(name: str) -> None:
    assert GroupRouting().route(name) is Route.REFUSED
    assert GroupRouting().route("x" * 249) is Route.HERE


@pytest.mark.parametrize("pattern", ["(", "a(?=b)c", "(a+)+" * 50])
def test_an_expression_that_cannot_be_evaluated_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidOptionError, match="group"):
        GroupRouting(pattern)


def test_a_group_keeps_its_coordinator_when_another_broker_disappears() -> None:
    groups = [f"group-{number}" for number in range(300)]
    before = {group: coordinator_node(group, {1, 2, 3}) for group in groups}
    after = {group: coordinator_node(group, {1, 2}) for group in groups}
    assert all(after[group] == node for group, node in before.items() if node != 3)
    assert all(60 < list(before.values()).count(node) < 140 for node in (1, 2, 3))
    assert coordinator_node("group", set()) is None
