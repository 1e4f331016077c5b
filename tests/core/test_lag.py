"""Lag: never negative, and unknown if the offset or the log end is unknown."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.offsets.lag import GroupLag, LagNote, group_lag, lag, partitions_of_group, subscribes_by_pattern
from zkgroups.core.znodes.describe_group import describe
from zkgroups.core.znodes.group_description import GroupDescription
from zkgroups.core.znodes.group_view import GroupView, RegisteredInstance
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import (
    CommittedOffset,
    ForbiddenNode,
    MalformedNode,
    Pattern,
    Registration,
    UnreadableNode,
)

OFFSETS = st.none() | st.integers(0, 2**63 - 1)
LOGS = st.none() | st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)).map(lambda ends: log(*sorted(ends)))


def log(start: int, end: int) -> OffsetRange:
    return OffsetRange(start, end)


def at(number: int, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, number)


def group(
    offsets: Iterable[tuple[int, int]] = (),
    *,
    subscribed: Registration | None = None,
    unreadable: Iterable[UnreadableNode] = (),
) -> GroupDescription:
    committed = tuple(CommittedOffset("billing", at(number), offset) for number, offset in offsets)
    instances = () if subscribed is None else (RegisteredInstance("anna", 7, subscribed),)
    return describe(GroupView("billing", True, instances, (), committed, tuple(unreadable)))


def measured(
    description: GroupDescription,
    logs: dict[TopicPartition, OffsetRange | None],
    known: dict[str, tuple[int, ...]] | None = None,
) -> GroupLag:
    return group_lag(description, partitions_of_group(description, known or {}), logs)


# One partition


@pytest.mark.parametrize(
    ("offset", "ends", "expected"),
    [
        (0, (0, 0), (0, None)),
        (0, (0, 5), (5, None)),
        (5, (0, 5), (0, None)),
        (6, (0, 5), (None, LagNote.PAST_END)),
        (3, (3, 9), (6, None)),
        (2, (3, 9), (7, LagNote.BEFORE_START)),
        (2, None, (None, LagNote.LOG_UNKNOWN)),
        (None, (0, 5), (None, LagNote.NEVER_COMMITTED)),
        (None, None, (None, LagNote.NEVER_COMMITTED)),
    ],
)
def test_the_lag_is_the_number_of_messages_left_to_read(
    offset: int | None, ends: tuple[int, int] | None, expected: tuple[int | None, LagNote | None]
) -> None:
    assert lag(offset, None if ends is None else log(*ends)) == expected


@given(OFFSETS, LOGS)
def test_a_lag_is_never_negative_and_is_known_only_if_offset_and_log_end_are(
    offset: int | None, found: OffsetRange | None
) -> None:
    behind, note = lag(offset, found)
    if offset is None or found is None or offset > found.end:
        assert behind is None
        assert note is not None
    else:
        assert behind == found.end - offset >= 0
        assert (note is LagNote.BEFORE_START) == (offset < found.start)


# A group


@given(st.dictionaries(st.integers(0, 50), st.tuples(OFFSETS, LOGS)))
def test_totals_count_known_lags_and_are_unknown_if_none_is_known(
    partitions: dict[int, tuple[int | None, OffsetRange | None]],
) -> None:
    everywhere = Registration({"orders": 1})
    description = group(
        [(number, offset) for number, (offset, _) in partitions.items() if offset is not None], subscribed=everywhere
    )
    found = measured(
        description,
        {at(number): log for number, (_, log) in partitions.items()},
        {"orders": tuple(partitions)},
    )
    lags = [each.lag for each in found.partitions]
    known = [each for each in lags if each is not None]
    assert [each.partition.at.partition for each in found.partitions] == sorted(partitions)
    assert lags == [lag(*partitions[number])[0] for number in sorted(partitions)]
    assert (found.total, found.most) == ((sum(known), max(known)) if known else (None, None))
    assert found.unknown == lags.count(None)


def test_offset_0_and_lag_0_are_data() -> None:
    found = measured(group([(0, 0), (1, 0)]), {at(0): log(0, 0), at(1): log(0, 7)})
    assert [each.lag for each in found.partitions] == [0, 7]
    assert (found.total, found.most, found.unknown) == (7, 7, 0)
    assert measured(group([(0, 0)]), {at(0): log(0, 0)}).total == 0


def test_partition_numbers_may_have_gaps() -> None:
    found = measured(group([(7, 1), (1000, 2)]), {at(7): log(0, 3), at(1000): log(0, 3)})
    assert [(each.partition.at.partition, each.lag) for each in found.partitions] == [(7, 2), (1000, 1)]


def test_a_partition_of_a_subscribed_topic_that_only_the_brokers_know_has_no_offset_and_no_lag() -> None:
    found = measured(
        group([(0, 4)], subscribed=Registration({"orders": 1})),
        {at(0): log(0, 5), at(3): log(0, 5)},
        {"orders": (0, 3), "refunds": (0,)},
    )
    assert [(each.partition.at, each.lag, each.note) for each in found.partitions] == [
        (at(0), 1, None),
        (at(3), None, LagNote.NEVER_COMMITTED),
    ]


def test_a_pattern_chooses_among_the_topics_of_the_brokers() -> None:
    by_pattern = group(subscribed=Registration({"ord.*": 1}, Pattern.WHITE_LIST))
    assert subscribes_by_pattern([group(), by_pattern])
    assert not subscribes_by_pattern([group(), group(subscribed=Registration({"orders": 1}))])
    found = partitions_of_group(by_pattern, {"orders": (0, 1), "refunds": (0,)})
    assert [partition.at for partition in found] == [at(0), at(1)]


def test_an_unsubscribed_topic_has_only_the_partitions_with_offsets() -> None:
    assert [partition.at for partition in partitions_of_group(group([(2, 5)]), {"orders": (0, 1, 2)})] == [at(2)]


# Unreadable offsets


def test_an_unreadable_offset_is_not_a_missing_offset() -> None:
    found = measured(
        group(
            [(0, 4)],
            subscribed=Registration({"orders": 1}),
            unreadable=[MalformedNode("/consumers/billing/offsets/orders/1", b"many", "no number")],
        ),
        {at(number): log(0, 5) for number in range(3)},
        {"orders": (0, 1, 2)},
    )
    assert [each.note for each in found.partitions] == [None, LagNote.CANNOT_BE_READ, LagNote.NEVER_COMMITTED]
    assert (found.total, found.unknown) == (1, 2)


def test_a_partition_with_only_an_unreadable_offset_is_shown() -> None:
    bad = [
        MalformedNode(f"/consumers/billing/offsets/{path}", b"many", "no number")
        for path in ("orders/3", "orders/x", "orders")
    ]
    elsewhere = MalformedNode("/consumers/other/offsets/orders/4", b"many", "no number")
    found = measured(group(unreadable=[*bad, elsewhere]), {at(3): log(0, 5)})
    assert [(each.partition.at, each.lag, each.note) for each in found.partitions] == [
        (at(3), None, LagNote.CANNOT_BE_READ)
    ]


@pytest.mark.parametrize("path", ["offsets", "offsets/orders", "offsets/orders/0"])
def test_forbidden_offsets_are_not_reported_as_missing(path: str) -> None:
    denied = ForbiddenNode(f"/consumers/billing/{path}")
    found = measured(
        group(subscribed=Registration({"orders": 1}), unreadable=[denied]), {at(0): log(0, 5)}, {"orders": (0,)}
    )
    assert [each.note for each in found.partitions] == [LagNote.CANNOT_BE_READ]
