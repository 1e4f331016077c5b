"""Descriptions of groups: the states, orphans, blocked partitions and unreadable nodes."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.times import from_ms, to_ms
from zkgroups.core.znodes.describe_group import describe
from zkgroups.core.znodes.group_description import (
    BlockedPartition,
    GroupDescription,
    InstanceDescription,
    Obstacle,
    PartitionDescription,
)
from zkgroups.core.znodes.group_view import GroupView, RegisteredInstance
from zkgroups.core.znodes.registration_codec import decode_registration
from zkgroups.core.znodes.states import GroupState, InstanceState
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import (
    CommittedOffset,
    ForbiddenNode,
    MalformedNode,
    Owner,
    Pattern,
    ReadRegistration,
    Registration,
    UnevaluableRegistration,
    UnreadableNode,
)

MALFORMED = MalformedNode("/consumers/billing/ids/bad", b"", "empty", session=99)


def at(text: str) -> TopicPartition:
    """Parse `orders/3`."""
    topic, _, partition = text.rpartition("/")
    return TopicPartition(topic, int(partition))


def instance(id: str, session: int, topics: Iterable[str] | ReadRegistration = ("orders",)) -> RegisteredInstance:
    if not isinstance(topics, ReadRegistration):
        topics = Registration(dict.fromkeys(topics, 1))
    return RegisteredInstance(id, session, topics, _registered_ms=1000 + session)


def owner(partition: str, id: str, session: int, path: str = "") -> Owner:
    return Owner(at(partition), id, session, path=path)


def offset(partition: str, offset: int = 5, committed_ms: int = 0) -> CommittedOffset:
    return CommittedOffset("billing", at(partition), offset, _committed_ms=committed_ms)


def described(
    *nodes: RegisteredInstance | Owner | CommittedOffset | UnreadableNode,
    partitions: Mapping[str, int] | None = None,
    exists: bool = True,
) -> GroupDescription:
    """Describe a group with these nodes. `orders` has two partitions by default."""
    counts = {"orders": 2} if partitions is None else partitions
    return describe(
        GroupView(
            "billing",
            exists,
            tuple(node for node in nodes if isinstance(node, RegisteredInstance)),
            tuple(node for node in nodes if isinstance(node, Owner)),
            tuple(node for node in nodes if isinstance(node, CommittedOffset)),
            tuple(node for node in nodes if isinstance(node, UnreadableNode)),
            {topic: tuple(range(count)) for topic, count in counts.items()},
        )
    )


def states(description: GroupDescription) -> dict[str, InstanceState]:
    return {each.id: each.state for each in description.instances}


def one(description: GroupDescription, id: str) -> InstanceDescription:
    [found] = [each for each in description.instances if each.id == id]
    return found


def partition(description: GroupDescription, name: str) -> PartitionDescription:
    [found] = [each for each in description.partitions if each.at == at(name)]
    return found


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
    assert leaving == InstanceDescription("gone", InstanceState.LEAVING, 7, 0, None, (at("orders/0"), at("orders/1")))
    assert described(*nodes).members == 1


def test_registered_instances_come_first_sorted_by_id() -> None:
    nodes = [owner("orders/0", "a", 7), instance("c", 1), instance("b", 2)]
    assert [each.id for each in described(*nodes).instances] == ["b", "c", "a"]


def test_an_instance_description_has_all_fields_of_its_registration() -> None:
    node = instance("me", 7)
    description = described(node, owner("orders/1", "me-0", 7), owner("orders/0", "me-1", 7))
    assert one(description, "me") == InstanceDescription(
        "me", InstanceState.STABLE, 7, 1007, node.registration, (at("orders/0"), at("orders/1"))
    )


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


# Blocked partitions


def blocked(description: GroupDescription) -> dict[str, tuple[str, Obstacle]]:
    return {
        str(each.at): (each.holder.id if isinstance(each.holder, Owner) else each.holder.path, each.obstacle)
        for each in description.blocked
    }


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
    node = MalformedNode(f"/consumers/billing/{path}", b"", "empty", session=9, _created_ms=17)
    description = described(instance("me", 1), node)
    assert [(each.holder, each.obstacle, to_ms(each.since)) for each in description.blocked] == (
        [(node, Obstacle.OWNER_UNREADABLE, 17)] if found else []
    )


def test_a_partition_is_blocked_since_its_owner_node_was_created() -> None:
    holder = Owner(at("orders/0"), "gone", 9, _claimed_ms=1234)
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


# Any group


IDS = st.sampled_from(["a", "a-0", "b", "b-1", "c"])
SESSIONS = st.integers(1, 3)
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["orders", "refunds", "gone"]), st.integers(0, 3))
SUBSCRIPTIONS = st.one_of(
    st.sets(st.sampled_from(["orders", "refunds", "gone"])),
    st.just(Registration({"o.*": 1}, Pattern.WHITE_LIST)),
    st.just(MALFORMED),
)
VIEWS = st.builds(
    GroupView,
    st.just("billing"),
    instances=st.lists(st.builds(instance, IDS, SESSIONS, SUBSCRIPTIONS), unique_by=lambda node: node.id).map(tuple),
    owners=st.lists(st.builds(Owner, PARTITIONS, IDS, SESSIONS), max_size=8).map(tuple),
    offsets=st.lists(
        st.builds(CommittedOffset, st.just("billing"), PARTITIONS, st.integers(0, 9), _committed_ms=st.integers(0, 9)),
        unique_by=lambda node: node.at,
    ).map(tuple),
    partitions=st.fixed_dictionaries({"orders": st.just((0, 1)), "refunds": st.just((0,))}),
)


def ours(view: GroupView, owner: Owner) -> set[str]:
    """Return the instances that match an owner: same session, and same id with or without a stream."""
    same = {node.id for node in view.instances if node.session == owner.session}
    return {owner.id} & same or {id for id in same if owner.id in {f"{id}-{stream}" for stream in range(10)}}


@given(view=VIEWS)
def test_the_description_of_any_group_is_consistent(view: GroupView) -> None:
    description = describe(view)
    registered = {node.id for node in view.instances}
    living = {node.at for node in view.owners if ours(view, node)}

    assert set(description.orphans) == {node for node in view.owners if not ours(view, node)}
    assert {p.at for p in description.partitions if p.instance is not None} == living
    assert not living & set(description.unowned)
    assert {p.at for p in description.partitions} >= {n.at for n in (*view.owners, *view.offsets)}
    assert set(description.unowned) <= {p.at for p in description.partitions}
    held = {blocked.at for blocked in description.blocked}
    assert held <= {node.at for node in view.owners}
    assert {at.topic for at in held} <= set(description.subscribed)
    assert held >= {node.at for node in description.orphans} & set(description.unowned)
    assert description.owned == len(living)
    assert description.members == len(registered)
    assert description.offsets == len(view.offsets)
    for each in description.instances:
        if each.state is InstanceState.LEAVING:
            assert set(each.owned) == {
                n.at for n in description.orphans if (n.id, n.session) == (each.id, each.session)
            }
        else:
            assert set(each.owned) == {n.at for n in view.owners if each.id in ours(view, n)}
    if description.state is GroupState.STABLE:
        assert not description.unowned
        assert {each.state for each in description.instances} <= {
            InstanceState.STABLE,
            InstanceState.LEAVING,
            InstanceState.UNKNOWN,
        }
    assert (description.state is GroupState.EMPTY) == (not view.instances)
    assert (description.state is GroupState.PREPARING_REBALANCE) == (bool(view.instances) and not living)


@given(view=VIEWS, random=st.randoms(use_true_random=False))
def test_the_states_do_not_depend_on_the_order_of_nodes(view: GroupView, random: Random) -> None:
    instances, owners, offsets = list(view.instances), list(view.owners), list(view.offsets)
    for nodes in (instances, owners, offsets):
        random.shuffle(nodes)
    other = describe(GroupView("billing", True, tuple(instances), tuple(owners), tuple(offsets), (), view.partitions))
    one = describe(view)
    assert other.state is one.state
    assert other.instances == one.instances
    assert other.unowned == one.unowned
    assert set(other.orphans) == set(one.orphans)
    assert [(p.at, p.offset) for p in other.partitions] == [(p.at, p.offset) for p in one.partitions]


@given(view=VIEWS)
def test_a_description_is_the_same_after_pickling(view: GroupView) -> None:
    description = describe(view)
    assert pickle.loads(pickle.dumps(description)) == description


# Size


def large(members: int, partitions: int) -> GroupView:
    """Every member subscribes to every topic, by pattern or by name. All partitions except the last are owned."""
    topics = {f"topic-{number}": tuple(range(partitions // 20)) for number in range(20)}
    every = [TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers]
    by_name, by_pattern = Registration(dict.fromkeys(topics, 1)), Registration({"topic-.*": 1}, Pattern.WHITE_LIST)
    ids = [f"billing_host-{number:08}" for number in range(members)]
    return GroupView(
        "billing",
        instances=tuple(
            instance(id, session, by_name if session % 2 else by_pattern) for session, id in enumerate(ids, start=1)
        ),
        owners=tuple(
            Owner(at, f"{ids[number % members]}-0", number % members + 1) for number, at in enumerate(every[:-1])
        ),
        offsets=tuple(CommittedOffset("billing", at, 5) for at in every),
        partitions=topics,
    )


def steps(view: GroupView) -> int:
    """Return how many lines of Python `describe` executes; each iteration of a loop or comprehension counts."""
    counter = itertools.count()

    def count(_frame: FrameType, _event: str, _argument: object) -> Callable[..., Any]:
        next(counter)
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        describe(view)
    finally:
        sys.settrace(before)
    return next(counter)


def test_a_group_of_200_members_and_2000_partitions_is_described() -> None:
    description = describe(large(200, 2000))
    assert (description.members, len(description.partitions), description.owned) == (200, 2000, 1999)
    assert description.state is GroupState.COMPLETING_REBALANCE
    assert set(states(description).values()) == {InstanceState.AWAITING_SYNC}


def test_the_work_grows_with_members_plus_partitions_not_with_their_product() -> None:
    small, more_partitions, more_members = steps(large(50, 500)), steps(large(50, 2000)), steps(large(200, 500))
    assert more_partitions < 5 * small  # four times as many, and a little more for sorting
    assert more_members < 1.5 * small  # most of the work is the partitions'
