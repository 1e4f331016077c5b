"""Which groups nobody uses any more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.doctor.unused_groups import duration_seconds, in_use, unreadable
from zkgroups.core.znodes.describe_group import describe
from zkgroups.core.znodes.group_view import GroupView, RegisteredInstance
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import (
    CommittedOffset,
    ForbiddenNode,
    MalformedNode,
    Owner,
    Registration,
    UnreadableNode,
)
from zkgroups.exceptions import InvalidOptionError

AT = TopicPartition("orders", 0)


@given(st.integers(0, 10**9 - 1), st.sampled_from([("d", 86400), ("h", 3600), ("m", 60), ("s", 1)]))
def test_a_duration_is_a_number_with_a_unit(number: int, unit: tuple[str, int]) -> None:
    assert duration_seconds(f"{number}{unit[0]}") == number * unit[1]


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "1.5h", "90 d", "90D", "1d12h", "٣d", "90d\n", "9" * 30 + "d"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="duration"):
        duration_seconds(text)


def test_offsets_alone_are_no_use() -> None:
    assert not in_use(describe(GroupView("billing", offsets=(CommittedOffset("billing", AT, 5),))))
    assert not in_use(describe(GroupView("billing")))


@pytest.mark.parametrize(
    "registration", [Registration({}), MalformedNode("/consumers/billing/ids/anna", b"", "empty")], ids=["good", "bad"]
)
def test_a_registered_instance_uses_a_group_whatever_it_says(registration: Registration | UnreadableNode) -> None:
    assert in_use(describe(GroupView("billing", instances=(RegisteredInstance("anna", 7, registration),))))


@pytest.mark.parametrize("session", [7, 0])
def test_an_owner_uses_a_group_also_without_a_registration_or_a_session(session: int) -> None:
    assert in_use(describe(GroupView("billing", owners=(Owner(AT, "anna", session),))))


def test_what_cannot_be_read_is_the_groups_own() -> None:
    mine = (
        MalformedNode("/consumers/billing/offsets/orders/0", b"", "empty"),
        ForbiddenNode("/consumers/billing"),
    )
    others = (
        MalformedNode("/consumers/billing-blue/offsets/orders/0", b"", "empty"),
        MalformedNode("/brokers/topics/orders", b"", "empty"),
    )
    assert unreadable(describe(GroupView("billing", malformed=(*others, *mine)))) == mine
