"""The states and summaries that the migrate commands show."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from zkgroups_cli.migrate.tables import done_row, plan_summary, planned_row

from tests.migration.rows import row
from zkgroups import TopicPartition
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Decision, Reason
from zkgroups.core.migration.plan_rows import GroupPlan, GroupResult, Outcome

HEAD = row("g", "g", TopicPartition("t", 0), Decision(Action.COMMIT, Reason.UNCHANGED, 1), offset=1, zxid=1)


def group(counts: Mapping[str, int], *obstacles: Obstacle) -> GroupPlan:
    return GroupPlan(group="g", target="g", obstacles=obstacles, counts=counts, lag_before=None, lag_after=None)


READY = group({Action.COMMIT: 2, Reason.UNCHANGED: 2})
IDLE = group({Action.SKIP: 1, Reason.NEGATIVE: 1})
BLOCKED = group(
    {Action.REFUSE: 3, Reason.PAST_END: 3}, Obstacle(ObstacleKind.REFUSED_OFFSETS, count=3, reason=Reason.PAST_END)
)


def test_a_group_with_only_skipped_offsets_has_nothing_to_do_and_is_not_ready() -> None:
    assert [planned_row(each, None)["state"] for each in (READY, IDLE, BLOCKED)] == [
        "ready",
        "nothing to do",
        "blocked",
    ]
    text = plan_summary(HEAD, [READY, IDLE, BLOCKED])
    assert "Groups: 1 ready, 1 nothing to do, 1 blocked. Offsets: 2 commit, 1 skip, 3 refuse" in text


def test_the_summary_explains_how_to_move_offsets_outside_the_log() -> None:
    assert "--on-out-of-range" in plan_summary(HEAD, [READY, BLOCKED])
    assert "make a new plan" in plan_summary(HEAD, [READY, BLOCKED])
    assert plan_summary(HEAD, [READY, IDLE]).splitlines()[2:] == [
        "The brokers keep the offsets of an unused group for 7d."
    ]


def test_the_summary_says_once_what_to_do_about_each_kind_of_obstacle() -> None:
    busy = group({}, Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["anna"]))
    lines = plan_summary(HEAD, [READY, busy, BLOCKED, busy]).splitlines()
    assert lines.count("What to do about the obstacles:") == 1
    stop = "  legacy instances: Stop these instances, or use `migrate follow`, which waits until they stop."
    assert lines.count(stop) == 1
    assert any(line.startswith("  refused offsets: List them with `migrate show --offsets`.") for line in lines)
    assert "What to do" not in plan_summary(HEAD, [READY])


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
def test_the_result_of_a_group_is_one_word(counts: dict[str, int], result: str) -> None:
    assert done_row(GroupResult(group="g", target="g", details=(), counts=counts))["result"] == result
