"""Options of a member, which are checked before anything is sent, and when it handles what it has heard."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.waiting import eventually
from zkgroups import Consumergroup, LoneMember, Member
from zkgroups.consumer.waiting import BREATHER, GATHER, IN_A_ROW, LONGEST_BREATHER, PendingChanges
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.deadline import uptime
from zkgroups.exceptions import (
    InvalidNameError,
    InvalidOptionError,
    ReadOnlyError,
)

from .conftest import Connect


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"release_timeout": 0}, "release_timeout is 0, but it must be a number of seconds above 0"),
        ({"release_timeout": float("nan")}, "release_timeout is nan"),
        ({"join_backoff": True}, "join_backoff is True"),
        ({"reconcile_every": 90_000}, "at most 86400"),
        ({"rebalance_timeout": 4.0}, r"rebalance_timeout is 4.0, but it must be more than release_timeout \(4\)"),
        ({"auto_commit_every": -1}, "auto_commit_every is -1"),
        ({"max_idle": "soon"}, "max_idle is 'soon'"),
        ({"start_at": "begin"}, "start_at is 'begin', but it must be one of earliest, latest"),
        ({"out_of_range": "skip"}, "out_of_range is 'skip', but it must be one of error, earliest, latest"),
        ({"assignors": []}, r"assignors is \[\]"),
        ({"assignors": "range"}, "assignors is 'range'"),
        ({"assignors": ["cooperative"]}, "assignors is 'cooperative', but it must be a function, or one of range"),
        ({"foreign_assignor": "sticky"}, "foreign_assignor is 'sticky'"),
        ({"on_lost": 3}, "on_lost is 3, but it must be a function"),
        ({"pattern": "o.*"}, "pattern is 'o.*', but topics are given, too"),
        ({"streams": 0}, "streams of 'orders' is 0, but it must be a whole number between 1 and 10000"),
        ({"streams": 2_000_000_000}, "streams of 'orders' is 2000000000"),
        ({"assignors": [lambda _: {}]}, "it must be a function with a unique name"),
        ({"topics": (), "pattern": ""}, "pattern is '', but it must not be empty"),
        ({"topics": "orders,refunds"}, "topic is 'orders,refunds', but it must consist of letters"),
        ({"topics": ()}, "topics is {}, but a member needs at least one topic or a pattern"),
        ({"topics": 7}, "topics is 7"),
        ({"topics": {"orders": 1.5}}, "streams of 'orders' is 1.5"),
    ],
)
def test_an_option_out_of_bounds_is_refused_with_its_name_value_and_bound(
    group: Consumergroup, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidOptionError, match=told):
        Member(group, **{"topics": ["orders"], **options})
    assert not group.exists()


def test_a_member_on_a_connection_for_reading_only_is_refused(connect: Connect) -> None:
    """It would wait to join for ever."""
    with connect(read_only=True) as registry:
        with pytest.raises(ReadOnlyError, match="connect without `read_only`"):
            Member(registry.group("billing"), ["orders"])
        LoneMember(registry, ["orders"]).close()


def test_a_member_without_a_group_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="group is not given"):
        Member(None, ["orders"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a/b", ""])
def test_names_are_checked_before_anything_is_sent(group: Consumergroup, name: str) -> None:
    with pytest.raises(InvalidNameError):
        Member(group, [name])
    with pytest.raises(InvalidNameError):
        Member(group, ["orders"], id=name)
    assert not group.exists()


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
