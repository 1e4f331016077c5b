"""Groups of old clients in ZooKeeper, through a read-only gateway: every tool of Kafka shows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import ConsumerGroupState

from zkgroups import Registry
from zkgroups.gateway.zookeeper_storage import ZooKeeperStorage, coordinator_config
from zkgroups.testing import KafkaBroker

from .old_members import KAZOO_GO, claim, commit, register
from .peers import consumer_groups, describe, listed, offsets
from .running import RunningGateway, running

pytestmark = pytest.mark.zookeeper

TOPIC = "gateway-legacy"
GROUP = "gateway-legacy-billing"
SCALA = f"{GROUP}_app-1-1795255170109-ab12cd34"


@pytest.fixture(scope="module")
def gateway(legacy_kafka: KafkaBroker) -> Iterator[RunningGateway]:
    """A read-only gateway, and a group with a Scala and a kazoo-go member."""
    legacy_kafka.create_topic(TOPIC, 3)
    legacy_kafka.write(TOPIC, 0, 20)
    with Registry.connect(legacy_kafka.zookeeper) as old, ExitStack() as stack:
        registry = stack.enter_context(Registry.connect(legacy_kafka.zookeeper))
        register(old.client, GROUP, SCALA, {TOPIC: 1})
        register(old.client, GROUP, KAZOO_GO, {TOPIC: 1})
        claim(old.client, GROUP, f"{SCALA}-0", TOPIC, 0, 1)
        claim(old.client, GROUP, KAZOO_GO, TOPIC, 2)
        commit(old.client, GROUP, TOPIC, 0, b"17")
        commit(old.client, "gateway-legacy-stopped", TOPIC, 1, b"4")
        with running(
            legacy_kafka.address,
            config=coordinator_config(),
            storage=lambda _counts, report: stack.enter_context(ZooKeeperStorage(registry, report, read_only=True)),
            read_only=True,
        ) as found:
            yield found


def test_librdkafkas_administrators_see_them(gateway: RunningGateway) -> None:
    bootstrap = gateway.bootstrap
    assert {name for name in listed(bootstrap) if name.startswith(TOPIC)} == {GROUP, "gateway-legacy-stopped"}
    shown = describe(bootstrap, GROUP)
    assert shown.state is ConsumerGroupState.STABLE
    members = {
        each.member_id: (each.client_id, each.host, {at.partition for at in each.assignment.topic_partitions})
        for each in shown.members
    }
    assert members == {SCALA: ("scala", "/app-1", {0, 1}), KAZOO_GO: ("kazoo-go", "/app-2", {2})}
    assert offsets(bootstrap, GROUP, TOPIC) == {0: 17}


def test_kafkas_own_tool_sees_them_with_their_lag(gateway: RunningGateway, legacy_kafka: KafkaBroker) -> None:
    shown = consumer_groups(legacy_kafka.release, gateway.bootstrap, "--describe", "--group", GROUP)
    rows = {row[1]: row for row in map(str.split, shown.splitlines()) if row and row[0] == TOPIC}
    assert rows["0"][2:6] == ["17", "20", "3", SCALA], shown
    assert rows["2"][5] == KAZOO_GO, shown
