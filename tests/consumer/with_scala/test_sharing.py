"""Scala members and members of zkgroups compute the same shares."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.waiting import eventually
from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.core.rebalance.assignors import range_assignor, round_robin_assignor
from zkgroups.core.rebalance.members import Assignor
from zkgroups.testing import KafkaBroker

from ..reader import Reader
from ..scala import ScalaConsumer, await_owners, await_quiet, await_stillness, settle
from .conftest import Ours, Scala
from .mixed_group import STILL, Feed, named, standing, texts

STRATEGIES = [
    pytest.param("range", range_assignor, id="range"),
    pytest.param("roundrobin", round_robin_assignor, id="roundrobin"),
]


@pytest.mark.parametrize(("strategy", "assignor"), STRATEGIES)
def test_a_scala_member_and_a_zkgroups_member_compute_the_same_shares(
    strategy: str, assignor: Assignor, registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    theirs = scala("s", {topic: 1}, strategy=strategy)
    mine = ours("ours:1", {topic: 1}, foreign_assignor=strategy)

    owners = settle(registry, group, assignor, {theirs.id, mine.id}, still=STILL)

    assert named(owners) == {theirs.id, mine.id}
    share = {at for at, id in owners.items() if id == f"{mine.id}-0"}
    assert eventually(lambda: mine.member.assignment == share)


@pytest.mark.parametrize(("strategy", "assignor"), STRATEGIES)
def test_a_scala_member_that_also_names_a_topic_with_a_slash_has_its_share(
    strategy: str, assignor: Assignor, registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    theirs = scala("s", {topic: 1, "un/known": 2}, strategy=strategy)
    mine = ours("ours:1", {topic: 1}, foreign_assignor=strategy)
    owners = settle(registry, group, assignor, {theirs.id, mine.id}, still=STILL)
    assert named(owners) == {theirs.id, mine.id}


def test_a_registration_without_a_session_counts_as_it_does_for_scala_members(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    """No member reads its share. But the two live members do not want the same partitions."""
    group.create()
    gone = json.dumps({"version": 1, "subscription": {topic: 1}, "pattern": "static", "timestamp": "1795255170109"})
    registry.client.create(group.paths.instance("0-gone"), gone.encode())
    theirs = scala("s", {topic: 1})
    mine = ours("zz:1", {topic: 1})
    expected = {3: f"{theirs.id}-0", 4: f"{theirs.id}-0", 5: "zz:1-0", 6: "zz:1-0"}
    await_owners(group, {TopicPartition(topic, number): id for number, id in expected.items()})
    await_stillness(group, STILL)
    assert eventually(lambda: {at.partition for at in mine.member.assignment} == {5, 6})


@pytest.mark.parametrize(("strategy", "assignor"), STRATEGIES)
def test_four_members_with_streams_and_two_topics_compute_the_same_shares(
    strategy: str,
    assignor: Assignor,
    registry: Registry,
    group: Consumergroup,
    topic: str,
    scala: Scala,
    ours: Ours,
    legacy_kafka: KafkaBroker,
) -> None:
    other = f"{topic}-too"
    legacy_kafka.create_topic(other, 5)
    members: list[ScalaConsumer | Reader] = [
        scala("s1", {topic: 2, other: 1}, strategy=strategy),
        scala("s2", {topic: 1}, strategy=strategy),
        ours("ours:1", {topic: 1, other: 2}, foreign_assignor=strategy),
        ours("zz:1", {topic: 1}, foreign_assignor=strategy),
    ]

    owners = settle(registry, group, assignor, {member.id for member in members}, still=2 * STILL, streams=False)

    assert len(owners) == 12
    await_quiet(group, 2.0, lambda: standing(*members))


def test_a_scala_member_with_a_pattern_shares_with_a_zkgroups_member_with_topics(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    members: list[ScalaConsumer | Reader] = [
        scala("s", f"{topic}.*|no-such-topic", streams=2),
        ours("ours:1", {topic: 2}),
    ]

    owners = settle(registry, group, range_assignor, {member.id for member in members}, still=STILL, streams=False)

    assert named(owners) == {member.id for member in members}


def test_a_settled_group_does_not_rebalance(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours, feed: Feed
) -> None:
    members: list[ScalaConsumer | Reader] = [scala("s", {topic: 1}), ours("ours:1", {topic: 1})]
    settle(registry, group, range_assignor, {member.id for member in members}, still=2 * STILL, streams=False)

    with feed:
        await_quiet(group, 3.0, lambda: standing(*members))

    assert eventually(lambda: texts(*members) == Counter(feed.texts))
