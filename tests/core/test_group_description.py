"""Descriptions of groups: orphans, blocked partitions, dialects, topics, unreadable nodes and totals."""

from __future__ import annotations

import pickle

import pytest

from zkgroups.core.times import from_ms, to_ms
from zkgroups.core.znodes.describe_group import describe
from zkgroups.core.znodes.group_description import (
    BlockedPartition,
    Obstacle,
)
from zkgroups.core.znodes.group_view import GroupView
from zkgroups.core.znodes.registration_codec import decode_registration
from zkgroups.core.znodes.states import GroupState, InstanceState
from zkgroups.core.znodes.values import (
    ForbiddenNode,
    MalformedNode,
    Owner,
    Pattern,
    Registration,
    UnevaluableRegistration,
)

from .descriptions import MALFORMED, at, blocked, described, instance, offset, one, owner, partition

# Rule 1: the id and the session


def test_rule_1_an_owner_with_the_name_of_an_instance_and_another_session_is_an_orphan() -> None:
    old = owner("orders/0", "me", 1)
    description = described(instance("me", 2), old, owner("orders/1", "me", 2))
    assert description.orphans == (old,)
    assert description.unowned == (at("orders/0"),)
    assert description.owned == 1
    assert partition(description, "orders/0").instance is None
    assert partition(description, "orders/0").owners == (old,)
    assert [(each.id, each.state, each.session) for each in description.instances] == [
        ("me", InstanceState.AWAITING_SYNC, 2),
        ("me", InstanceState.LEAVING, 1),
    ]
    assert description.members == 1


def test_rule_1_an_owner_with_the_session_of_an_instance_and_another_name_is_an_orphan() -> None:
    stranger = owner("orders/0", "you", 1)
    assert described(instance("me", 1), stranger).orphans == (stranger,)


def test_rule_1_the_session_distinguishes_an_id_from_another_instance_s_stream() -> None:
    """The owner node of a Scala member `worker` holds `worker-1`, which is also the id of another instance."""
    nodes = [instance("worker", 1), instance("worker-1", 2)]
    description = described(*nodes, owner("orders/0", "worker-1", 1), owner("orders/1", "worker-1", 2))
    assert description.orphans == ()
    assert one(description, "worker").owned == (at("orders/0"),)
    assert one(description, "worker-1").owned == (at("orders/1"),)


def test_the_exact_id_distinguishes_instances_of_one_session() -> None:
    nodes = [instance("worker", 1), instance("worker-1", 1)]
    description = described(*nodes, owner("orders/0", "worker-1", 1), owner("orders/1", "worker-0", 1))
    assert one(description, "worker-1").owned == (at("orders/0"),)
    assert one(description, "worker").owned == (at("orders/1"),)


def test_partitions_of_subscribers_are_not_blocked() -> None:
    nodes = [instance("me", 1), instance("you", 2), owner("orders/0", "me-0", 1), owner("orders/1", "you", 2)]
    assert described(*nodes).blocked == ()


def test_an_orphan_blocks_only_subscribed_partitions() -> None:
    nodes = [instance("me", 1), owner("orders/1", "me", 7), owner("refunds/0", "gone", 8)]
    description = described(*nodes, partitions={"orders": 2, "refunds": 1})
    assert blocked(description) == {"orders/1": ("me", Obstacle.NOT_REGISTERED)}
    assert blocked(described(owner("orders/1", "me", 7))) == {}


def test_a_live_owner_that_does_not_subscribe_blocks_its_partition() -> None:
    nodes = [instance("me", 1), instance("cron", 2, ()), owner("orders/0", "cron", 2), owner("orders/1", "me", 1)]
    description = described(*nodes)
    assert blocked(description) == {"orders/0": ("cron", Obstacle.NOT_SUBSCRIBED)}
    assert description.state is GroupState.STABLE
    assert blocked(described(instance("cron", 2, ()), owner("orders/0", "cron", 2))) == {}


def test_an_instance_with_a_malformed_registration_blocks_its_partitions() -> None:
    nodes = [instance("me", 1), instance("bad", 99, MALFORMED), MALFORMED, owner("orders/0", "bad-0", 99)]
    assert blocked(described(*nodes)) == {"orders/0": ("bad-0", Obstacle.REGISTRATION_UNREADABLE)}


