"""Failure 25 in the shell: two commands under one claim never run together, whichever server is cut off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cutting import FOLLOWER, LEADER, cut_off, victim
from tests.lasting import lasting_client
from tests.testing.waiting import eventually
from zkgroups import Registry
from zkgroups.testing import ZooKeeperEnsemble

from .holding import SESSION, holding

pytestmark = pytest.mark.zookeeper

SOAK = int(os.environ.get("ZKGROUPS_SOAK_CUTS", "20"))


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    """A server that is cut off keeps answering for longer than a session lasts."""
    with ZooKeeperEnsemble(tick_time=0.5, sync_limit=SESSION + 1.0, cuttable=True) as ensemble:
        yield ensemble


def run(ensemble: ZooKeeperEnsemble, role: str, directory: Path) -> float:
    """Cut off a server once. Return the seconds between the two commands."""
    node = victim(ensemble, role)
    others = ",".join(each.address for each in ensemble.nodes if each is not node)
    with Registry.connect(others) as registry, Registry.connect(node.address) as there:
        registry.group("invoices").create()
        assert eventually(there.group("invoices").exists)
    with (
        lasting_client(others) as eye,
        holding(eye, others, directory, through=node.address) as holder,
        cut_off(ensemble, node),
    ):
        begun = holder.next_claims()
        assert begun.code == 0, begun.err
        assert not holder.alive()
        assert holder.ended().code == 7
        return float(begun.out) - holder.last_beat()


def test_failure_25_a_command_has_ended_before_the_next_one_begins(ensemble: ZooKeeperEnsemble, tmp_path: Path) -> None:
    assert run(ensemble, FOLLOWER, tmp_path) > 0


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("role", [FOLLOWER, LEADER])
def test_soak_commands(ensemble: ZooKeeperEnsemble, role: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Many runs. Prints the smallest time between two commands."""
    left = sorted(run(ensemble, role, tmp_path_factory.mktemp("cut-")) for _ in range(SOAK))
    assert left[0] > 0, left
    print(f"{role} cut off: {SOAK} runs, {left[0]:.2f} to {left[-1]:.2f} s between the two commands")
