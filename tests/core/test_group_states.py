"""States of groups and of instances."""

from __future__ import annotations

import pytest

from zkgroups.core.times import from_ms
from zkgroups.core.znodes.group_description import (
    GroupDescription,
    InstanceDescription,
)
from zkgroups.core.znodes.states import GroupState, InstanceState
from zkgroups.core.znodes.values import (
    ForbiddenNode,
    MalformedNode,
    UnreadableNode,
)

from .descriptions import at, described, instance, offset, one, owner, states

# Registrations without a session


def test_an_instance_without_a_session_is_dead_and_its_group_empty() -> None:
    description = described(instance("gone", 0), offset("orders/0"))
    assert description.state is GroupState.EMPTY
    assert states(description) == {"gone": InstanceState.DEAD}
    assert (description.members, description.unowned, description.subscribed) == (0, (), ())


def test_a_dead_instance_does_not_change_other_states() -> None:
    description = described(
        instance("gone", 0), instance("me", 1), owner("orders/0", "me", 1), owner("orders/1", "me", 1)
    )
    assert description.state is GroupState.STABLE
    assert states(description) == {"gone": InstanceState.DEAD, "me": InstanceState.STABLE}
    assert description.members == 1


@pytest.mark.parametrize("of_owner", ["here", "here-0"])
def test_an_instance_without_a_session_may_be_alive_if_it_owns_a_partition(of_owner: str) -> None:
    description = described(instance("here", 0), instance("gone", 0), owner("orders/0", of_owner, 7))
    assert states(description)["here"] is not InstanceState.DEAD
    assert states(description)["gone"] is InstanceState.DEAD
    assert description.members == 1


@pytest.mark.parametrize(
    "unknown",
    [
        ForbiddenNode("/consumers/billing/owners/orders/0", "hidden"),
        MalformedNode("/consumers/billing/owners/orders/0", b"\xff", "no text", session=7),
    ],
)
def test_no_instance_is_dead_if_an_owner_is_unreadable(unknown: UnreadableNode) -> None:
    assert states(described(instance("here", 0), unknown))["here"] is not InstanceState.DEAD


def test_a_forbidden_registration_is_not_dead() -> None:
    hidden = ForbiddenNode("/consumers/billing/ids/here", "hidden")
    assert states(described(instance("here", 0, hidden), hidden))["here"] is InstanceState.UNKNOWN


# States of a group


def test_a_group_without_a_znode_is_dead() -> None:
    assert described(exists=False) == GroupDescription("billing", GroupState.DEAD, (), (), (), (), ())


def test_a_group_without_instances_is_empty() -> None:
    assert described().state is GroupState.EMPTY


def test_a_group_with_only_offsets_is_empty() -> None:
    description = described(offset("orders/1", 7, 50), offset("gone/0", 8, 60))
    assert description.state is GroupState.EMPTY
    assert description.topics == ("gone", "orders")
    assert [p.at for p in description.partitions] == [at("gone/0"), at("orders/1")]
    assert (description.members, description.owned, description.offsets) == (0, 0, 2)
    assert description.last_commit_at == from_ms(60)
    assert description.unowned == ()


def test_a_group_with_an_orphan_and_no_instance_is_empty() -> None:
    description = described(owner("orders/0", "me", 1))
    assert description.state is GroupState.EMPTY
    assert states(description) == {"me": InstanceState.LEAVING}
    assert description.members == 0


def test_a_group_with_instances_but_without_owners_is_preparing_a_rebalance() -> None:
    assert described(instance("me", 1)).state is GroupState.PREPARING_REBALANCE


def test_a_group_with_only_orphaned_owners_is_preparing_a_rebalance() -> None:
    assert described(instance("me", 1), owner("orders/0", "me", 2)).state is GroupState.PREPARING_REBALANCE


def test_a_partly_owned_group_is_completing_a_rebalance() -> None:
    description = described(instance("me", 1), owner("orders/0", "me", 1))
    assert description.state is GroupState.COMPLETING_REBALANCE
    assert description.unowned == (at("orders/1"),)


def test_a_group_with_live_owners_for_all_partitions_is_stable() -> None:
    description = described(instance("a", 1), instance("b", 2), owner("orders/0", "a", 1), owner("orders/1", "b-0", 2))
    assert description.state is GroupState.STABLE
    assert description.unowned == ()
    assert description.owned == 2


def test_a_group_with_an_orphaned_owner_is_not_stable() -> None:
    description = described(instance("me", 1), owner("orders/0", "me", 1), owner("orders/1", "other", 2))
    assert description.state is GroupState.COMPLETING_REBALANCE
    assert description.unowned == (at("orders/1"),)


def test_an_unsubscribed_topic_does_not_affect_stability() -> None:
    nodes = [instance("me", 1), owner("orders/0", "me", 1), owner("orders/1", "me", 1), offset("refunds/0")]
    description = described(*nodes, partitions={"orders": 2, "refunds": 9})
    assert description.state is GroupState.STABLE
    assert [p.at for p in description.partitions] == [at("orders/0"), at("orders/1"), at("refunds/0")]


def test_a_group_with_one_unowned_topic_is_not_stable() -> None:
    nodes = [instance("me", 1, ["orders", "refunds"]), owner("orders/0", "me", 1), owner("orders/1", "me", 1)]
    description = described(*nodes, partitions={"orders": 2, "refunds": 1})
    assert description.state is GroupState.COMPLETING_REBALANCE
    assert description.unowned == (at("refunds/0"),)


# States of an instance


def test_an_instance_without_partitions_of_a_partly_owned_topic_is_joining() -> None:
    description = described(instance("a", 1), instance("b", 2), owner("orders/0", "a", 1))
    assert states(description) == {"a": InstanceState.AWAITING_SYNC, "b": InstanceState.JOINING}


def test_an_instance_without_partitions_of_an_owned_topic_is_stable() -> None:
    description = described(
        instance("a", 1), instance("spare", 2), owner("orders/0", "a", 1), owner("orders/1", "a", 1)
    )
    assert states(description) == {"a": InstanceState.STABLE, "spare": InstanceState.STABLE}


def test_an_instance_whose_topics_are_all_owned_is_stable_while_the_group_is_not() -> None:
    nodes = [instance("a", 1), instance("b", 2, ["refunds"]), owner("orders/0", "a", 1), owner("orders/1", "a", 1)]
    description = described(*nodes, partitions={"orders": 2, "refunds": 1})
    assert description.state is GroupState.COMPLETING_REBALANCE
    assert states(description) == {"a": InstanceState.STABLE, "b": InstanceState.JOINING}


def test_a_deregistered_instance_that_owns_partitions_is_leaving() -> None:
    nodes = [owner("orders/1", "gone", 7), owner("orders/0", "gone", 7), instance("me", 1)]
    leaving = one(described(*nodes), "gone")
    assert leaving == InstanceDescription(
        "gone", InstanceState.LEAVING, 7, None, None, (at("orders/0"), at("orders/1"))
    )
    assert described(*nodes).members == 1


def test_registered_instances_come_first_sorted_by_id() -> None:
    nodes = [owner("orders/0", "a", 7), instance("c", 1), instance("b", 2)]
    assert [each.id for each in described(*nodes).instances] == ["b", "c", "a"]


def test_an_instance_description_has_all_fields_of_its_registration() -> None:
    node = instance("me", 7)
    description = described(node, owner("orders/1", "me-0", 7), owner("orders/0", "me-1", 7))
    assert one(description, "me") == InstanceDescription(
        "me", InstanceState.STABLE, 7, from_ms(1007), node.registration, (at("orders/0"), at("orders/1"))
    )
