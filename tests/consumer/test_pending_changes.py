"""When a member handles what it has heard: released partitions together, and looks with pauses."""

from __future__ import annotations

import math

import pytest

from tests.waiting import eventually
from zkgroups.consumer.waiting import BREATHER, GATHER, IN_A_ROW, LONGEST_BREATHER, PendingChanges
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.deadline import uptime

pytestmark = pytest.mark.usefixtures("world")

P0, P1 = frozenset({TopicPartition("orders", 0)}), frozenset({TopicPartition("orders", 1)})
LATEST = 1e12


def looked(changes: PendingChanges, times: int, took: float) -> None:
    for _ in range(times):
        changes.end_look(uptime() - took)
    changes.changed()


def test_a_few_looks_may_follow_each_other_at_once() -> None:
    changes = PendingChanges()
    looked(changes, IN_A_ROW - 1, 10.0)
    assert changes.due(LATEST) <= uptime()
    assert changes.take_change()
    assert changes.due(LATEST) == LATEST


@pytest.mark.parametrize(("took", "pause"), [(0.1, BREATHER * 0.1), (10.0, LONGEST_BREATHER)])
def test_the_next_look_waits_for_as_long_as_the_looks_took_within_a_limit(took: float, pause: float) -> None:
    changes = PendingChanges()
    looked(changes, IN_A_ROW, took)
    assert changes.due(LATEST) == pytest.approx(uptime() + IN_A_ROW * pause)
    assert not changes.take_change()


def test_only_the_partitions_that_a_member_waits_for_are_taken_without_collecting_more() -> None:
    changes = PendingChanges()
    changes.released(P0)
    assert changes.take_released(P0) == P0
    changes.released(P0)
    before = uptime()
    taken = [changes.take_released(P0 | P1)]
    assert not taken[0] or uptime() >= before + GATHER
    changes.released(P1)

    def all_taken() -> bool:
        taken.append(changes.take_released(P0 | P1))
        return frozenset().union(*taken) == P0 | P1

    assert eventually(all_taken)


def test_the_time_until_all_changes_are_handled_begins_with_the_first_look() -> None:
    changes = PendingChanges()
    assert changes.settle() is None
    first = changes.begin_look()
    changes.begin_look()
    taken = changes.settle()
    assert taken is not None
    assert 0 <= taken <= uptime() - first < math.inf
    assert changes.settle() is None
