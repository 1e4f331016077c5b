"""The totals of a member."""

from __future__ import annotations

from dataclasses import astuple

from zkgroups.consumer.events import MemberStats


def test_all_totals_begin_with_zero() -> None:
    assert set(astuple(MemberStats())) == {0}
