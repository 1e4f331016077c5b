"""Descriptions of any group: consistent, independent of the order of nodes, and fast enough."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.znodes.describe_group import describe
from zkgroups.core.znodes.group_view import GroupView
from zkgroups.core.znodes.states import GroupState, InstanceState
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import (
    CommittedOffset,
    Owner,
    Pattern,
    Registration,
)

from .descriptions import MALFORMED, instance, states

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
        st.builds(CommittedOffset, st.just("billing"), PARTITIONS, st.integers(0, 9), committed_ms=st.integers(0, 9)),
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
