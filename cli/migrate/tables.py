"""The tables of the migrate commands: groups and offsets of a plan, results, and differences."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.migration.follow_rules import some
from zkgroups.core.migration.obstacles import NEXT_STEPS, Obstacle
from zkgroups.core.migration.offset_decision import NOT_WRITTEN, Action, Policy, Reason, Rule
from zkgroups.core.migration.plan_rows import GroupPlan, GroupResult, Match, Outcome, PlanRow
from zkgroups.core.times import utc

from ..shared.output import AT, Column, Row, Table

DAY: Final = 86_400.0

_COLOURS: Final = {
    **dict.fromkeys(("ready", "done"), "green"),
    **dict.fromkeys(("blocked", "left", "failed", "overtaken"), "red"),
}

_GROUP: Final = (Column("GROUP", "group"), Column("TARGET", "target"))


def days(seconds: float) -> str:
    """Format a duration.

    >>> days(604800.0), days(5400.0)
    ('7d', '1.5h')
    """
    return f"{seconds / DAY:g}d" if seconds >= DAY else f"{seconds / 3600:g}h"


def counts_text(counts: Mapping[str, int]) -> str:
    """Format counts by name, without zeros."""
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def _counts(names: Iterable[str], field: str) -> tuple[Column, ...]:
    return tuple(Column(name.upper().replace(" ", "-"), f"{field}.{key(name)}", right=True) for name in names)


def key(name: str) -> str:
    """Convert a name to a JSON key.

    >>> key("would write")
    'would_write'
    """
    return name.replace(" ", "_")


def _key_counts_text(counts: Mapping[str, int]) -> str:
    """Format counts by JSON key."""
    return counts_text({name.replace("_", " "): count for name, count in counts.items()})


# Plans

_PLANNED_STATES: Final = ("ready", "nothing to do", "blocked")


def _state(group: GroupPlan) -> str:
    """Return the state of a group of a plan."""
    if group.obstacles:
        return "blocked"
    return "ready" if group.counts.get(Action.COMMIT) else "nothing to do"


PLANNED: Final = Table(
    "groups",
    key="group",
    columns=(
        *_GROUP,
        Column("STATE", "state", styles=_COLOURS),
        *_counts(Action, "actions"),
        Column("LAG-BEFORE", "lag_before", right=True),
        Column("LAG-AFTER", "lag_after", right=True),
        Column("KEPT-FOR", "retention_seconds", wide=True, right=True, show=days),
        Column("REASONS", "reasons", wide=True, show=_key_counts_text),
        Column("OBSTACLES", "obstacles"),
    ),
)


def planned_row(group: GroupPlan, retention_seconds: float | None) -> Row:
    """Return the row for a group of a plan."""
    actions = {action.value: group.counts.get(action, 0) for action in Action}
    return {
        "group": group.group,
        "target": group.target,
        "state": _state(group),
        "actions": actions,
        "reasons": {key(reason): group.counts[reason] for reason in Reason if group.counts.get(reason)},
        "lag_before": group.lag_before,
        "lag_after": group.lag_after,
        "retention_seconds": retention_seconds,
        "obstacles": list(map(str, group.obstacles)),
    }


def _decisions(counts: Mapping[str, int]) -> str:
    """Format the numbers of commits and of other actions, each with their reasons. A single reason has no number."""
    committed = {Reason.UNCHANGED, Reason.CLAMPED, Reason.CLAMPED_ANEW, Reason.BACKWARD, Reason.LOG_NOT_CHECKED}
    texts = []
    for is_commit in (True, False):
        actions = {str(each): counts[each] for each in Action if (each is Action.COMMIT) is is_commit and counts[each]}
        reasons = {str(each): counts[each] for each in Reason if (each in committed) is is_commit and counts[each]}
        if actions:
            reason = counts_text(reasons) if len(reasons) > 1 else "".join(reasons)
            texts.append(f"{counts_text(actions)} ({reason})")
    return ", ".join(texts) or "none"


def plan_summary(head: PlanRow, groups: Sequence[GroupPlan]) -> str:
    """Return the lines below a plan: its origin, its options, and its numbers of groups and offsets."""
    states = Counter(_state(group) for group in groups)
    counts = sum((Counter(group.counts) for group in groups), Counter[str]())
    brokers = f"for {head.brokers}" if head.brokers else "without brokers: it can only be shown and exported"
    lines = [
        f"Plan {head.plan}, made at {utc(head.planned_ms)} from {head.source} {brokers}.",
        *([f"Layout: {head.layout}."] if head.layout != LEGACY.text else []),
        *([f"Options: {head.rule}."] if head.rule else []),
        f"Groups: {counts_text({name: states[name] for name in _PLANNED_STATES})}. Offsets: {_decisions(counts)}.",
    ]
    if states["blocked"]:
        kinds = dict.fromkeys(found.kind for group in groups for found in group.obstacles)
        lines.append("What to do about the obstacles:")
        lines.extend(f"  {kind.replace('-', ' ')}: {NEXT_STEPS[kind]}" for kind in kinds)
        lines.append("Blocked groups stay blocked in this plan. To check again, make a new plan in another folder.")
    if head.retention_seconds is not None:
        lines.append(f"The brokers keep the offsets of an unused group for {days(head.retention_seconds)}.")
    return "\n".join([*lines, reset_advice(counts, head.rule)])


RESET_ADVICE: Final = (
    "Give the new consumers auto.offset.reset=earliest: in a partition without an offset, latest (the default) skips "
    "all messages written before they start."
)


def reset_advice(counts: Mapping[str, int], rule: str | None) -> str:
    """Return where the new consumers of a plan start without a planned offset, and how to configure them.

    >>> reset_advice({"never committed": 2, "no offset": 1}, "on-unreadable=block").partition(". ")[0]
    'Partitions without an offset on the brokers: 2 never committed'
    """
    chosen = Rule.parse(rule)
    policies = {
        **dict.fromkeys((Reason.NO_OFFSET, Reason.NEGATIVE), chosen.on_unreadable),
        **dict.fromkeys((Reason.OLDER, Reason.BEFORE_START, Reason.PAST_END), chosen.on_out_of_range),
    }
    skipped = [each for each in NOT_WRITTEN if policies.get(each, Policy.SKIP) is Policy.SKIP]
    text = counts_text({reason: counts.get(reason, 0) for reason in skipped})
    lines = (
        [RESET_ADVICE] if text == "none" else [f"Partitions without an offset on the brokers: {text}. {RESET_ADVICE}"]
    )
    if ahead := counts.get(Reason.TARGET_AHEAD):
        lines.append(
            f"Offsets that are higher on the brokers than in ZooKeeper, and stay: {ahead}. New consumers do not read "
            "the messages between. To write the lower offsets, make a new plan with --backward."
        )
    return "\n".join(lines)


def plan_size(groups: Sequence[GroupPlan]) -> str:
    """Return how many groups a plan has, and the first of them, before anything is written."""
    blocked = sum(bool(each.obstacles) for each in groups)
    text = f"Groups in the plan: {len(groups)} ({some([each.group for each in groups])})"
    return f"{text}; blocked: {blocked}." if blocked else f"{text}."


OFFSETS: Final = Table(
    "offsets",
    key="partition",
    columns=(
        *_GROUP,
        *AT,
        Column("OFFSET", "offset", right=True),
        Column("COMMITTED", "committed_ms", wide=True, show=utc),
        Column("STALE", "stale", wide=True, show=lambda stale: "yes" if stale else "no"),
        Column("LOG-START", "log_start", right=True),
        Column("LOG-END", "log_end", right=True),
        Column("BEFORE", "before", right=True),
        Column("PLANNED", "planned", right=True),
        Column("ACTION", "action", styles={"refuse": "red"}),
        Column("REASON", "reason"),
        Column("PROBLEM", "problem", wide=True),
    ),
)


def plain(row: Any) -> dict[str, Any]:
    """Convert a dataclass or a named tuple to JSON values."""
    names = getattr(row, "_fields", None) or [each.name for each in dataclasses.fields(row)]
    return {name: _value(getattr(row, name)) for name in names}


def _value(value: Any) -> Any:
    """Convert obstacles to text, and an empty text to null."""
    if isinstance(value, tuple):
        return [str(each) if isinstance(each, Obstacle) else each for each in value]
    return None if value == "" else value


# Results

_RARE: Final = (Outcome.OVERTAKEN, Outcome.NEWER)
"""The outcomes that are only shown in wide tables."""

DONE: Final = Table(
    "groups",
    key="group",
    columns=(
        *_GROUP,
        Column("RESULT", "result", styles=_COLOURS),
        *_counts((each for each in Outcome if each not in _RARE), "outcomes"),
        *(each._replace(wide=True) for each in _counts(_RARE, "outcomes")),
        Column("WHY", "details"),
    ),
)


def done_row(group: GroupResult) -> Row:
    """Return the row for the result of a group."""
    outcomes = {key(outcome): group.counts.get(outcome, 0) for outcome in Outcome}
    return {
        "group": group.group,
        "target": group.target,
        "result": _result(outcomes),
        "outcomes": outcomes,
        "details": list(group.details),
    }


def _result(outcomes: Mapping[str, int]) -> str:
    for outcome in (Outcome.LEFT, Outcome.FAILED, Outcome.OVERTAKEN):
        if outcomes[key(outcome)]:
            return outcome
    if outcomes[key(Outcome.WOULD_WRITE)]:
        return "ready"
    return "done" if outcomes[key(Outcome.WRITTEN)] or outcomes[key(Outcome.THERE)] else "nothing to do"


REPORT: Final = Table(
    "offsets",
    key="partition",
    columns=(
        *_GROUP,
        *AT,
        Column("STEP", "step"),
        Column("FOUND", "found", right=True),
        Column("WRITTEN", "written", right=True),
        Column("OUTCOME", "outcome", styles=_COLOURS),
        Column("DETAIL", "detail"),
    ),
)

# Differences

MATCHES: Final = Table(
    "differences",
    key="partition",
    columns=(
        *_GROUP,
        *AT,
        Column("ZOOKEEPER", "offset", right=True),
        Column("KAFKA", "native", right=True),
        Column("EXPECTED", "expected", right=True),
        Column("MATCH", "match", styles={Match.EQUAL.value: "green"}),
        Column("DUAL-COMMIT", "dual_commit"),
        Column("DETAIL", "detail"),
    ),
)


# Status

_STAGES: Final = {"done": "green", "blocked": "red", **dict.fromkeys(("partly", "moved on", "not marked"), "yellow")}
STATES: Final = Table(
    "groups",
    key="group",
    columns=(
        *_GROUP,
        Column("STAGE", "stage", styles=_STAGES),
        Column("AS-PLANNED", "as_planned", right=True),
        Column("AS-BEFORE", "as_before", right=True),
        Column("OTHERWISE", "otherwise", right=True),
        Column("MARK", "mark", wide=True),
        Column("DETAIL", "detail"),
    ),
)
