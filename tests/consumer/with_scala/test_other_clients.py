"""Registrations of other clients beside members of zkgroups: counted, named, or set aside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lasting import lasting_client
from tests.waiting import eventually
from zkgroups import Consumergroup, Owner, Registry, TopicPartition
from zkgroups.consumer.events import EventKind
from zkgroups.core.rebalance.assignors import range_assignor
from zkgroups.testing import KafkaBroker

from ...printing_consumer import LONGEST
from ..pykafka_member import PykafkaMember
from ..reader import Reader
from ..scala import await_owners, await_quiet, settle
from .conftest import Ours, Scala
from .mixed_group import Feed


@pytest.fixture
def raw(legacy_kafka: KafkaBroker) -> Iterator[Any]:
    """A plain kazoo client, which writes nodes byte by byte."""
    with lasting_client(legacy_kafka.zookeeper) as client:
        yield client


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


@pytest.fixture
def pykafka(legacy_kafka: KafkaBroker, group: Consumergroup, topic: str) -> Iterator[PykafkaMember]:
    """A real member of pykafka, which owns all partitions: it does not count the members of other clients."""
    with PykafkaMember(legacy_kafka, group.name, topic) as member:
        assert eventually(lambda: len(member.partitions) == 7), member.lines()
        yield member


def test_a_pykafka_member_is_counted_and_named_and_its_partitions_are_waited_for(
    group: Consumergroup, topic: str, ours: Ours, feed: Feed, pykafka: PykafkaMember
) -> None:
    """Its owner nodes have other names, so they do not prevent claims of zkgroups members."""
    [theirs] = [instance.id for instance in group.instances()]
    everything = {TopicPartition(topic, number) for number in range(7)}
    assert {owner.at for owner in group.owners() if isinstance(owner, Owner) and owner.id == theirs} == everything
    mine = ours("ours:1", {topic: 1})
    assert eventually(lambda: any("pykafka" in detail for detail in told(mine, EventKind.FOREIGN)))
    in_order = sorted(everything)
    share = set(in_order[:4] if mine.id < theirs else in_order[4:])
    assert eventually(
        lambda: share == set().union(*(event.at for event in mine.events if event.kind is EventKind.WAITING)),
        timeout=LONGEST,
    ), mine.events
    feed.some(3)
    assert eventually(lambda: len(pykafka.read) == 21), pykafka.lines()
    await_quiet(group, 1.0)
    assert mine.messages == []
    assert not mine.member.assignment

    pykafka.leave()

    assert eventually(lambda: mine.member.assignment == everything)


def test_a_scala_member_beside_zkgroups_members_is_named(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    theirs, mine = scala("s", {topic: 1}), ours("ours:1", {topic: 1})
    settle(registry, group, range_assignor, {theirs.id, mine.id})

    assert eventually(lambda: any("scala" in detail for detail in told(mine, EventKind.FOREIGN)))
