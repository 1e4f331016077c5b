"""Descriptions of groups: states, owners and orphans, blocked partitions, topics and totals, of any group."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import (
    CommittedOffset,
    ForbiddenNode,
    GroupDescription,
    GroupState,
    InstanceDescription,
    InstanceState,
    MalformedNode,
    Owner,
    Pattern,
    Registration,
    TopicPartition,
)
from zkgroups.core.times import from_ms
from zkgroups.core.znodes.group_description import BlockedPartition, GroupView, Obstacle, describe

from ..groups import PATHS, at, described, member, offset, owner, view

BAD = member("bad", b"", session=99)
JAVA = member("java", b'{"pattern":"white_list","subscription":{"(a)\\\\1":1}}', session=7)
BOTH = ["orders", "refunds"]
ME, YOU = member("me"), member("you", session=2)
MINE = owner("orders/0", "me"), owner("orders/1", "me")
HIDDEN_OWNER = ForbiddenNode(f"{PATHS.owners}/orders/0")
UNREADABLE_OWNER = MalformedNode(f"{PATHS.owners}/orders/0", b"\xff", "no text", session=7)


def told(found: GroupDescription) -> str:
    """A description in one line: `orders/0+orders/1` stands for partitions."""
    instances = [
        f"{each.id}={each.state}" + (f":{names(each.owned)}" if each.owned else "") for each in found.instances
    ]
    parts = {
        "": [found.state, *instances],
        "unowned": [names(found.unowned)],
        "orphans": [f"{each.id}@{each.session}" for each in found.orphans],
        "blocked": [f"{each.at}: {each.obstacle}" for each in found.blocked],
    }
    return ", ".join(f"{what} {' '.join(part)}".strip() for what, part in parts.items() if any(part))


def names(partitions: tuple[TopicPartition, ...]) -> str:
    return "+".join(map(str, partitions))


DESCRIPTIONS = {
    # States of a group
    "without a znode": (described(exists=False), "Dead"),
    "without instances": (described(), "Empty"),
    "with offsets only": (described(offset("orders/1")), "Empty"),
    "with an orphan only": (described(MINE[0]), "Empty me=Leaving:orders/0, orphans me@1"),
    "without owners": (described(ME), "PreparingRebalance me=Joining, unowned orders/0+orders/1"),
    "partly owned": (described(ME, MINE[0]), "CompletingRebalance me=AwaitingSync:orders/0, unowned orders/1"),
    "owned": (
        described(ME, YOU, MINE[0], owner("orders/1", "you-0", 2)),
        "Stable me=Stable:orders/0 you=Stable:orders/1",
    ),
    "with an offset of another topic": (
        described(ME, *MINE, offset("refunds/0"), orders=2, refunds=9),
        "Stable me=Stable:orders/0+orders/1",
    ),
    "with an offset of a missing partition": (
        described(ME, *MINE, offset("orders/9")),
        "Stable me=Stable:orders/0+orders/1",
    ),
    # States of an instance
    "a spare instance": (described(ME, YOU, *MINE), "Stable me=Stable:orders/0+orders/1 you=Stable"),
    "a joining instance": (
        described(ME, YOU, MINE[0]),
        "CompletingRebalance me=AwaitingSync:orders/0 you=Joining, unowned orders/1",
    ),
    "an instance whose topics are all owned, in a group whose topics are not": (
        described(ME, member("you", ["refunds"], session=2), *MINE, orders=2, refunds=1),
        "CompletingRebalance me=Stable:orders/0+orders/1 you=Joining, unowned refunds/0",
    ),
    "an instance that is leaving": (
        described(owner("orders/1", "gone", 7), owner("orders/0", "gone", 7), member("c"), member("b", session=2)),
        "PreparingRebalance b=Joining c=Joining gone=Leaving:orders/0+orders/1, unowned orders/0+orders/1, "
        "orphans gone@7 gone@7, blocked orders/0: not registered orders/1: not registered",
    ),
    # Registrations without a session
    "a registration without a session": (described(member("gone", session=0), offset("orders/0")), "Empty gone=Dead"),
    "one beside an instance": (
        described(member("gone", session=0), ME, *MINE),
        "Stable gone=Dead me=Stable:orders/0+orders/1",
    ),
    "one that an owner names": (
        described(member("here", session=0), member("gone", session=0), owner("orders/0", "here", 7)),
        "PreparingRebalance gone=Dead here=Joining here=Leaving:orders/0, unowned orders/0+orders/1, orphans here@7, "
        "blocked orders/0: not registered",
    ),
    "one that an owner with a stream names": (
        described(member("here", session=0), owner("orders/0", "here-0", 7)),
        "PreparingRebalance here=Joining here-0=Leaving:orders/0, unowned orders/0+orders/1, orphans here-0@7, "
        "blocked orders/0: not registered",
    ),
    "one that an unreadable owner may name": (
        described(member("here", session=0), UNREADABLE_OWNER),
        "PreparingRebalance here=Joining, unowned orders/0+orders/1, blocked orders/0: owner cannot be read",
    ),
    "one that a forbidden owner may name": (
        described(member("here", session=0), HIDDEN_OWNER),
        "Unknown here=Joining, unowned orders/0+orders/1",
    ),
    "a forbidden registration": (
        described(member("x", ForbiddenNode(f"{PATHS.ids}/x"), session=0)),
        "Unknown x=Unknown",
    ),
    # Topics
    "an unregistered topic has the partitions found in the group": (
        described(member("me", ["gone"]), owner("gone/4", "me"), offset("gone/2"), orders=2),
        "CompletingRebalance me=AwaitingSync:gone/4, unowned gone/2",
    ),
    "an unknown topic has no partitions": (described(member("me", ["gone"])), "PreparingRebalance me=Stable"),
    "a white list": (
        described(member("me", Registration({"order.*": 1}, Pattern.WHITE_LIST)), orders=1, refunds=1),
        "PreparingRebalance me=Joining, unowned orders/0",
    ),
    "a black list": (
        described(member("me", Registration({"order.*": 1}, Pattern.BLACK_LIST)), orders=1, refunds=1, __offsets=50),
        "PreparingRebalance me=Joining, unowned __offsets/0"
        + "".join(f"+__offsets/{n}" for n in range(1, 50))
        + "+refunds/0",
    ),
    # Blocked partitions
    "an orphan blocks only a subscribed partition": (
        described(ME, owner("orders/1", "me", 7), owner("refunds/0", "gone", 8), orders=2, refunds=1),
        "PreparingRebalance me=Joining gone=Leaving:refunds/0 me=Leaving:orders/1, unowned orders/0+orders/1, "
        "orphans me@7 gone@8, blocked orders/1: not registered",
    ),
    "an owner that does not subscribe": (
        described(ME, member("cron", (), session=2), owner("orders/0", "cron", 2), MINE[1]),
        "Stable cron=Stable:orders/0 me=Stable:orders/1, blocked orders/0: not subscribed",
    ),
    "one that nobody waits for": (
        described(member("cron", (), session=2), owner("orders/0", "cron", 2)),
        "Stable cron=Stable:orders/0",
    ),
    "an owner with a malformed registration": (
        described(ME, BAD, owner("orders/0", "bad-0", 99), MINE[1]),
        "Stable bad=Unknown:orders/0 me=Stable:orders/1, blocked orders/0: registration cannot be read",
    ),
    "an owner whose subscription cannot be evaluated": (
        described(ME, JAVA, owner("orders/0", "java-0", 7), MINE[1]),
        "Stable java=Unknown:orders/0 me=Stable:orders/1",
    ),
    "an owner node of pykafka": (
        described(ME, owner("orders/0", "gone", 9, f"{PATHS.owners}/b'orders'/1-0"), MINE[1]),
        "CompletingRebalance me=AwaitingSync:orders/1 gone=Leaving:orders/0, unowned orders/0, orphans gone@9",
    ),
    "registrations that are hidden": (
        described(ME, owner("orders/0", "gone", 9), ForbiddenNode(PATHS.ids)),
        "Unknown me=Joining gone=Leaving:orders/0, unowned orders/0+orders/1, orphans gone@9",
    ),
    "a registration that is hidden": (
        described(ME, owner("orders/0", "gone", 9), ForbiddenNode(f"{PATHS.ids}/somebody")),
        "Unknown me=Joining gone=Leaving:orders/0, unowned orders/0+orders/1, orphans gone@9",
    ),
    "an owner that is hidden": (described(ME, HIDDEN_OWNER), "Unknown me=Joining, unowned orders/0+orders/1"),
    "offsets that are hidden": (
        described(ME, *MINE, ForbiddenNode(PATHS.offsets)),
        "Stable me=Stable:orders/0+orders/1",
    ),
}


@pytest.mark.parametrize("group", DESCRIPTIONS)
def test_a_group_is_described(group: str) -> None:
    description, expected = DESCRIPTIONS[group]
    assert told(description) == expected
    assert pickle.loads(pickle.dumps(description)) == description


# Rule 1: the id and the session
RULE_1 = {
    "another session": (
        described(member("me", session=2), MINE[0], owner("orders/1", "me", 2)),
        "CompletingRebalance me=AwaitingSync:orders/1 me=Leaving:orders/0, unowned orders/0, orphans me@1, "
        "blocked orders/0: not registered",
    ),
    "another name": (
        described(ME, owner("orders/0", "you"), MINE[1]),
        "CompletingRebalance me=AwaitingSync:orders/1 you=Leaving:orders/0, unowned orders/0, orphans you@1, "
        "blocked orders/0: not registered",
    ),
    # The owner node of a Scala member `worker` holds `worker-1`, which is also the id of another instance.
    "a stream that is the id of another session": (
        described(
            *(member("worker"), member("worker-1", session=2)),
            *(owner("orders/0", "worker-1"), owner("orders/1", "worker-1", 2)),
        ),
        "Stable worker=Stable:orders/0 worker-1=Stable:orders/1",
    ),
    "a stream that is an id of the same session": (
        described(member("worker"), member("worker-1"), owner("orders/0", "worker-1"), owner("orders/1", "worker-0")),
        "Stable worker=Stable:orders/1 worker-1=Stable:orders/0",
    ),
}


@pytest.mark.parametrize("owned", RULE_1)
def test_rule_1_an_owner_is_an_instance_only_with_its_id_and_its_session(owned: str) -> None:
    description, expected = RULE_1[owned]
    assert told(description) == expected
    assert [each.at for each in description.partitions if each.instance is None] == list(description.unowned)


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
    node = MalformedNode(f"{PATHS.root}/{path}", b"", "empty", session=9, created_at=from_ms(17))
    description = described(ME, node)
    blocked = [BlockedPartition(at("orders/1"), node, Obstacle.OWNER_UNREADABLE)] if found else []
    assert list(description.blocked) == blocked
    assert [each.since for each in description.blocked] == [from_ms(17)] * found
    assert description.unreadable == (node,)


def test_a_partition_is_blocked_since_its_owner_node_was_created() -> None:
    holder = replace(owner("orders/0", "gone", 9), claimed_at=from_ms(1234))
    [found] = described(ME, holder).blocked
    assert found == BlockedPartition(at("orders/0"), holder, Obstacle.NOT_REGISTERED)
    assert found.since == from_ms(1234)


@pytest.mark.parametrize("order", [1, -1])
def test_both_owners_of_a_partition_in_two_dialects_are_described(order: int) -> None:
    pykafka = owner("orders/0", "py", 2, f"{PATHS.owners}/b'orders'/1-0")
    description = described(ME, member("py", session=2), *(MINE[0], pykafka)[::order])
    assert told(description).startswith(
        "CompletingRebalance me=AwaitingSync:orders/0 py=AwaitingSync:orders/0, unowned"
    )
    assert set(description.partitions[0].owners) == {MINE[0], pykafka}
    assert description.partitions[0].instance == ("me", "py")[::order][0]
    assert (description.owned, len(description.partitions)) == (1, 2)

    twice = described(ME, *(MINE[0], replace(pykafka, id="me", session=1))[::order])
    assert told(twice) == "CompletingRebalance me=AwaitingSync:orders/0, unowned orders/1"
    orphaned = described(ME, *(MINE[0], pykafka)[::order])
    assert (orphaned.partitions[0].instance, orphaned.orphans) == ("me", (pykafka,))


def test_an_instance_has_all_fields_of_its_registration_and_a_leaving_one_those_of_its_owners() -> None:
    node = member("me", session=7)
    description = described(node, owner("orders/1", "me-0", 7), owner("orders/0", "gone", 8))
    assert description.instances == (
        InstanceDescription("me", InstanceState.AWAITING_SYNC, 7, from_ms(1007), node.registration, (at("orders/1"),)),
        InstanceDescription("gone", InstanceState.LEAVING, 8, None, None, (at("orders/0"),)),
    )


def test_unreadable_registrations_do_not_stop_the_others() -> None:
    description = described(BAD, JAVA, ME, *MINE)
    assert told(description) == "Stable bad=Unknown java=Unknown me=Stable:orders/0+orders/1"
    assert [node.path for node in description.unreadable] == [f"{PATHS.ids}/bad", f"{PATHS.ids}/java"]
    assert (description.members, description.unevaluable) == (3, ("java",))


def test_the_totals_count_each_thing_once() -> None:
    description = described(
        *(member("a"), member("b", BOTH, session=2), member("gone", session=0)),
        *(owner("orders/0", "a"), owner("orders/1", "b", 2), owner("refunds/0", "gone", 3)),
        *(offset("orders/0", 5, 100), offset("orders/1", 6, 300), offset("old/7", 7, 200)),
        orders=3,
        refunds=2,
    )
    assert (description.members, description.owned, description.offsets) == (3, 2, 3)
    assert (description.topics, description.subscribed) == (("old", "orders", "refunds"), ("orders", "refunds"))
    assert names(description.unowned) == "orders/2+refunds/0+refunds/1"
    assert len(description.partitions) == 6
    assert description.last_commit_at == from_ms(300)
    assert described(ME).last_commit_at is None
    only_offsets = described(offset("orders/1", 7, 50), offset("gone/0", 8, 60))
    assert [(p.at, p.offset) for p in only_offsets.partitions] == [
        (at("gone/0"), offset("gone/0", 8, 60)),
        (at("orders/1"), offset("orders/1", 7, 50)),
    ]


def test_partitions_are_sorted_as_numbers_and_may_have_gaps() -> None:
    description = describe(view(ME, partitions={"orders": (2, 10, 9)}))
    assert [each.at.partition for each in description.partitions] == [2, 9, 10]
    assert names(description.unowned) == "orders/2+orders/9+orders/10"


# Any group

IDS = st.sampled_from(["a", "a-0", "b", "b-1", "c"])
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["orders", "refunds", "gone"]), st.integers(0, 3))
SUBSCRIPTIONS = st.one_of(
    st.sets(st.sampled_from(["orders", "refunds", "gone"])),
    st.just(Registration({"o.*": 1}, Pattern.WHITE_LIST)),
    st.just(b""),
)
OFFSETS = st.builds(
    CommittedOffset, st.just("billing"), PARTITIONS, st.integers(0, 9), committed_at=st.integers(0, 9).map(from_ms)
)
VIEWS = st.builds(
    lambda instances, owners, offsets: view(
        *(member(id, subscribed, session=session) for id, session, subscribed in instances),
        *(Owner(*each) for each in owners),
        *offsets,
        partitions={"orders": (0, 1), "refunds": (0,)},
    ),
    st.lists(st.tuples(IDS, st.integers(1, 3), SUBSCRIPTIONS), unique_by=lambda each: each[0]),
    st.lists(st.tuples(PARTITIONS, IDS, st.integers(1, 3)), max_size=8),
    st.lists(OFFSETS, unique_by=lambda each: each.at),
)


def ours(view: GroupView, owner: Owner) -> set[str]:
    """The instances that match an owner: same session, and same id with or without a stream."""
    same = {node.id for node in view.instances if node.session == owner.session}
    return {owner.id} & same or {id for id in same if owner.id in {f"{id}-{stream}" for stream in range(10)}}


@given(view=VIEWS)
def test_the_description_of_any_group_is_consistent(view: GroupView) -> None:
    description = describe(view)
    living = {node.at for node in view.owners if ours(view, node)}
    orphans = {node for node in view.owners if not ours(view, node)}

    assert set(description.orphans) == orphans
    assert {p.at for p in description.partitions if p.instance is not None} == living
    assert not living & set(description.unowned)
    assert {p.at for p in description.partitions} >= {
        *(n.at for n in (*view.owners, *view.offsets)),
        *description.unowned,
    }
    held = {blocked.at for blocked in description.blocked}
    assert held <= {node.at for node in view.owners}
    assert {at.topic for at in held} <= set(description.subscribed)
    assert held >= {node.at for node in orphans} & set(description.unowned)
    for each in description.instances:
        mine = {node.at for node in orphans if (node.id, node.session) == (each.id, each.session)}
        if each.state is not InstanceState.LEAVING:
            mine = {node.at for node in view.owners if each.id in ours(view, node)}
        assert set(each.owned) == mine
    unsettled = {each.state for each in description.instances} & {InstanceState.JOINING, InstanceState.AWAITING_SYNC}
    assert description.state is not GroupState.STABLE or not (description.unowned or unsettled)
    assert (description.state is GroupState.EMPTY) == (not view.instances)
    assert (description.state is GroupState.PREPARING_REBALANCE) == (bool(view.instances) and not living)


@given(view=VIEWS, random=st.randoms(use_true_random=False))
def test_the_states_do_not_depend_on_the_order_of_nodes(view: GroupView, random: Random) -> None:
    nodes = {name: list(getattr(view, name)) for name in ("instances", "owners", "offsets")}
    for each in nodes.values():
        random.shuffle(each)
    other, one = describe(replace(view, **{name: tuple(each) for name, each in nodes.items()})), describe(view)
    assert (other.state, other.instances, other.unowned) == (one.state, one.instances, one.unowned)
    assert set(other.orphans) == set(one.orphans)
    assert [(p.at, p.offset) for p in other.partitions] == [(p.at, p.offset) for p in one.partitions]


# Size


def large(members: int, partitions: int) -> GroupView:
    """Every member subscribes to every topic, by pattern or by name. All partitions except the last are owned."""
    topics = {f"topic-{number}": range(partitions // 20) for number in range(20)}
    every = [TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers]
    pattern = Registration({"topic-.*": 1}, Pattern.WHITE_LIST)
    ids = [f"billing_host-{number:08}" for number in range(members)]
    return view(
        *(member(id, topics if n % 2 else pattern, session=n) for n, id in enumerate(ids, start=1)),
        *(Owner(at, f"{ids[n % members]}-0", n % members + 1) for n, at in enumerate(every[:-1])),
        *(CommittedOffset("billing", at, 5) for at in every),
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


def test_the_work_grows_with_members_plus_partitions_not_with_their_product() -> None:
    small, more_partitions, more_members = steps(large(50, 500)), steps(large(50, 2000)), steps(large(200, 500))
    assert more_partitions < 5 * small  # four times as many, and a little more for sorting
    assert more_members < 1.5 * small  # most of the work is the partitions'
    found = describe(large(200, 2000))
    assert (found.state, found.members, len(found.partitions), found.owned) == ("CompletingRebalance", 200, 2000, 1999)
    assert {each.state for each in found.instances} == {InstanceState.AWAITING_SYNC}
