"""Timeouts that users pass."""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups.deadline import Deadline
from zkgroups.exceptions import InvalidOptionError


@pytest.mark.parametrize(
    "seconds",
    ["5", True, -1, float("nan"), float("inf"), pytest.param(10**400, id="no float is as large")],
)
def test_a_timeout_that_is_no_number_of_seconds_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidOptionError, match="timeout is"):
        Deadline.after("timeout", seconds)


@pytest.mark.parametrize("seconds", [0, 1.5, 1e30])
def test_any_other_number_is_accepted(seconds: float) -> None:
    assert Deadline.after("timeout", seconds).seconds == seconds
