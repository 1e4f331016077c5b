"""Two gateways keep the same groups in ZooKeeper. Each counts the other's members, and takes over if the other ends."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.testing.waiting import eventually
from zkgroups import Registry
from zkgroups.gateway.zookeeper_storage import ZooKeeperStorage, coordinator_config
from zkgroups.testing import KafkaBroker, expire_session

from .running import running
from .test_librdkafka import Member, describe, member, settled

pytestmark = pytest.mark.zookeeper

TOPIC = GROUP = "two-gateways"


def serve(stack: ExitStack, broker: KafkaBroker) -> tuple[str, Registry]:
    """Run a gateway with a session of its own, which does not let its members leave at the end: as if it was killed."""
    registry = stack.enter_context(Registry.connect(broker.zookeeper))
    gateway = stack.enter_context(
        running(
            broker.address,
            config=coordinator_config(),
            storage=lambda _counts, report: ZooKeeperStorage(registry, report),
        )
    )
    return gateway.bootstrap, registry


def joined_at(registry: Registry, stack: ExitStack, bootstrap: str) -> Member:
    """Start members until one of them has connected to this gateway: librdkafka chooses at random."""
    for _ in range(20):
        with ExitStack() as attempt:
            found = attempt.enter_context(member(bootstrap, GROUP, TOPIC))
            assert settled(found, shares={6})
            if {each.session for each in registry.group(GROUP).instances()} == {registry.session_id}:
                stack.push(attempt.pop_all())
                return found
    raise AssertionError(f"no member has connected to {registry}")


def test_the_clients_of_a_killed_gateway_continue_at_another(legacy_kafka: KafkaBroker) -> None:
    legacy_kafka.create_topic(TOPIC, 6)
    with ExitStack() as killed, ExitStack() as stays:
        first, session = serve(killed, legacy_kafka)
        second, registry = serve(stays, legacy_kafka)
        group = registry.group(GROUP)
        one = joined_at(session, stays, f"{first},{second}")
        with member(second, GROUP, TOPIC) as other:
            assert settled(one, other, shares={3})
            assert {each.session for each in group.instances()} == {session.session_id, registry.session_id}
            assert [each.client_id for each in describe(second, GROUP).members] == ["rdkafka", "rdkafka"]
            expire_session(session.client)
            killed.close()

            def moved() -> bool:
                one.poll()
                other.poll()
                return [each.session for each in group.instances()] == [registry.session_id] * 2

            assert eventually(moved)
            assert settled(one, other, shares={3})
