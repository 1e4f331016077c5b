"""What a migration says of groups, in one word each and as a whole."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from zkgroups_cli.migrate.tables import done_row, plan_told, planned_row

from tests.migration.rows import row
from zkgroups import TopicPartition
from zkgroups.core.migration.plan_rows import GroupPlan, Outcome
from zkgroups.core.migration.rules import Action, Decision, Reason

HEAD = row("g", "g", TopicPartition("t", 0), Decision(Action.COMMIT, Reason.UNCHANGED, 1), offset=1, zxid=1)


def group(counts: Mapping[str, int], *obstacles: str) -> GroupPlan:
    return GroupPlan(group="g", target="g", obstacles=obstacles, counts=counts, lag_before=None, lag_after=None)


READY = group({Action.COMMIT: 2, Reason.UNCHANGED: 2})
IDLE = group({Action.SKIP: 1, Reason.NEGATIVE: 1})
BLOCKED = group({Action.REFUSE: 3, Reason.PAST_END: 3}, "3 refused: past the end")


def test_a_group_of_which_all_is_skipped_has_nothing_to_do_and_is_not_counted_as_ready() -> None:
    assert [planned_row(each, None)["state"] for each in (READY, IDLE, BLOCKED)] == [
        "ready",
        "nothing to do",
        "blocked",
    ]
    told = plan_told(HEAD, [READY, IDLE, BLOCKED])
    assert "Groups: 1 ready, 1 nothing to do, 1 blocked. Offsets: 2 commit, 1 skip, 3 refuse" in told


def test_of_offsets_that_are_not_in_the_log_it_is_said_what_can_be_done() -> None:
    assert "--on-out-of-range" in plan_told(HEAD, [READY, BLOCKED])
    assert "only a new plan" in plan_told(HEAD, [READY, BLOCKED])
    assert plan_told(HEAD, [READY, IDLE]).splitlines()[2:] == [
        "The brokers keep offsets of a group that nobody uses for 7d."
    ]


@pytest.mark.parametrize(
    ("counts", "result"),
    [
        ({Outcome.SKIPPED: 3}, "nothing to do"),
        ({Outcome.SKIPPED: 1, Outcome.THERE: 1}, "done"),
        ({Outcome.SKIPPED: 1, Outcome.WRITTEN: 1}, "done"),
        ({Outcome.THERE: 1, Outcome.WOULD_WRITE: 1}, "ready"),
        ({Outcome.WRITTEN: 1, Outcome.FAILED: 1}, "failed"),
        ({Outcome.WRITTEN: 1, Outcome.OVERTAKEN: 1}, "overtaken"),
        ({Outcome.LEFT: 2}, "left"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_became_of_a_group_is_told_in_one_word(counts: dict[str, int], result: str) -> None:
    assert done_row(group(counts))["result"] == result
