"""Every message is handled, in order, and none more often than the faults allow, whatever strikes the group."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from random import Random

import pytest

from zkgroups.migration.live_move import MoveStep
from zkgroups.testing import KafkaBroker, ZooKeeperServer

from ...seeds import seed
from .scene import FAULTS, Scene

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("accounting"), pytest.mark.timeout(600)]

ROUNDS = int(os.environ.get("ZKGROUPS_SOAK_ROUNDS", "30"))

SHORT = ("kill worker", "expire", "restart broker", "kill move", "restart zookeeper", "leave", "move")


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[ZooKeeperServer, KafkaBroker]]:
    """Servers that a test may stop."""
    with ZooKeeperServer() as zookeeper, KafkaBroker(release="1.1.1", zookeeper=f"{zookeeper.address}/kafka") as broker:
        yield zookeeper, broker


def test_every_message_is_handled_in_the_order_of_its_key_through_faults_of_workers_servers_and_moves(
    servers: tuple[ZooKeeperServer, KafkaBroker],
) -> None:
    with Scene(*servers, "short", "key", Random(seed())) as scene:
        for fault in SHORT:
            scene.strike(fault)
        print(scene.finish())


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_move_ends_on_one_side_whatever_is_killed_at_any_step(servers: tuple[ZooKeeperServer, KafkaBroker]) -> None:
    with Scene(*servers, "steps", "key", Random(seed())) as scene:
        for victim, step in itertools.product(("command", "worker", "broker", "zookeeper"), MoveStep):
            for _ in range(3):  # in both directions, also if the first ones are undone
                print(victim, step.name, flush=True)
                scene.kill_during_move(victim, step)
        print(scene.finish())


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("order", ["partition", "key", "none"])
def test_every_message_is_handled_through_any_faults(servers: tuple[ZooKeeperServer, KafkaBroker], order: str) -> None:
    random = Random(seed())
    with Scene(*servers, f"long-{order}", order, random) as scene:
        for number in range(ROUNDS):
            fault = random.choice(FAULTS)
            print(f"{number + 1}/{ROUNDS} {fault}", flush=True)
            scene.strike(fault)
        print(scene.finish())
