"""A foreign client and Kafka's tool at a gateway with groups in ZooKeeper, in front of every kind of broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.waiting import eventually
from zkgroups import Registry
from zkgroups.gateway.protocol.addresses import GatewayAddress, NodePorts
from zkgroups.gateway.zookeeper_storage import GroupSettings, ZooKeeperStorage, coordinator_config
from zkgroups.testing import KafkaBroker, Server, fresh_chroot, local_server

from .old_members import commit
from .peers import KafkaJs, Member, consumer_groups, member
from .running import RunningGateway, reserved, running

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(1000)]

QUICK = replace(coordinator_config(), min_session_timeout=1.0, initial_rebalance_delay=0.2)
TOPIC, GROUP, MESSAGES = "foreign", "foreign-live", 50


class Site(NamedTuple):
    """A broker, a gateway in front of it, and a live group whose member has read and committed everything."""

    broker: KafkaBroker
    registry: Registry
    gateway: RunningGateway
    live: Member


@pytest.fixture(scope="module", params=["legacy_kafka", "kafka_broker"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The old broker keeps its topics in the ZooKeeper of the groups. The current one does not know it."""
    broker: KafkaBroker = request.getfixturevalue(request.param)
    zookeeper: Server = request.getfixturevalue("zookeeper")
    with ExitStack() as stack:
        is_old = request.param == "legacy_kafka"
        hosts = broker.zookeeper if is_old else stack.enter_context(fresh_chroot(zookeeper))
        broker.create_topic(TOPIC, 2)
        for partition in range(2):
            broker.write(TOPIC, partition, MESSAGES)
        registry = stack.enter_context(Registry.connect(hosts))
        numbers = stack.enter_context(reserved(2))
        address = GatewayAddress(local_server.HOST, NodePorts(numbers[1], numbers[1]))
        settings = GroupSettings(reconcile_every=0.5)
        gateway = stack.enter_context(
            running(
                broker.address,
                config=QUICK,
                storage=lambda brokers, report: stack.enter_context(
                    ZooKeeperStorage(registry, report, settings=settings, address=address, brokers=brokers)
                ),
                numbers=numbers,
            )
        )
        live = stack.enter_context(member(gateway.bootstrap, GROUP, TOPIC))
        assert eventually(lambda: live.poll() or len(live.read) == 2 * MESSAGES), live.partitions
        assert all(each.error is None for each in live.consumer.commit(asynchronous=False) or ())
        yield Site(broker, registry, gateway, live)


def test_a_member_with_kafkajs_reads_everything(site: Site) -> None:
    with KafkaJs(site.gateway.bootstrap, "foreign-kafkajs", TOPIC) as joined:
        assert eventually(lambda: len({*joined.read}) == 2 * MESSAGES), joined.lines()


def test_kafkas_tool_describes_all_groups_also_after_one_with_an_offset_of_a_deleted_topic(site: Site) -> None:
    for number in range(5):
        group = f"foreign-stopped-{number}"
        commit(site.registry.client, group, TOPIC, 0, b"4")
        commit(site.registry.client, group, "foreign-deleted", 0, b"17")
        commit(site.registry.client, group, TOPIC, 7, b"17")
    release = "3.9.1" if site.broker.release == "1.1.1" else "4.3.1"  # Java clients since 4.0 need brokers since 2.1
    shown = consumer_groups(release, site.gateway.bootstrap, "--describe", "--all-groups")
    rows = [row[:3] for row in map(str.split, shown.splitlines()) if row and row[0].startswith("foreign-")]
    assert sorted(row for row in rows if "stopped" in row[0]) == [
        [f"foreign-stopped-{number}", TOPIC, "0"] for number in range(5)
    ], shown
    assert [row for row in rows if row[0] == GROUP] == [[GROUP, TOPIC, "0"], [GROUP, TOPIC, "1"]]
