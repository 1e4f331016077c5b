"""Options of a member, which are checked before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups import Consumergroup, LoneMember, Member
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
