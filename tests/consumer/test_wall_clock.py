"""Failure 7: the wall clock is set, or the machine sleeps, while members work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clocks import HAS_BOOTTIME, HOURS, set_wall_clock, sleep_of_the_machine
from zkgroups import EventKind, InstanceState, Registry, TopicPartition
from zkgroups.testing import TcpProxy

from .conftest import Run

pytestmark = pytest.mark.zookeeper

DAY = 86_400.0


def test_failure_7_members_continue_while_the_wall_clock_jumps_by_a_day(
    run: Run, orders: frozenset[TopicPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = run(["orders"], reconcile_every=0.1), run(["orders"], reconcile_every=0.1)
    first.until(lambda: len(first.member.assignment) == len(second.member.assignment) == 3)
    first.until(lambda: all(each.member.state is InstanceState.STABLE for each in (first, second)))
    first.until(lambda: all(each.generations and each.generations[-1].active for each in (first, second)))
    generations = [first.generations[-1], second.generations[-1]]
    for jump in (DAY, -2 * DAY, DAY):
        set_wall_clock(monkeypatch, jump)
        looks = [each.member.stats.looks for each in (first, second)]
        for each, before in zip((first, second), looks, strict=True):
            each.until(lambda each=each, before=before: each.member.stats.looks > before + 3)
        for generation in generations:
            assert generation.active
            generation.commit(dict.fromkeys(generation.partitions, 10))
    lost = [event for member in (first, second) for event in member.events if event.kind is EventKind.LOST]
    assert lost == []


@HAS_BOOTTIME
def test_failure_7_after_the_machine_has_slept_a_member_stops_its_work_until_the_session_is_proved(
    run: Run,
    orders: frozenset[TopicPartition],
    connect: Callable[..., Registry],
    zookeeper: Any,
    zookeeper_hosts: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TcpProxy(zookeeper.address) as proxy:
        away = connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}", session_timeout=20.0)
        member = run(on=away.group("billing")).until_holding(orders)
        before = member.generations[-1]
        proxy.hold()
        assert before.active
        sleep_of_the_machine(monkeypatch, HOURS)
        assert not before.active
        member.until(lambda: EventKind.LOST in [event.kind for event in member.events])
        proxy.heal()
        member.until_holding(orders)
        assert [event.at for event in member.events if event.kind is EventKind.LOST] == [orders]
        member.generations[-1].commit(dict.fromkeys(orders, 10))
        member.close()
