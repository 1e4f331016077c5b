"""Show or apply the offset changes that a reset, delete or import has planned.

`apply_changes` refuses a group with live instances or a migration mark, unless `--force` is given. It writes an offset
only if the node is still as it was when the plan was made. An obstacle in one group does not stop the others.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import click

from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.core.offsets.files import FileFormat, OffsetRecord, format_offsets
from zkgroups.core.offsets.reset import Adjustment, OffsetChange, Refusal
from zkgroups.core.znodes.values import UnreadableNode
from zkgroups.exceptions import (
    GroupInUseError,
    InterruptedDeleteError,
    OffsetConflictError,
    RefusedError,
    UnavailableError,
    ZkgroupsException,
)

from ..shared.arguments import execute_option
from ..shared.errors import Tally, sentence
from ..shared.global_options import as_typed
from ..shared.messages import complain, say
from ..shared.options import Options
from ..shared.output import GROUP_AT, Column, Output, Row, Table
from ..shared.parameter_types import FilePath, combined
from ..shared.private_files import file_exists, replace_file, write_new_file
from ..shared.signals import Terminated
from .read import Marks, marks_of, refuse_marked

# Files with the offsets as they were before a command changed or deleted them, for `zkgroups offsets import`.
#
# The file is on the disk before the first offset is changed, and an existing file is never overwritten. Afterwards it
# loses the offsets that were not changed: restoring them later would undo commits of consumers.


Changes: TypeAlias = Iterable[tuple[str, Sequence[OffsetChange]]]
"""The changes of each group."""


def _check_new(_ctx: click.Context, _param: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and os.path.lexists(file):
        raise file_exists(file)
    return file


undo_file_option: Final = click.option(
    "--undo-file",
    metavar="FILE",
    type=FilePath(path_type=Path),
    callback=_check_new,
    help="Save the old offsets to this new file first. `zkgroups offsets import` restores them.",
)


@contextmanager
def saved_offsets_file(
    options: Options, plans: Changes, file: Path | None, form: FileFormat = FileFormat.JSON, *, backward: bool = True
) -> Iterator[dict[str, Sequence[OffsetChange]]]:
    """Save the current offsets of all changes before the block, and leave only those that it made afterwards.

    The block puts the changes that were made, or may have been made, into the yielded dictionary, group by group.
    """
    made: dict[str, Sequence[OffsetChange]] = {}
    plans = list(plans)
    if file is not None:
        _save(options, plans, file, form, backward=backward)
    try:
        yield made
    finally:
        if file is not None:
            _shorten(options, len(_records(plans)), _records(made.items()), file, form)


def _save(options: Options, plans: Changes, file: Path, form: FileFormat, *, backward: bool) -> None:
    """Save the current offsets, and return only when the file is on the disk."""
    if not (records := _records(plans)):
        return
    write_new_file(file, format_offsets(records, form))
    more = ["--backward"] if backward else []
    say(options, f"Saved the old offsets to {file}. To restore them: {_import_command(options, file, *more)}")
    if missing := sum(record.offset is None for record in records):
        say(
            options,
            f"Partitions among them that had no valid offset: {missing}. The import leaves these unchanged; "
            "`zkgroups offsets delete` deletes their new offsets.",
        )


def _shorten(options: Options, saved: int, made: Sequence[OffsetRecord], file: Path, form: FileFormat) -> None:
    """Leave only these records in a file that was saved before."""
    if len(made) == saved:
        return
    if not made:
        file.unlink(missing_ok=True)
        say(options, f"No offset was changed, so {file} was deleted.")
        return
    try:
        replace_file(file, "".join(f"{line}\n" for line in format_offsets(made, form)), or_shorten=True)
    except OSError as error:
        unchanged = f"It also has {saved - len(made)} offsets that were not changed: do not restore those"
        complain(f"{file} could not be shortened: {error.strerror}. {unchanged}")
        return
    say(options, f"Offsets that were not changed are no longer in {file}: {saved - len(made)}.")


@contextmanager
def recorded_deletion(
    registry: Registry, group: str, changes: Sequence[OffsetChange], made: dict[str, Sequence[OffsetChange]]
) -> Iterator[None]:
    """Put the changes into `made` that the block makes, which deletes a group, or those that it may have made."""
    made[group] = changes  # at once, because an interruption may come at any moment
    try:
        yield
    except UnavailableError:
        raise
    except InterruptedDeleteError:
        with suppress(ZkgroupsException):
            registry.sync()
            left = {each.at for each in registry.group(group).offsets if isinstance(each, CommittedOffset)}
            made[group] = [change for change in changes if change.at not in left]
        raise
    except ZkgroupsException:
        del made[group]
        raise


def _records(plans: Changes) -> list[OffsetRecord]:
    return [_record(group, change) for group, changes in plans for change in changes if change.changes]


def _import_command(options: Options, file: Path, *more: str) -> str:
    """Return the command line that imports the file, with the connection options of this one."""
    name = f"./{file}" if str(file).startswith("-") else str(file)
    return shlex.join(["zkgroups", *as_typed(options), "offsets", "import", name, *more, "--execute"])


def _record(group: str, change: OffsetChange) -> OffsetRecord:
    if isinstance(change.found, UnreadableNode):
        return OffsetRecord(group, change.at, None, f"invalid offset: {change.found.shown}")
    return OffsetRecord(group, change.at, change.old, "nothing was committed" if change.found is None else None)


CHANGES: Final = Table(
    "changes",
    key="partition",
    columns=(
        *GROUP_AT,
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


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """The options `--execute`, `--force` and `--undo-file`."""

    execute: bool
    force: bool
    undo_file: Path | None


apply_options: Final = combined(
    execute_option,
    click.option(
        "--force", is_flag=True, help="Change offsets even if the group has registered instances, or was migrated."
    ),
    undo_file_option,
)
"""The options of `ApplyOptions`."""


def apply_changes(
    options: Options, registry: Registry, plans: Sequence[GroupChanges], apply: ApplyOptions, tally: Tally
) -> None:
    """With `--execute`, apply the plans and show the result; otherwise show the plans. Report every obstacle."""
    marks = marks_of(registry, [plan.group for plan in plans])
    allowed = [plan for plan in plans if _may_apply(options, registry, plan, marks, apply, tally)]
    interruption: list[BaseException] = []
    if apply.execute:
        saved = {} if apply.undo_file is None else {plan.group: plan.changes for plan in allowed}
        with saved_offsets_file(options, saved.items(), apply.undo_file) as made:
            rows = list(_applied(registry, allowed, apply, tally, saved, made, interruption))
            Output(options).write_done(CHANGES, rows)  # the file is shortened afterwards, which may fail
    else:
        rows = list(_shown(plans, {plan.group for plan in allowed}, tally))
        Output(options).write_done(CHANGES, rows)
    if interruption:
        raise interruption[0]
    _say_summary(options, plans, allowed, rows, apply)
    tally.finish()


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
        tally.failed(error, plan.group)
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
    saved: Mapping[str, Sequence[OffsetChange]],
    made: dict[str, Sequence[OffsetChange]],
    interruption: list[BaseException],
) -> Iterator[Row]:
    """Apply one plan after the other and yield its rows. Put changes that were or may have been made into `made`.

    An interruption ends the iteration. It is added to `interruption` and not raised, so that the caller can show the
    rows of the plans that were applied before it.
    """
    for plan in plans:
        made[plan.group] = saved.get(plan.group, ())  # at once, because an interruption may come at any moment
        try:
            conflicts = _replace(registry, plan, apply)
        except (UnavailableError, KeyboardInterrupt, Terminated) as error:
            complain(
                f"interrupted in group {plan.group!r}: some of its offsets may be written; later groups are unchanged"
            )
            interruption.append(error)
            return
        except ZkgroupsException as error:
            del made[plan.group]
            tally.failed(error, plan.group)
            continue
        made[plan.group] = [change for change in made[plan.group] if change.at not in conflicts]
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
                    tally.failed(conflict, plan.group)
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
        match change.refusal:
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
    return "; ".join(filter(None, (_old_text(change), _adjustment_text(change)))) or None


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
