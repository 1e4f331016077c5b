"""Scala members and clients of two gateways in one group, under faults: see `mixed_faults.py`."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.consumer.history import shown
from tests.consumer.nemesis import plan
from tests.consumer.test_nemesis import SOAK
from tests.seeds import seed
from zkgroups.testing import KafkaBroker, ZooKeeperServer

from .mixed_faults import Belief, MixedScene, OwnerHistory, Ownership, unowned

KILL, SUSPEND = "kill", "stop"
GATEWAYS = {0, 1}


def assert_all_is_well(broker: KafkaBroker, zookeeper: ZooKeeperServer, number: int, *, duration: float) -> None:
    strikes = plan(number, duration=duration, members=4, kinds=(KILL, SUSPEND))
    print(f"\nZKGROUPS_SEED={number}", *strikes, sep="\n")
    with ExitStack() as stack:
        scene = MixedScene(broker, zookeeper, f"mixed-faults-{number}", stack)
        feed = scene.run(strikes)
        read = scene.end()
        violations = list(scene.violations())
        print(f"{len(feed.texts)} messages, {read.total() - len(read)} read again")
        assert not violations, f"seed {number}:\n{shown(violations)}"
        assert len(read) == len(feed.texts)
        if {strike.victim for strike in strikes if strike.kind == KILL} >= GATEWAYS:
            assert len(scene.client_sessions()) > 1, "the clients have stayed at one gateway"


def test_no_partition_is_held_by_two_and_no_message_is_left_out(
    legacy_kafka: KafkaBroker, legacy_zookeeper: ZooKeeperServer
) -> None:
    assert_all_is_well(legacy_kafka, legacy_zookeeper, seed(), duration=2.0)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak(legacy_kafka: KafkaBroker, legacy_zookeeper: ZooKeeperServer) -> None:
    """Many longer runs."""
    for number in range(seed(), seed() + SOAK):
        assert_all_is_well(legacy_kafka, legacy_zookeeper, number, duration=10.0)


OWNED = Ownership("orders/0", "app-1-0", 7, 10.0, 20.0)
EXPIRED = Ownership("orders/0", "app-1-0", 7, 10.0, 20.0, expired=True)


@pytest.mark.parametrize(
    ("ownership", "belief", "rules"),
    [
        (OWNED, Belief("orders/0", "app-1", 11.0, 19.0), []),
        (OWNED, Belief("orders/0", "app-1", 9.0, 19.0), ["a partition without an owner node"]),
        (OWNED, Belief("orders/0", "app-2", 11.0, 19.0), ["a partition without an owner node"]),
        (OWNED, Belief("orders/1", "app-1", 11.0, 19.0), ["a partition without an owner node"]),
        (OWNED, Belief("orders/0", "app-1", 11.0, 21.0), ["a partition that was released before"]),
        (EXPIRED, Belief("orders/0", "app-1", 11.0, 21.0), []),
    ],
)
def test_a_client_has_a_partition_only_while_its_owner_node_exists(
    ownership: Ownership, belief: Belief, rules: list[str]
) -> None:
    assert [each.rule for each in unowned(OwnerHistory([ownership], {}), [belief])] == rules