def test_an_instance_with_an_unevaluable_subscription_blocks_nothing() -> None:
    data = b'{"pattern":"white_list","subscription":{"(a)\\\\1":1}}'
    found = decode_registration("/consumers/billing/ids/java", data, session=7)
    assert isinstance(found, UnevaluableRegistration)
    nodes = [instance("me", 1), instance("java", 7, found), found.node, owner("orders/0", "java-0", 7)]
    description = described(*nodes)
    assert (description.unevaluable, blocked(description)) == (("java",), {})
    assert description.instances[0].state is InstanceState.UNKNOWN
    assert pickle.loads(pickle.dumps(description)) == description


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("owners/orders/1", True),
        ("owners/orders/7", False),
        ("owners/orders/01", False),
        ("owners/b'orders'/1001-1", False),
        ("owners/refunds/1", False),
        ("owners/orders", False),
        ("offsets/orders/1", False),
    ],
)
def test_a_malformed_owner_node_blocks_its_partition(path: str, found: bool) -> None:
    node = MalformedNode(f"/consumers/billing/{path}", b"", "empty", session=9, created_ms=17)
    description = described(instance("me", 1), node)
    assert [(each.holder, each.obstacle, to_ms(each.since)) for each in description.blocked] == (
        [(node, Obstacle.OWNER_UNREADABLE, 17)] if found else []
    )


def test_a_partition_is_blocked_since_its_owner_node_was_created() -> None:
    holder = Owner(at("orders/0"), "gone", 9, claimed_ms=1234)
    [found] = described(instance("me", 1), holder).blocked
    assert found == BlockedPartition(at("orders/0"), holder, Obstacle.NOT_REGISTERED)
    assert found.since == from_ms(1234)


def test_a_pykafka_owner_node_blocks_nothing() -> None:
    node = owner("orders/0", "gone", 9, "/consumers/billing/owners/b'orders'/1-0")
    assert described(instance("me", 1), node).blocked == ()


def test_nothing_is_blocked_if_registrations_are_forbidden() -> None:
    for path in ("ids", "ids/somebody"):
        hidden = ForbiddenNode(f"/consumers/billing/{path}", "no permission")
        assert described(instance("me", 1), owner("orders/0", "gone", 9), hidden).blocked == ()
    denied = ForbiddenNode("/consumers/billing/owners/orders/0", "no permission")
    assert described(instance("me", 1), denied).blocked == ()


# Owners in two dialects


@pytest.mark.parametrize("order", [1, -1])
def test_both_owners_of_a_partition_in_two_dialects_are_described(order: int) -> None:
    scala = owner("orders/0", "scala-0", 1, "/consumers/billing/owners/orders/0")
    pykafka = owner("orders/0", "pykafka", 2, "/consumers/billing/owners/b'orders'/1-0")
    description = described(instance("scala", 1), instance("pykafka", 2), *(scala, pykafka)[::order])
    assert set(partition(description, "orders/0").owners) == {scala, pykafka}
    assert partition(description, "orders/0").instance in {"scala", "pykafka"}
    assert one(description, "scala").owned == one(description, "pykafka").owned == (at("orders/0"),)
    assert description.orphans == ()
    assert description.owned == 1
    assert len(description.partitions) == 2


@pytest.mark.parametrize("order", [1, -1])
def test_a_live_owner_counts_beside_an_orphan_in_another_dialect(order: int) -> None:
    living, orphan = owner("orders/0", "me", 1), owner("orders/0", "gone", 2, "/b'orders'/1-0")
    description = described(instance("me", 1), *(living, orphan)[::order])
    assert partition(description, "orders/0").instance == "me"
    assert description.orphans == (orphan,)
    assert description.unowned == (at("orders/1"),)


def test_two_nodes_of_one_instance_for_one_partition_count_once() -> None:
    nodes = [owner("orders/0", "me", 1), owner("orders/0", "me", 1, "/b'orders'/2-0")]
    assert one(described(instance("me", 1), *nodes), "me").owned == (at("orders/0"),)


