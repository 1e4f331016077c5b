"""Show or apply the offset changes that a reset, delete or import has planned.

`apply_changes` refuses a group with live instances or a migration mark, unless `--force` is given. It writes an offset
only if the node is still as it was when the plan was made. An obstacle in one group does not stop the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from zkgroups import Registry, TopicPartition, UnreadableNode
from zkgroups.core.offsets.reset import Adjustment, OffsetChange, Refusal
from zkgroups.exceptions import GroupInUseError, OffsetConflictError, RefusedError, UnavailableError, ZkgroupsException

from ..shared.arguments import execute_option
from ..shared.errors_to_exit_codes import Tally, sentence
from ..shared.messages import complain, say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from ..shared.signals import Terminated
from .marked_groups import Marks, marks_of, refuse_marked
from .undo_file import save_undo_file, shorten_undo_file, undo_file_option

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

CHANGES: Final = Table(
    "changes",
    key="partition",
    columns=(
        Column("GROUP", "group"),
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
        Column("OLD", "old", right=True),
        Column("NEW", "new", right=True),
        Column("DELTA", "delta", right=True, show="{:+d}".format),
        Column("NOTE", "note"),
    ),
)
"""Offset changes. NEW is empty if the offset is deleted or left unchanged."""


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """The planned offset changes of one group."""

    group: str
    changes: Sequence[OffsetChange]


@dataclass(slots=True)
class _Outcome:
    """What became of the plans.

    - `left`: the partitions that were left unchanged, for each group in which something was or may have been changed.
    - `interruption`: why later groups were not begun.
    """

    left: dict[str, Collection[TopicPartition]] = field(default_factory=dict)
    interruption: BaseException | None = None


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """The options `--execute`, `--force` and `--undo-file`."""

    execute: bool
    force: bool
    undo_file: Path | None


def apply_options(command: Decorated) -> Decorated:
    """Add the options of `ApplyOptions` to a command."""
    force = click.option(
        "--force", is_flag=True, help="Change offsets even if the group has registered instances, or was migrated."
    )
    return execute_option(force(undo_file_option(command)))


def apply_changes(
    options: Options, registry: Registry, plans: Sequence[GroupChanges], apply: ApplyOptions, tally: Tally
) -> None:
    """With `--execute`, apply the plans and show the result; otherwise show the plans. Report every obstacle."""
    marks = marks_of(registry, [plan.group for plan in plans])
    allowed = [plan for plan in plans if _may_apply(options, registry, plan, marks, apply, tally)]
    outcome = _Outcome()
    if apply.execute:
        with _undo_file(options, allowed, apply.undo_file, outcome):
            rows = list(_applied(registry, allowed, apply, tally, outcome))
    else:
        rows = list(_shown(plans, {plan.group for plan in allowed}, tally))
    Output(options).write_done(CHANGES, rows)
    if outcome.interruption is not None:
        raise outcome.interruption
    _say_summary(options, plans, allowed, rows, apply)
    tally.finish()


@contextmanager
def _undo_file(options: Options, plans: Sequence[GroupChanges], file: Path | None, outcome: _Outcome) -> Iterator[None]:
    """Save the old offsets before the changes. Afterwards leave only those that were or may have been changed."""
    if file is None:
        yield
        return
    saved = [(plan.group, plan.changes) for plan in plans]
    save_undo_file(options, saved, file)
    yield
    left = outcome.left
    made = [(group, [each for each in some if each.at not in left[group]]) for group, some in saved if group in left]
    shorten_undo_file(options, saved, made, file)


def _say_summary(
    options: Options,
    plans: Sequence[GroupChanges],
    allowed: Sequence[GroupChanges],
    rows: Sequence[Row],
    apply: ApplyOptions,
) -> None:
    done = sum(row["done"] for row in rows)
    if apply.execute and done:
        say(options, f"Changed: {done}. Unchanged: {len(rows) - done}.")
    elif apply.execute:
        return
    elif any(change.changes for plan in allowed for change in plan.changes):
        refused = len(allowed) < len(plans) or any(change.is_refused for plan in allowed for change in plan.changes)
        exceptions = ", except for the changes refused above" if refused else ""
        say(options, f"Nothing was changed: add --execute to apply{exceptions}.")
    elif any(change.changes for plan in plans for change in plan.changes):
        say(options, "Nothing was changed, and --execute would be refused: see above.")


def _may_apply(
    options: Options, registry: Registry, plan: GroupChanges, marks: Marks, apply: ApplyOptions, tally: Tally
) -> bool:
    try:
        if not apply.force:
            refuse_marked(plan.group, marks)
        living = [instance.id for instance in registry.group(plan.group).living()]
        if living and not apply.force:
            raise GroupInUseError(plan.group, living)
    except UnavailableError:
        raise
    except ZkgroupsException as error:
        tally.failed(error)
        return False
    if living and any(change.changes for change in plan.changes):
        say(
            options,
            f"group {plan.group!r} is in use by {', '.join(living)}: they keep reading from their own positions, and "
            "their next commit may overwrite the new offsets",
        )
    return True


def _shown(plans: Iterable[GroupChanges], allowed: set[str], tally: Tally) -> Iterator[Row]:
    for plan in plans:
        for change in plan.changes:
            yield _row(plan.group, change, done=False)
            if plan.group in allowed and not change.is_refused:
                with tally.attempt():
                    pass
        _count_refused(plan, tally)


def _applied(
    registry: Registry,
    plans: Iterable[GroupChanges],
    apply: ApplyOptions,
    tally: Tally,
    outcome: _Outcome,
) -> Iterator[Row]:
    """Apply one plan after the other and yield its rows.

    An interruption ends the iteration. It is noted in the outcome and not raised, so that the caller can show the rows
    of the plans that were applied before it.
    """
    for plan in plans:
        try:
            conflicts = _replace(registry, plan, apply)
        except (UnavailableError, KeyboardInterrupt, Terminated) as error:
            complain(
                f"interrupted in group {plan.group!r}: some of its offsets may be written; later groups are unchanged"
            )
            outcome.interruption = error
            outcome.left[plan.group] = ()
            return
        except ZkgroupsException as error:
            tally.failed(error)
            continue
        outcome.left[plan.group] = conflicts
        reported: list[ZkgroupsException] = []
        for change in plan.changes:
            conflict = conflicts.get(change.at)
            yield _row(plan.group, change, conflict, done=change.changes and conflict is None)
            if not change.is_refused:
                if conflict is None or conflict in reported:
                    with tally.attempt():
                        pass
                else:
                    reported.append(conflict)
                    tally.failed(conflict)
        _count_refused(plan, tally)


def _replace(registry: Registry, plan: GroupChanges, apply: ApplyOptions) -> dict[TopicPartition, ZkgroupsException]:
    changes = [change for change in plan.changes if change.changes]
    if not changes:
        return {}
    return registry.group(plan.group).offsets.replace(
        {change.at: change.new for change in changes},
        expected={change.at: change.found for change in changes},
        force=apply.force,
    )


def _row(group: str, change: OffsetChange, conflict: ZkgroupsException | None = None, *, done: bool) -> Row:
    return {
        "group": group,
        "topic": change.at.topic,
        "partition": change.at.partition,
        "old": change.old,
        "new": change.new if conflict is None else None,
        "delta": change.delta if conflict is None else None,
        "note": change_note(change) if conflict is None else _conflict_note(conflict),
        "done": done,
    }


# Texts


def _conflict_note(conflict: ZkgroupsException) -> str:
    if isinstance(conflict, OffsetConflictError):
        return "left unchanged: another client changed it"
    return f"left unchanged: {sentence(conflict)}"


def change_note(change: OffsetChange) -> str | None:
    """Return the text for NOTE: why the change is refused, or why it differs from the request."""
    if change.refusal is not None:
        return _refusal_text(change, change.refusal)
    return "; ".join(filter(None, (_old_text(change), _adjustment_text(change)))) or None


def _refusal_text(change: OffsetChange, refusal: Refusal) -> str:
    match refusal:
        case Refusal.WOULD_GO_BACK:
            return "would go back"
        case Refusal.WOULD_GO_FORWARD:
            return "would go forward"
        case Refusal.MAY_GO_BACK:
            return "; ".join(filter(None, (f"may go back: {_old_text(change)}", _adjustment_text(change))))
        case Refusal.NO_TARGET:
            return "no offset is given for it"
        case Refusal.NOT_COMMITTED:
            return "no offset is committed"
        case Refusal.NOT_VALID:
            return str(_old_text(change))
        case Refusal.UNKNOWN_TO_BROKERS:
            return "log unknown"
        case Refusal.TOO_LARGE:
            return f"{change.requested} is larger than 2^63-1"


def _adjustment_text(change: OffsetChange) -> str | None:
    match change.adjustment:
        case Adjustment.BELOW_ZERO:
            return f"{change.requested} is below 0"
        case Adjustment.BEFORE_LOG_START:
            return f"{change.requested} is before the log start"
        case Adjustment.PAST_LOG_END:
            return f"{change.requested} is past the log end"
        case None:
            return None


def _old_text(change: OffsetChange) -> str | None:
    return f"invalid offset: {change.found.reason}" if isinstance(change.found, UnreadableNode) else None


_HINTS: Final = {
    Refusal.WOULD_GO_BACK: "--backward allows it",
    Refusal.WOULD_GO_FORWARD: "--forward allows it, and skips messages",
}


def _count_refused(plan: GroupChanges, tally: Tally) -> None:
    refused = [change for change in plan.changes if change.is_refused]
    if refused:
        reasons = Counter(_refusal_with_hint(change) for change in refused)
        counted = [f"{reason} ({number})" for reason, number in sorted(reasons.items())]
        why = next(iter(reasons)) if len(reasons) == 1 else ", ".join(counted)
        number = "1 offset is" if len(refused) == 1 else f"{len(refused)} offsets are"
        tally.failed(RefusedError(f"group {plan.group!r}: {number} left unchanged: {why}"))


def _refusal_with_hint(change: OffsetChange) -> str:
    hint = None if change.refusal is None else _HINTS.get(change.refusal)
    return str(change_note(change)) if hint is None else f"{change_note(change)}; {hint}"
