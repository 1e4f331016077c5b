"""The table of transitions is complete, and docs/coordinator.md shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from zkgroups.coordinator import CoordinatorConfig, GroupState
from zkgroups.coordinator.group.events import (
    CommitReceived,
    GroupEvent,
    HeartbeatReceived,
    MemberIdRequested,
    MemberJoined,
    MemberRejoined,
    MemberSynced,
    StaticMemberReturned,
)
from zkgroups.coordinator.group.group import MAY_COME_AFTER
from zkgroups.coordinator.rules.transitions import TRANSITIONS
from zkgroups.exceptions import InvalidOptionError

ALIVE = set(GroupState) - {GroupState.DEAD}
WITH_MEMBERS = ALIVE - {GroupState.EMPTY}


def test_the_generated_page_is_up_to_date() -> None:
    script = Path(__file__).parents[2] / "scripts" / "coordinator_reference.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0, "run make docs"


@pytest.mark.parametrize(
    ("event", "states"),
    [
        (MemberIdRequested, ALIVE),
        (MemberJoined, ALIVE),
        (CommitReceived, ALIVE),
        (MemberRejoined, WITH_MEMBERS),
        (StaticMemberReturned, WITH_MEMBERS),
        (MemberSynced, WITH_MEMBERS),
        (HeartbeatReceived, WITH_MEMBERS),
    ],
)
def test_every_event_with_a_request_has_a_rule_so_that_it_is_answered(event: type, states: set[GroupState]) -> None:
    assert {state for state in GroupState if (state, event) in TRANSITIONS} == states


def test_every_event_has_a_rule_and_nothing_happens_to_a_dead_group() -> None:
    assert {event for _state, event in TRANSITIONS} == set(get_args(GroupEvent))
    assert {state for state, _event in TRANSITIONS} == ALIVE
    assert set(MAY_COME_AFTER) == set(GroupState)


@pytest.mark.parametrize(
    "options",
    [
        {"min_session_timeout": 0},
        {"min_session_timeout": 301},
        {"storage_timeout": 0},
        {"cleanup_interval": -1},
        {"initial_rebalance_delay": -1},
        {"max_members": 0},
        {"offset_retention": 0},
    ],
)
def test_impossible_settings_are_refused(options: dict) -> None:
    with pytest.raises(InvalidOptionError):
        CoordinatorConfig(**options)
