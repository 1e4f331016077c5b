"""Members of other clients and consumers of zkgroups compute the same shares, and are named."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest

from tests.messages.looping import Loop, Topic, read_by
from tests.waiting import eventually
from zkgroups import Consumergroup, EventKind, Owner, Registry, TopicPartition
from zkgroups.core.rebalance.assignors import range_assignor, round_robin_assignor
from zkgroups.core.rebalance.members import Assignor
from zkgroups.testing import KafkaBroker

from ..pykafka_member import PykafkaMember
from ..scala import STILL, ScalaConsumer, await_owners, await_stillness, settle, whose
from .conftest import OffsetLog, Ours, Scala


def standing(*members: ScalaConsumer | Loop) -> list[object]:
    """Counters of each member that change when it rebalances."""
    return [each.rebalances if isinstance(each, ScalaConsumer) else len(each.events) for each in members]


@pytest.mark.parametrize(("strategy", "assignor"), [("range", range_assignor), ("roundrobin", round_robin_assignor)])
def test_four_members_with_streams_and_two_topics_compute_the_same_shares(
    strategy: str,
    assignor: Assignor,
    registry: Registry,
    group: Consumergroup,
    topic: Topic,
    make_topic: Callable[[int], Topic],
    scala: Scala,
    loop: Ours,
) -> None:
    """Also if one of them names a topic with a slash."""
    name, other = topic.name, make_topic(5).name
    members = [
        scala("s1", {name: 2, other: 1}, strategy=strategy),
        scala("s2", {name: 1, "un/known": 2}, strategy=strategy),
        loop(topic, topics={name: 1, other: 2}, id="ours:1", foreign_assignor=strategy),
        loop(topic, id="zz:1", foreign_assignor=strategy),
    ]
    owners = settle(registry, group, assignor, {member.id for member in members}, still=2 * STILL)
    assert len(owners) == 12
    assert set(map(whose, owners.values())) == {member.id for member in members}
    await_stillness(group, 2.0, lambda: standing(*members))


def test_a_settled_group_does_not_rebalance_and_each_message_is_read_once_by_the_owner_of_its_partition(
    registry: Registry, group: Consumergroup, topic: Topic, scala: Scala, loop: Ours, offsets: OffsetLog
) -> None:
    theirs, mine = scala("s", {topic.name: 1}), loop(topic, id="ours:1")
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=2 * STILL)
    before = (theirs.rebalances, mine.consumer.stats().member.generations)
    topic.write(20)
    assert eventually(lambda: read_by(theirs, mine) == Counter(topic.texts))
    for member in (theirs, mine):
        assert {at for at, _offset, _text in member.messages} == {at for at in owners if whose(owners[at]) == member.id}
    assert eventually(lambda: offsets.last == dict.fromkeys(owners, 20))
    assert offsets.fallen == {}
    assert (theirs.rebalances, mine.consumer.stats().member.generations) == before
    assert any("scala" in event.detail for event in mine.told(EventKind.FOREIGN))


def test_a_registration_without_a_session_counts_as_it_does_for_scala_members(
    registry: Registry, group: Consumergroup, topic: Topic, scala: Scala, loop: Ours
) -> None:
    """No member reads its share. But the two live members do not want the same partitions."""
    group.create()
    gone = {"version": 1, "subscription": {topic.name: 1}, "pattern": "static", "timestamp": "1795255170109"}
    registry.client.create(group.paths.instance("0-gone"), json.dumps(gone).encode())
    theirs, mine = scala("s", {topic.name: 1}), loop(topic, id="zz:1")
    expected = {3: f"{theirs.id}-0", 4: f"{theirs.id}-0", 5: "zz:1-0", 6: "zz:1-0"}
    await_owners(group, {topic.ats[number]: id for number, id in expected.items()})
    await_stillness(group, STILL)
    mine.until_holding(*topic.ats[5:])


def test_a_scala_member_with_a_pattern_shares_with_a_consumer_with_topics(
    registry: Registry, group: Consumergroup, topic: Topic, scala: Scala, loop: Ours
) -> None:
    members = [scala("s", f"{topic.name}.*|no-such-topic", streams=2), loop(topic, topics={topic.name: 2}, id="ours:1")]
    owners = settle(registry, group, range_assignor, {member.id for member in members}, still=STILL)
    assert set(map(whose, owners.values())) == {member.id for member in members}


def test_a_pykafka_member_is_counted_and_named_and_its_partitions_are_waited_for(
    legacy_kafka: KafkaBroker, group: Consumergroup, topic: Topic, loop: Ours
) -> None:
    """Its owner nodes have other names, so they prevent no claims. It does not count the members of other clients."""
    with PykafkaMember(legacy_kafka, group.name, topic.name) as pykafka:
        assert eventually(lambda: len(pykafka.partitions) == 7), pykafka.lines()
        [theirs] = [instance.id for instance in group.instances()]
        owned = {owner.at for owner in group.owners() if isinstance(owner, Owner) and owner.id == theirs}
        assert owned == set(topic.ats)
        mine = loop(topic, id="ours:1")
        mine.until(lambda: any("pykafka" in event.detail for event in mine.told(EventKind.FOREIGN)))
        share: set[TopicPartition] = set(topic.ats[:4] if mine.id < theirs else topic.ats[4:])
        mine.until(lambda: set().union(*(event.at for event in mine.told(EventKind.WAITING))) == share)
        topic.write(3)
        assert eventually(lambda: len(pykafka.read) == 21), pykafka.lines()
        await_stillness(group, STILL)
        assert (mine.messages, mine.consumer.assignment) == ([], frozenset())
        pykafka.leave()
        mine.until_holding(*topic.ats)
