"""Failure 7: the wall clock jumps. Only displayed times change."""

from __future__ import annotations

import time

import pytest

from zkgroups import EventKind, InstanceState, TopicPartition

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
    wall_clock = time.time
    for jump in (DAY, -DAY, 0.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: wall_clock() + jump)
        monkeypatch.setattr(time, "time_ns", lambda jump=jump: int((wall_clock() + jump) * 1e9))
        looks = [each.member.stats.looks for each in (first, second)]
        for each, before in zip((first, second), looks, strict=True):
            each.until(lambda each=each, before=before: each.member.stats.looks > before + 3)
        for generation in generations:
            assert generation.active
            generation.commit(dict.fromkeys(generation.partitions, 10))
    lost = [event for member in (first, second) for event in member.events if event.kind is EventKind.LOST]
    assert lost == []
