"""Failures 8 and 9: members that are killed while they rebalance, and 200 that join at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from zkgroups import InstanceState, Member, Registry
from zkgroups.testing import Fault, TcpProxy, ZooKeeperServer, fresh_chroot

from ...releases import needs_multiread
from ...testing.waiting import eventually
from ..crew import Crew
from ..nemesis import ROOT, plant_topics
from .crews import QUICK, TOPICS, owners

pytestmark = pytest.mark.zookeeper


# 8: a crash during a rebalance

SOON, SURELY = 3.0, 60.0
"""In seconds: how long to wait for a request that may never come, and for one that must come."""


class Victim:
    """A member in its own process, which is killed when it would send its n-th request from now."""

    def __init__(self, stack: ExitStack, directory: Path, server: str, chroot: str) -> None:
        self.proxy = stack.enter_context(TcpProxy(server))
        command = [sys.executable, "-m", "tests.consumer.worker", "--hosts", f"{self.proxy.address}/{chroot}"]
        command += ["--group", "billing", "--topics", "orders", "--id", "victim", "--session-timeout", "1", *QUICK]
        self._command = [*command, "--log", str(directory / "victim.jsonl")]
        self._stack = stack
        self.patience = SOON

    def start(self) -> None:
        """Start it with a single connection, so that nothing happens after the step at which it dies."""
        self.process = self._stack.enter_context(subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.DEVNULL))
        self._stack.callback(self.process.kill)
        assert eventually(lambda: self.proxy.connections, timeout=30)

    def dies_at(self, n: int) -> Callable[[], bool]:
        """Arm the kill. The returned function waits for the death and returns whether the member got that far."""
        fault = self.proxy.cut_before_request(n)
        self.proxy.refuse()
        return partial(self._dies, fault, self.proxy.connections)

    def comes_and_dies_at(self, n: int) -> bool:
        fault = self.proxy.cut_before_request(n)
        self.start()
        self.proxy.refuse()
        return self._dies(fault, 1)

    def _dies(self, fault: Fault, connections: int) -> bool:
        """It also dies if its short session made it give up its connection, on a machine that stood still."""
        came_that_far = eventually(lambda: fault.fired or self.proxy.connections > connections, timeout=self.patience)
        self.process.kill()
        self.process.wait()
        self.proxy.cut()
        return came_that_far


def _it_comes(crew: Crew, victim: Victim, n: int) -> bool:
    crew.join("heir", *QUICK)
    crew.settle()
    return victim.comes_and_dies_at(n)


def _it_makes_way(crew: Crew, victim: Victim, n: int) -> bool:
    victim.start()
    crew.settle()
    wait = victim.dies_at(n)
    crew.join("heir", *QUICK)
    return wait()


def _it_leaves(crew: Crew, victim: Victim, n: int) -> bool:
    crew.join("heir", *QUICK)
    victim.start()
    assert eventually(lambda: len(crew.workers["heir"].member.assignment) == 2)
    crew.settle()
    wait = victim.dies_at(n)
    victim.process.terminate()
    return wait()


STEPS: dict[Callable[[Crew, Victim, int], bool], range] = {
    _it_comes: range(1, 29, 2),
    _it_makes_way: range(1, 16, 2),
    _it_leaves: range(1, 8),
}
"""About as many requests as each step takes. The exact number depends on concurrent commits. Members come at least as
far as half of them."""


@pytest.mark.parametrize("scene", STEPS, ids=lambda scene: scene.__name__.strip("_"))
def test_failure_8_the_remaining_members_get_all_partitions_of_a_member_killed_at_any_step(
    tmp_path: Path, zookeeper: Any, scene: Callable[[Crew, Victim, int], bool]
) -> None:
    certain = STEPS[scene][: len(STEPS[scene]) // 2]

    def play(n: int) -> bool:
        directory = tmp_path / str(n)
        directory.mkdir()
        with fresh_chroot(zookeeper) as hosts, ExitStack() as stack, Crew(directory, hosts, TOPICS) as crew:
            victim = Victim(stack, directory, *hosts.split("/"))
            victim.patience = SURELY if n in certain else SOON
            came_that_far = scene(crew, victim, n)
            assert eventually(lambda: len(crew.workers["heir"].member.assignment) == 4), f"step {n}"
            crew.settle()
            assert {owner for owner, _session in owners(crew).values()} == {"heir-0"}
            return came_that_far

    with ThreadPoolExecutor(3) as pool:  # most of the time passes until the session expires
        came_that_far = list(pool.map(play, STEPS[scene]))
    print(came_that_far)
    assert all(came_that_far[: len(certain)])


# 9: many members at once

STORM = 200


@needs_multiread
@pytest.mark.parametrize("assignor", ["range", pytest.param("sticky", marks=pytest.mark.soak)])
def test_failure_9_two_hundred_members_that_join_at_once_send_few_requests_and_settle_soon(assignor: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer(tick_time=1.0))
        proxy = stack.enter_context(TcpProxy(server.address))
        plant_topics(server.address, {"orders": STORM})
        registries = [stack.enter_context(Registry.connect(proxy.address, session_timeout=20.0)) for _ in range(4)]
        options: dict[str, Any] = {"assignors": [assignor], "reconcile_every": 3600.0}  # no looks on a slow machine
        members = [Member(registries[n % 4].group("billing"), "orders", id=f"m{n:03}", **options) for n in range(STORM)]
        requests, began = proxy.requests, time.monotonic()
        for member in members:
            stack.callback(member.close)
        stack.callback(_stop_all, members)
        for member in members:
            member.start()
        assert time.monotonic() - began < 20
        assert eventually(lambda: all(_has_its_share(member) for member in members), timeout=90)
        print(f"{time.monotonic() - began:.1f} s, {(proxy.requests - requests) / STORM:.0f} requests for each")
        assert proxy.requests - requests < 80 * STORM
        stats = [member.stats for member in members]
        assert max(each.looks for each in stats) <= 10
        assert max(each.rebalances for each in stats) <= 5


def _stop_all(members: list[Member]) -> None:
    for member in members:
        member.stop()


def _has_its_share(member: Member) -> bool:
    return len(member.assignment) == 1 and member.state is InstanceState.STABLE
