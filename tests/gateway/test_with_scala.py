"""Members of a gateway and real Scala members in one group, under load: shares, messages, offsets and attempts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.consumer.scala import ScalaConsumer, settle
from tests.consumer.with_scala.mixed_group import AS_IT_COMES, STILL, Feed, OffsetLog
from tests.testing.waiting import eventually
from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.core.rebalance.range import range_assignor
from zkgroups.core.rebalance.round_robin import round_robin_assignor
from zkgroups.gateway.zookeeper_storage.group_settings import GroupSettings
from zkgroups.testing import KafkaBroker

from .reading_member import ReadingMember
from .served import Served

pytestmark = pytest.mark.zookeeper

TOPIC = "gateway-with-scala"
LONGEST = 120.0


@pytest.fixture(scope="module")
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    """A registry at the ZooKeeper of the old broker."""
    legacy_kafka.create_topic(TOPIC, 7)
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield registry


def settled(registry: Registry, group: Consumergroup, *members: ScalaConsumer | ReadingMember) -> None:
    """Wait until all members have exactly the shares that Scala computes."""
    ids = {member.member_id if isinstance(member, ReadingMember) else member.id for member in members}
    owners = settle(registry, group, range_assignor, ids, still=STILL, timeout=LONGEST)
    for member in members:
        if isinstance(member, ReadingMember):
            share = {at for at, owner in owners.items() if owner == f"{member.member_id}-0"}
            assert eventually(lambda: member.assigned == share)  # noqa: B023 - it learns later what its gateway owns


def test_members_join_leave_and_are_killed(registry: Registry, legacy_kafka: KafkaBroker) -> None:
    group, feed = registry.group("gateway-mixed"), Feed(legacy_kafka, TOPIC)
    feed.some(10)
    with ExitStack() as stack:
        offsets = stack.enter_context(OffsetLog(group))
        served = stack.enter_context(Served(registry))

        def join(client_id: str) -> ReadingMember:
            member = ReadingMember(served, legacy_kafka.address, group.name, TOPIC, client_id=client_id)
            stack.enter_context(member)
            assert eventually(lambda: member.member_id)
            return member

        first = join("a")
        assert eventually(lambda: len(first.assigned) == 7)
        with feed:
            scala = stack.enter_context(
                ScalaConsumer(legacy_kafka, group.name, "scala", {TOPIC: 1}, config=AS_IT_COMES)
            )
            settled(registry, group, first, scala)
            second = join("z")
            settled(registry, group, first, scala, second)
            scala.kill()
            settled(registry, group, first, second)
            first.leave()
            settled(registry, group, second)
            scala.start()
            settled(registry, group, second, scala)
            second.leave()
            settled(registry, group, scala)
        log = scala.log_tail(10**6)
        print(log)
        everything = set(feed.texts)
        assert eventually(
            lambda: everything <= {*first.texts, *second.texts, *(message.text for message in scala.messages)}
        )
        assert offsets.fallen == {}
        assert "can't rebalance after" not in log
    assert {error for member in (first, second) for error in member.errors} <= {
        "MEMBER_ID_REQUIRED",
        "REBALANCE_IN_PROGRESS",
    }


def test_members_share_by_the_strategy_of_the_scala_members(registry: Registry, legacy_kafka: KafkaBroker) -> None:
    group = registry.group("gateway-roundrobin")
    with (
        Served(registry, settings=GroupSettings(foreign_assignor="roundrobin")) as served,
        ReadingMember(served, legacy_kafka.address, group.name, TOPIC) as member,
        ScalaConsumer(legacy_kafka, group.name, "scala", {TOPIC: 2}, strategy="roundrobin") as scala,
    ):
        assert eventually(lambda: member.member_id != "")
        ids = {member.member_id, scala.id}
        owners = settle(registry, group, round_robin_assignor, ids, still=STILL, timeout=LONGEST)
        own = {at for at, owner in owners.items() if owner == f"{member.member_id}-0"}
        assert own
        assert eventually(lambda: member.assigned == own)
        assert TopicPartition(TOPIC, 0) in owners
