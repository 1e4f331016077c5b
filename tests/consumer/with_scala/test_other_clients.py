"""Registrations of other clients beside members of zkgroups: counted, named, or set aside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.testing.waiting import eventually
from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.consumer.events import EventKind
from zkgroups.core.rebalance.range import range_assignor
from zkgroups.testing import KafkaBroker

from ..reader import Reader
from ..scala import await_owners, await_stillness, changes_within, settle
from .conftest import Ours, Scala


@pytest.fixture
def raw(legacy_kafka: KafkaBroker) -> Iterator[Any]:
    """A plain kazoo client, which writes nodes byte by byte."""
    client = KazooClient(legacy_kafka.zookeeper)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def register(raw: Any, group: Consumergroup) -> Callable[[str, bytes], None]:
    """Register a foreign member."""

    def register(id: str, data: bytes) -> None:
        raw.create(group.paths.instance(id), data, ephemeral=True, makepath=True)

    return register


def told(reader: Reader, kind: EventKind) -> list[str]:
    """The texts of the events of a kind."""
    return [event.detail for event in list(reader.events) if event.kind is kind]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"pattern":"static","subscription":["t"],"version":1}', b"\xff"])
def test_an_unreadable_registration_is_ignored_and_named(
    data: bytes,
    registry: Registry,
    group: Consumergroup,
    topic: str,
    ours: Ours,
    register: Callable[[str, bytes], None],
) -> None:
    register("third party", data)

    mine = ours("ours:1", {topic: 1})

    await_owners(group, {TopicPartition(topic, number): f"{mine.id}-0" for number in range(7)})
    assert eventually(lambda: any("third party" in detail for detail in told(mine, EventKind.MALFORMED)))


def test_a_member_of_kazoo_go_is_counted_and_named(
    registry: Registry, group: Consumergroup, topic: str, ours: Ours, register: Callable[[str, bytes], None]
) -> None:
    fields = {"pattern": "static", "subscription": {topic: 1}, "timestamp": 1795255543, "version": 1}
    register("go:1", json.dumps(fields).encode())

    mine = ours("ours:1", {topic: 1})

    # go:1 sorts first and has the larger half, but owns nothing.
    await_owners(group, {TopicPartition(topic, number): f"{mine.id}-0" for number in (4, 5, 6)})
    await_stillness(group, 1.0)
    assert eventually(lambda: any("kazoo-go" in detail for detail in told(mine, EventKind.FOREIGN)))


def test_a_member_of_pykafka_is_counted_and_named(
    registry: Registry, group: Consumergroup, topic: str, ours: Ours, register: Callable[[str, bytes], None]
) -> None:
    register("pykafka:1", topic.encode())

    mine = ours("ours:1", {topic: 1})

    await_owners(group, {TopicPartition(topic, number): f"{mine.id}-0" for number in range(4)})
    await_stillness(group, 1.0)
    assert eventually(lambda: any("pykafka" in detail for detail in told(mine, EventKind.FOREIGN)))


def test_a_member_waits_for_partitions_that_pykafka_owns(
    registry: Registry, group: Consumergroup, topic: str, ours: Ours, register: Callable[[str, bytes], None], raw: Any
) -> None:
    """Its owner nodes have other names, so they do not prevent claims of zkgroups members."""
    register("pykafka:1", topic.encode())
    held = f"{group.paths.owners}/b'{topic}'/1-2"
    raw.create(held, b"pykafka:1", ephemeral=True, makepath=True)

    mine = ours("ours:1", {topic: 1})

    partitions = {TopicPartition(topic, number) for number in range(4)}
    pykafkas = {TopicPartition(topic, 2)}
    assert eventually(lambda: mine.member.assignment == partitions - pykafkas)
    assert eventually(lambda: pykafkas in [event.at for event in mine.events if event.kind is EventKind.WAITING])
    assert changes_within(group, 1.0) == []
    raw.delete(held)
    assert eventually(lambda: mine.member.assignment == partitions)


def test_a_scala_member_beside_zkgroups_members_is_named(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    theirs, mine = scala("s", {topic: 1}), ours("ours:1", {topic: 1})
    settle(registry, group, range_assignor, {theirs.id, mine.id})

    assert eventually(lambda: any("scala" in detail for detail in told(mine, EventKind.FOREIGN)))