# Topics


def test_an_unregistered_topic_has_the_partitions_found_in_the_group() -> None:
    nodes = [instance("me", 1, ["gone"]), owner("gone/4", "me", 1), offset("gone/2")]
    description = described(*nodes, partitions={})
    assert description.unowned == (at("gone/2"),)
    assert description.state is GroupState.COMPLETING_REBALANCE
    assert [p.at for p in description.partitions] == [at("gone/2"), at("gone/4")]


def test_an_unknown_topic_has_no_partitions() -> None:
    description = described(instance("me", 1, ["gone"]), partitions={})
    assert description.partitions == ()
    assert description.state is GroupState.PREPARING_REBALANCE


def test_an_offset_of_a_missing_partition_is_shown_but_does_not_affect_the_state() -> None:
    nodes = [instance("me", 1), owner("orders/0", "me", 1), owner("orders/1", "me", 1), offset("orders/9")]
    description = described(*nodes)
    assert description.state is GroupState.STABLE
    assert partition(description, "orders/9").offset == offset("orders/9")


def test_the_partition_numbers_of_a_topic_can_have_gaps() -> None:
    view = GroupView("billing", instances=(instance("me", 1),), partitions={"orders": (2, 5)})
    assert describe(view).unowned == (at("orders/2"), at("orders/5"))


@pytest.mark.parametrize(
    ("pattern", "expression", "expected"),
    [
        (Pattern.WHITE_LIST, "order.*", {"orders"}),
        (Pattern.BLACK_LIST, "order.*", {"refunds"}),
        (Pattern.WHITE_LIST, "order.*,refunds", {"orders", "refunds"}),
    ],
)
def test_a_pattern_chooses_topics_except_internal_ones(pattern: Pattern, expression: str, expected: set[str]) -> None:
    topics = {"orders": 1, "refunds": 1, "__consumer_offsets": 50}
    description = described(instance("me", 1, Registration({expression: 1}, pattern)), partitions=topics)
    assert {each.topic for each in description.unowned} == expected


# Malformed nodes


def test_a_malformed_registration_does_not_stop_the_others() -> None:
    nodes = [instance("bad", 99, MALFORMED), instance("me", 1), owner("orders/0", "me", 1), MALFORMED]
    description = described(*nodes, owner("orders/1", "bad", 99))
    assert description.state is GroupState.STABLE
    assert description.unreadable == (MALFORMED,)
    assert description.members == 2
    assert one(description, "bad").registration == MALFORMED
    assert one(description, "bad").state is InstanceState.UNKNOWN
    assert one(description, "bad").owned == (at("orders/1"),)
    assert description.orphans == ()


def test_malformed_nodes_are_described_in_order() -> None:
    nodes = [MalformedNode(f"/{n}", b"", "empty") for n in range(3)]
    assert described(*nodes).unreadable == tuple(nodes)


# Totals


def test_the_totals_count_each_thing_once() -> None:
    nodes = [
        *(instance("a", 1), instance("b", 2, ["orders", "refunds"])),
        *(owner("orders/0", "a", 1), owner("orders/1", "b", 2), owner("refunds/0", "gone", 3)),
        *(offset("orders/0", 5, 100), offset("orders/1", 6, 300), offset("old/7", 7, 200)),
    ]
    description = described(*nodes, partitions={"orders": 3, "refunds": 2})
    assert description.members == 2
    assert description.topics == ("old", "orders", "refunds")
    assert len(description.partitions) == 6
    assert description.owned == 2
    assert description.offsets == 3
    assert description.last_commit_at == from_ms(300)
    assert description.unowned == (at("orders/2"), at("refunds/0"), at("refunds/1"))


def test_a_group_without_offsets_has_no_last_commit() -> None:
    assert described(instance("me", 1)).last_commit_at is None


def test_partitions_are_sorted_as_numbers() -> None:
    description = described(instance("me", 1), partitions={"orders": 12})
    assert [p.at.partition for p in description.partitions] == list(range(12))
    assert list(description.unowned) == sorted(description.unowned)
