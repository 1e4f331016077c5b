"""The Scala members of these tests behave as Kafka's own: all other tests in this folder rely on it."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tests.testing.waiting import eventually, is_alive
from zkgroups import Consumergroup, Dialect, GroupState, Pattern, Registration, Registry, TopicPartition
from zkgroups.core.rebalance.range import range_assignor
from zkgroups.core.rebalance.round_robin import round_robin_assignor
from zkgroups.testing import KafkaBroker

from ..scala import Message, await_members, await_owners, await_quiet, settle
from .conftest import Scala
from .mixed_group import STILL


@pytest.mark.soak  # other tests of this folder would fail, too
def test_one_member_owns_all_partitions_by_its_streams(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala
) -> None:
    a = scala("a", {topic: 2})

    owners = settle(registry, group, range_assignor, {a.id})

    assert [owners[TopicPartition(topic, number)] for number in range(7)] == [f"{a.id}-0"] * 4 + [f"{a.id}-1"] * 3
    [instance] = group.instances()
    assert isinstance(instance.registration, Registration)
    assert instance.registration.dialect is Dialect.SCALA
    assert (instance.registration.pattern, dict(instance.registration.streams)) == (Pattern.STATIC, {topic: 2})
    assert group.describe().state is GroupState.STABLE


def test_two_members_split_a_topic_by_range(registry: Registry, group: Consumergroup, topic: str, scala: Scala) -> None:
    a, b = scala("a", {topic: 2}), scala("b", {topic: 1})

    owners = settle(registry, group, range_assignor, {a.id, b.id})

    numbers = [[at.partition for at in sorted(owners) if owners[at].startswith(member.id)] for member in (a, b)]
    assert numbers == [[0, 1, 2, 3, 4], [5, 6]]


@pytest.mark.soak  # other tests of this folder would fail, too
def test_two_members_split_two_topics_by_roundrobin(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, legacy_kafka: KafkaBroker
) -> None:
    legacy_kafka.create_topic(f"{topic}-too", 4)
    both = {topic: 1, f"{topic}-too": 2}
    a, b = (scala(name, both, strategy="roundrobin") for name in ("a", "b"))

    owners = settle(registry, group, round_robin_assignor, {a.id, b.id})

    assert len(set(owners.values())) == 4
    assert len(owners) == 11


@pytest.mark.soak  # other tests of this folder would fail, too
def test_a_member_of_two_topics_and_one_of_one_split_them_by_roundrobin(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, legacy_kafka: KafkaBroker
) -> None:
    legacy_kafka.create_topic(f"{topic}-too", 4)
    a = scala("a", {topic: 1, f"{topic}-too": 2}, strategy="roundrobin")
    b = scala("b", {topic: 1}, strategy="roundrobin")

    owners = settle(registry, group, round_robin_assignor, {a.id, b.id})

    assert {owners[TopicPartition(f"{topic}-too", number)] for number in range(4)} <= {f"{a.id}-0", f"{a.id}-1"}
    assert f"{b.id}-0" in owners.values()


@pytest.mark.soak  # other tests of this folder would fail, too
def test_a_member_with_a_pattern_owns_the_matching_topics(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala
) -> None:
    a = scala("a", f"{topic}|no-such-topic", streams=3)

    owners = settle(registry, group, range_assignor, {a.id})

    assert {at.topic for at in owners} == {topic}
    assert set(owners.values()) == {f"{a.id}-{stream}" for stream in range(3)}
    [instance] = group.instances()
    assert isinstance(instance.registration, Registration)
    assert instance.registration.pattern is Pattern.WHITE_LIST


@pytest.mark.soak  # other tests of this folder would fail, too
def test_a_stopped_member_commits_and_leaves_nothing_behind(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, legacy_kafka: KafkaBroker
) -> None:
    a = scala("a", {topic: 1}, config={"auto.commit.interval.ms": "60000"})
    settle(registry, group, range_assignor, {a.id})
    _produce(legacy_kafka, topic, 3, ["one", "two words"])
    read = [Message(TopicPartition(topic, 3), 0, "one"), Message(TopicPartition(topic, 3), 1, "two words")]
    assert eventually(lambda: a.messages == read)
    pid, folder = a.pid, a._folder

    a.stop()

    await_members(group, ())
    await_owners(group, {})
    assert not a.running
    assert not is_alive(pid)
    assert a.messages == read
    assert _committed(group, topic, 3) == 2
    a.close()
    assert folder is not None
    assert not folder.exists()


@pytest.mark.soak  # other tests of this folder would fail, too
def test_a_member_commits_the_messages_that_it_has_read(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, legacy_kafka: KafkaBroker
) -> None:
    a = scala("a", {topic: 1})
    settle(registry, group, range_assignor, {a.id})
    _produce(legacy_kafka, topic, 3, ["one", "two"])

    assert eventually(lambda: _committed(group, topic, 3) == 2)


@pytest.mark.soak  # other tests of this folder would fail, too
def test_a_member_can_be_started_again(registry: Registry, group: Consumergroup, topic: str, scala: Scala) -> None:
    a = scala("a", {topic: 1})
    settle(registry, group, range_assignor, {a.id})
    a.stop()

    a.start()

    settle(registry, group, range_assignor, {a.id})


@pytest.mark.soak  # other tests of this folder would fail, too
def test_a_settled_group_does_not_rebalance(registry: Registry, group: Consumergroup, topic: str, scala: Scala) -> None:
    a, b = scala("a", {topic: 1}), scala("b", {topic: 1})
    settle(registry, group, range_assignor, {a.id, b.id}, still=STILL)

    await_quiet(group, 1.0, lambda: (a.rebalances, b.rebalances))

    assert min(a.rebalances, b.rebalances) >= 1


def test_a_wait_that_times_out_reports_the_current_state(registry: Registry, group: Consumergroup) -> None:
    with pytest.raises(AssertionError, match=r"no members of .*nobody"):
        await_members(group, {"nobody"}, timeout=0.1)


def _produce(broker: KafkaBroker, topic: str, partition: int, texts: list[str]) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for text in texts:
        producer.produce(topic, text.encode(), partition=partition)
    assert producer.flush(30) == 0


def _committed(group: Consumergroup, topic: str, partition: int) -> int | None:
    found = group.offsets.fetch(TopicPartition(topic, partition))
    return None if found is None else found.offset
