"""Groups in use, and the unreadable nodes of a group."""

from __future__ import annotations

import pytest

from zkgroups.core.doctor.unused_groups import in_use, unreadable_nodes
from zkgroups.core.znodes.describe_group import describe
from zkgroups.core.znodes.group_view import GroupView, RegisteredInstance
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import (
    CommittedOffset,
    ForbiddenNode,
    MalformedNode,
    Owner,
    Registration,
    UnreadableNode,
)

AT = TopicPartition("orders", 0)


def test_a_group_with_only_offsets_is_not_in_use() -> None:
    assert not in_use(describe(GroupView("billing", offsets=(CommittedOffset("billing", AT, 5),))))
    assert not in_use(describe(GroupView("billing")))


@pytest.mark.parametrize(
    "registration", [Registration({}), MalformedNode("/consumers/billing/ids/anna", b"", "empty")], ids=["good", "bad"]
)
def test_a_registered_instance_uses_a_group_even_if_it_is_malformed(
    registration: Registration | UnreadableNode,
) -> None:
    assert in_use(describe(GroupView("billing", instances=(RegisteredInstance("anna", 7, registration),))))


@pytest.mark.parametrize("session", [7, 0])
def test_an_owner_uses_a_group_even_without_a_registration_or_a_session(session: int) -> None:
    assert in_use(describe(GroupView("billing", owners=(Owner(AT, "anna", session),))))


def test_only_unreadable_nodes_below_the_group_count() -> None:
    mine = (
        MalformedNode("/consumers/billing/offsets/orders/0", b"", "empty"),
        ForbiddenNode("/consumers/billing"),
    )
    others = (
        MalformedNode("/consumers/billing-blue/offsets/orders/0", b"", "empty"),
        MalformedNode("/brokers/topics/orders", b"", "empty"),
    )
    assert unreadable_nodes(describe(GroupView("billing", unreadable=(*others, *mine)))) == mine
