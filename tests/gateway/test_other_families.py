"""Clients of other families in ZooKeeper groups: Kafka's own Java clients of several releases, and clients in Go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.testing.waiting import eventually
from zkgroups import CommittedOffset, Consumergroup, Owner, Registry
from zkgroups.gateway.zookeeper_storage import ZooKeeperStorage, coordinator_config
from zkgroups.testing import KafkaBroker

from ..go_programs import built
from ..printing_consumer import LONGEST, PrintingConsumer
from .go_peers import SOURCES, GoConsumer
from .java_peers import JavaConsumer
from .running import RunningGateway, running

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(1000)]

STALLED_MS = 10_000
QUICK = replace(coordinator_config(), min_session_timeout=1.0, initial_rebalance_delay=0.2)

Make = Callable[[str, str, str], PrintingConsumer]


def java(release: str) -> Make:
    quick = {"session.timeout.ms": "2000"}
    return lambda bootstrap, group, topic: JavaConsumer(release, bootstrap, group, topic, config=quick)


def go(client: str) -> Make:
    return lambda *where: GoConsumer(client, *where)


FAMILIES = {
    "franz-go": go("franz-go"),
    "kafka-go": go("kafka-go"),
    "sarama": go("sarama"),
    "java-3.9.1": java("3.9.1"),
}


@pytest.fixture(scope="module")
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield registry


@pytest.fixture(scope="module")
def gateway(legacy_kafka: KafkaBroker, registry: Registry) -> Iterator[RunningGateway]:
    """A gateway with its groups in ZooKeeper."""
    with (
        ExitStack() as stack,
        running(
            legacy_kafka.address,
            config=QUICK,
            storage=lambda _counts, report: stack.enter_context(ZooKeeperStorage(registry, report)),
        ) as gateway,
    ):
        yield gateway


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    if not found.startswith("java"):
        built(SOURCES)
    return found


def committed(group: Consumergroup) -> dict[int, int]:
    return {each.at.partition: each.offset for each in group.offsets if isinstance(each, CommittedOffset)}


def holders(group: Consumergroup) -> list[int]:
    """The number of partitions of each member, in order."""
    owners = [owner.id for owner in group.owners() if isinstance(owner, Owner)]
    return sorted(owners.count(id) for id in set(owners))


def shared(first: PrintingConsumer, second: PrintingConsumer) -> set[str]:
    """The partitions of both, if both have as many and none in common."""
    mine, other = first.partitions, second.partitions
    return mine | other if len(mine) == len(other) and not mine & other else set()


def test_members_join_share_commit_take_over_and_leave(
    family: str, gateway: RunningGateway, registry: Registry, legacy_kafka: KafkaBroker
) -> None:
    """Two members share. The first is killed; the second continues where it stopped, and leaves."""
    topic = group_name = f"family-{family}"
    legacy_kafka.create_topic(topic, 4)
    for partition in range(4):
        legacy_kafka.write(topic, partition, 3)
    group, everything = registry.group(group_name), {f"{topic}-{number}" for number in range(4)}
    where = (gateway.bootstrap, group_name, topic)
    with FAMILIES[family](*where) as first, FAMILIES[family](*where) as second:
        assert eventually(
            lambda: (
                len(first.partitions) == len(second.partitions) == 2
                and first.partitions | second.partitions == everything
            ),
            timeout=LONGEST,
        ), (first.lines(), second.lines())
        assert eventually(lambda: holders(group) == [2, 2], timeout=LONGEST)
        assert eventually(lambda: committed(group) == dict.fromkeys(range(4), 3), timeout=LONGEST), first.lines()
        assert sorted({*first.read, *second.read}) == [
            f"{topic}-{number}@{at}" for number in range(4) for at in range(3)
        ]
        first.kill()
        assert eventually(lambda: second.partitions == everything, timeout=LONGEST), second.lines()
        assert eventually(lambda: holders(group) == [4], timeout=LONGEST)
        before = len(second.read)
        for partition in range(4):
            legacy_kafka.write(topic, partition, 1)
        assert eventually(lambda: committed(group) == dict.fromkeys(range(4), 4), timeout=LONGEST), second.lines()
        # A member that stands still for longer than its session reads again what it has not committed.
        assert set(second.read[before:]) == {f"{at}@3" for at in everything}
        assert second.leave() < STALLED_MS
    # The gateway answers a member that leaves before it deletes the member's nodes.
    assert eventually(lambda: ([*group.instances()], holders(group)) == ([], []), timeout=LONGEST)
