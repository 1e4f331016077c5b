"""Assignors: range and round robin match Scala's consumer, and sticky moves the fewest partitions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups import TopicPartition
from zkgroups.core.rebalance.assignors import (
    ASSIGNORS,
    COMPUTED_BY_EACH,
    java_hash,
    range_assignor,
    round_robin_assignor,
    share_of,
    sticky_assignor,
)
from zkgroups.core.rebalance.members import Assignment, Members, Stream, assigned_to

TOPICS = ("orders", "payments", "t-1")
IDS = ("a", "b", "billing_h-17-ab12cd34", "billing_h-17-ab12cd34-0", "zz")


@st.composite
def groups(draw: st.DrawFn, streams: int = 12) -> Members:
    """Instances with different subscriptions, topics with gaps, and owners that partly no longer exist."""
    ids = draw(st.lists(st.sampled_from(IDS), unique=True, max_size=4))
    subscription = st.dictionaries(st.sampled_from((*TOPICS, "missing")), st.integers(0, streams), max_size=3)
    partitions = draw(st.dictionaries(st.sampled_from(TOPICS), st.sets(st.integers(0, 20), max_size=7), max_size=3))
    everything = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in sorted(numbers)]
    held = draw(st.sets(st.sampled_from(everything))) if everything else set()
    owners = {at: draw(st.sampled_from((*IDS, "gone"))) for at in sorted(held)}
    return Members({id: draw(subscription) for id in ids}, {t: sorted(ns) for t, ns in partitions.items()}, owners)


@given(members=groups(), seed=st.integers(0, 100))
def test_every_subscribed_partition_is_assigned_once_to_a_subscribing_stream_in_any_order_of_the_input(
    members: Members, seed: int
) -> None:
    rng = random.Random(seed)

    def shuffled(items: list) -> list:
        return rng.sample(items, len(items))

    other = Members(
        {id: dict(shuffled(list(members.streams[id].items()))) for id in shuffled(list(members.streams))},
        {topic: shuffled(list(members.partitions[topic])) for topic in shuffled(list(members.partitions))},
        dict(shuffled(list(members.owners.items()))),
    )
    for assignor in ASSIGNORS.values():
        assignment = assignor(members)
        assert set(assignment) == {at for topic in members.topics for at in members.in_order(topic)}
        for at, stream in assignment.items():
            assert 0 <= stream.number < members.streams[stream.instance][at.topic]
        assert sum(len(assigned_to(id, assignment)) for id in members.streams) == len(assignment)
        assert assignor(other) == assignment


# Kafka's rules on a full list of streams, as a reference.


def every_stream(members: Members, topic: str) -> list[Stream]:
    counts = {id: topics.get(topic, 0) for id, topics in members.streams.items()}
    return sorted((Stream(id, number) for id, count in counts.items() for number in range(count)), key=str)


def listed_range(members: Members) -> Iterator[tuple[TopicPartition, Stream]]:
    for topic in members.topics:
        partitions, streams = members.in_order(topic), every_stream(members, topic)
        for position, stream in enumerate(streams):
            start = len(partitions) // len(streams) * position + min(position, len(partitions) % len(streams))
            many = len(partitions) // len(streams) + (position < len(partitions) % len(streams))
            yield from ((at, stream) for at in partitions[start : start + many])


def listed_round_robin(members: Members) -> Iterator[tuple[TopicPartition, Stream]]:
    readers = {topic: set(every_stream(members, topic)) for topic in members.topics}
    walk = cycle(sorted(set().union(*readers.values()), key=str))
    partitions = [at for topic in members.topics for at in members.in_order(topic)]
    for at in sorted(partitions, key=lambda at: java_hash(f"{at.topic}-{at.partition}")):
        yield at, next(stream for stream in walk if stream in readers[at.topic])


LISTED = {"range": listed_range, "roundrobin": listed_round_robin}


# Java gives both topics the same hash. Their streams begin again after a round that only other topics have completed.
SAME_HASH = Members({"0": {"BB": 1}, "a": {"Aa": 1}, "c": {"Aa": 1}}, {"Aa": [0, 1, 3, 4], "BB": [2, 5]})
# `a-1` with stream 0 stands before `a` with stream 2, and after its stream 0 and 1.
DASH = Members({"a": {"t": 3}, "a-1": {"t": 1}}, {"t": range(4)})


@pytest.mark.parametrize("strategy", COMPUTED_BY_EACH)
@given(members=groups(streams=300))
@example(members=SAME_HASH)
@example(members=DASH)
def test_streams_are_assigned_as_in_a_full_list_and_each_member_computes_its_share(
    strategy: str, members: Members
) -> None:
    expected = dict(LISTED[strategy](members))
    whole = ASSIGNORS[strategy](members)
    assert whole == expected
    for id in (*members.streams, "gone"):
        assert list(share_of(id, strategy, members).items()) == list(assigned_to(id, whole).items())


@pytest.mark.parametrize("strategy", COMPUTED_BY_EACH)
@pytest.mark.parametrize("name", ["a", "5", "zz"])
def test_billions_of_streams_are_assigned_without_listing_them(strategy: str, name: str) -> None:
    """Compare with a list of a thousand streams: the result depends only on the first few."""
    topics = {"t": range(7), "u": range(5)}
    others = {"50": {"t": 1, "u": 1}, "a-1": {"t": 2}, "b": {"u": 3}}
    most, listed = (Members({**others, name: {"t": count, "u": count}}, topics) for count in (2**31 - 1, 1_000))
    expected = {at: stream.instance for at, stream in LISTED[strategy](listed)}
    assert {at: stream.instance for at, stream in ASSIGNORS[strategy](most).items()} == expected
    assert {at: id for id in most.streams for at in share_of(id, strategy, most)} == expected


def test_members_of_returns_the_first_of_billions_of_streams_in_text_order() -> None:
    members = Members({"a": {"t": 2**31 - 1}}, {"t": range(12)})
    numbers = [0, 1, *(10**digits for digits in range(1, 10)), 1_000_000_001]
    expected = dict(zip(members.in_order("t"), numbers, strict=True))
    assert share_of("a", "range", members) == expected
    assert [stream.number for stream in members.of("t")] == numbers
    dealt = sorted(expected, key=lambda at: java_hash(str(at).replace("/", "-")))
    assert share_of("a", "roundrobin", members) == dict(zip(dealt, numbers, strict=True))


@pytest.mark.parametrize("strategy", COMPUTED_BY_EACH)
def test_round_robin_skips_streams_without_visiting_each_one(strategy: str) -> None:
    """From `a-0`, and from every other stream of `t`, the next stream is the only one of `u`."""
    members = Members({"a": {"t": 2**31 - 1, "u": 1}, "b": {"u": 1}}, {"t": range(9), "u": range(40)})
    share = share_of("a", strategy, members)
    assert {stream for at, stream in share.items() if at.topic == "u"} == {0}
    assert sum(at.topic == "t" for at in share) == 9


def instances(assignment: Assignment) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for at, stream in sorted(assignment.items()):
        found.setdefault(str(stream), []).append(at.partition)
    return found


def test_range_matches_an_assignment_observed_on_a_server() -> None:
    three = Members({"a": {"t": 1}, "b": {"t": 1}, "zz": {"t": 1}}, {"t": range(6)})
    assert instances(range_assignor(three)) == {"a-0": [0, 1], "b-0": [2, 3], "zz-0": [4, 5]}
    uneven = Members({"a": {"t": 2}, "b": {"t": 1}}, {"t": range(7)})
    assert instances(range_assignor(uneven)) == {"a-0": [0, 1, 2], "a-1": [3, 4], "b-0": [5, 6]}


def test_java_hash_matches_java() -> None:
    hashes = {"": 0, "a": 97, "orders-0": 1234322248, "polygenelubricants": -(2**31), "tä-17": 113965603}
    assert {text: java_hash(text) for text in hashes} == hashes


def test_round_robin_deals_partitions_in_hash_order() -> None:
    dealt = round_robin_assignor(Members({"a": {"t": 1}, "b": {"t": 1}}, {"t": range(12)}))
    assert [at.partition for at in dealt] == sorted(range(12), key=lambda number: java_hash(f"t-{number}"))
    assert [str(stream) for stream in dealt.values()] == ["a-0", "b-0"] * 6


# Sticky


UNEVEN = {TopicPartition("t", number): "a" for number in range(4)}


@given(members=groups())
@example(members=Members({"a": {"t": 1}, "b": {"t": 1, "u": 1}}, {"t": range(4), "u": range(1)}, UNEVEN))
@example(
    members=Members({"a": {"t": 1}, "b": {"t": 1, "u": 1}, "c": {"u": 1}}, {"t": range(4), "u": range(2)}, UNEVEN),
)
def test_sticky_is_optimally_even_and_then_moves_the_fewest_partitions(members: Members) -> None:
    """Compare with every possible assignment, if there are not too many."""
    everything = [at for topic in members.topics for at in members.in_order(topic)]
    able = [[instance for instance, _count in members.readers(at.topic)] for at in everything]
    found = [sticky_assignor(members)[at].instance for at in everything]
    choices = 1
    for ids in able:
        choices *= len(ids)
    if choices > 5_000:
        return
    best = min((cost(members, everything, chosen) for chosen in product(*able)), default=(0, 0))
    assert cost(members, everything, found) == best


def cost(members: Members, everything: list[TopicPartition], chosen: tuple[str, ...] | list[str]) -> tuple[int, int]:
    """Return how uneven the assignment is, and how many partitions it moves unnecessarily."""
    loads = Counter(chosen)
    moved = 0
    for at, instance in zip(everything, chosen, strict=True):
        owner = members.owners.get(at)
        keeps = owner is not None and members.streams.get(owner, {}).get(at.topic, 0) > 0
        moved += keeps and instance != owner
    return sum(load**2 for load in loads.values()), moved


def test_sticky_finds_the_cheapest_of_several_chains() -> None:
    """There are too many assignments to compare them all."""
    subscriptions = {"a": "vx", "b": "vw", "c": "tx", "d": "tuv", "e": "w", "f": "tuv"}
    streams = {id: dict.fromkeys(topics, 1) for id, topics in subscriptions.items()}
    topics = {"t": range(1), "u": range(3), "v": range(3), "w": range(3), "x": range(3)}
    owned = {"v-0": "a", "v-2": "f", "w-0": "b"}
    owners = {TopicPartition(name[0], int(name[2:])): id for name, id in owned.items()}
    members = Members(streams, topics, owners)
    everything = [at for topic in topics for at in members.in_order(topic)]
    found = sticky_assignor(members)
    assert cost(members, everything, [found[at].instance for at in everything]) == (29, 0)


@pytest.mark.parametrize("count", [2, 7, 50])
def test_sticky_moves_only_the_share_of_a_leaving_or_joining_instance(count: int) -> None:
    ids = [f"m{number:03}" for number in range(count)]
    topics = {"t": range(4 * count), "u": range(6 * count)}
    before = sticky_assignor(Members({id: {"t": 1, "u": 1} for id in ids}, topics))
    owners = {at: stream.instance for at, stream in before.items()}
    left = sticky_assignor(Members({id: {"t": 1, "u": 1} for id in ids[1:]}, topics, owners))
    assert all(left[at].instance == owner for at, owner in owners.items() if owner != ids[0])
    owners = {at: stream.instance for at, stream in left.items()}
    came = sticky_assignor(Members({id: {"t": 1, "u": 1} for id in ids}, topics, owners))
    assert sum(came[at].instance != owner for at, owner in owners.items()) == 10
    assert set(Counter(stream.instance for stream in came.values()).values()) == {10}


def test_sticky_alternates_between_the_streams_of_an_instance() -> None:
    assignment = sticky_assignor(Members({"a": {"t": 2}}, {"t": range(5)}))
    assert [stream for _, stream in sorted(assignment.items())] == [Stream("a", n) for n in (0, 1, 0, 1, 0)]
