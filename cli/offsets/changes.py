"""What becomes of many offsets, by a reset, delete or import: shown, kept for an undo, and carried out."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from zkgroups import Registry, TopicPartition, UnreadableNode
from zkgroups.core.offsets.file_formats import Form, Record, write
from zkgroups.core.offsets.reset import Move, Refused
from zkgroups.exceptions import GroupInUseError, OffsetConflictError, RefusedError, UnavailableError, ZkgroupsException

from ..shared.arguments import execute_option
from ..shared.errors import Tally, sentence
from ..shared.global_options import as_typed
from ..shared.input_files import FilePath
from ..shared.messages import complain, say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from ..shared.signals import Terminated

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

MOVES: Final = Table(
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
"""What a plan does to each offset; NEW is empty where it is forgotten, or stays as it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the offsets of one group."""

    group: str
    moves: Sequence[Move]


@dataclass(frozen=True, slots=True)
class Leave:
    """What the user has allowed: to do it at all, beside live instances, and where to keep what was there."""

    execute: bool
    force: bool
    undo_file: Path | None


def _must_be_new(_ctx: click.Context, _param: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and os.path.lexists(file):
        raise _exists(file)
    return file


def _exists(file: Path) -> RefusedError:
    return RefusedError(f"{file} already exists, and what it keeps may be needed: choose another name")


def leave_options(command: Decorated) -> Decorated:
    """The options that become a `Leave`: `--execute`, `--force` and `--undo-file`."""
    force = click.option("--force", is_flag=True, help="Also while the group has instances.")
    undo_file = click.option(
        "--undo-file",
        metavar="FILE",
        type=FilePath(path_type=Path),
        callback=_must_be_new,
        help="A new file that keeps what is there before it is changed; `offsets import` reads it.",
    )
    return execute_option(force(undo_file(command)))


def carry_out(options: Options, registry: Registry, plans: Sequence[Plan], leave: Leave, tally: Tally) -> None:
    """Show the plans, or carry them out and show what was done; in both cases say what is in the way."""
    allowed = [plan for plan in plans if _nobody_in_the_way(options, registry, plan, leave, tally)]
    broken: list[BaseException] = []
    if leave.execute:
        if leave.undo_file is not None:
            _keep(options, allowed, leave.undo_file)
        rows = list(_written(registry, allowed, leave, tally, broken))
    else:
        rows = list(_shown(plans, {plan.group for plan in allowed}, tally))
    Output(options).write_done(MOVES, rows)
    if broken:
        raise broken[0]  # what was done until then has been shown
    _say_what_was_done(options, plans, allowed, rows, leave)
    tally.finish()


def _say_what_was_done(
    options: Options, plans: Sequence[Plan], allowed: Sequence[Plan], rows: Sequence[Row], leave: Leave
) -> None:
    done = sum(row["done"] for row in rows)
    if leave.execute and done:
        say(options, f"Changed: {done}. As before: {len(rows) - done}.")
    elif leave.execute:
        return
    elif any(move.changes for plan in allowed for move in plan.moves):
        stays = len(allowed) < len(plans) or any(move.held for plan in allowed for move in plan.moves)
        say(options, f"Nothing was changed: --execute does it{', but for what is said above' if stays else ''}.")
    elif any(move.changes for plan in plans for move in plan.moves):
        say(options, "Nothing was changed, and --execute would be refused: see above.")


def _nobody_in_the_way(options: Options, registry: Registry, plan: Plan, leave: Leave, tally: Tally) -> bool:
    try:
        present = [instance.id for instance in registry.group(plan.group).living()]
        if present and not leave.force:
            raise GroupInUseError(plan.group, present)
    except UnavailableError:
        raise
    except ZkgroupsException as error:
        tally.failed(error)
        return False
    if present and any(move.changes for move in plan.moves):
        say(
            options,
            f"group {plan.group!r} is in use by {', '.join(present)}: they go on from where they are, not from here, "
            "and their next commit undoes this",
        )
    return True


def _shown(plans: Iterable[Plan], allowed: set[str], tally: Tally) -> Iterator[Row]:
    for plan in plans:
        for move in plan.moves:
            yield _row(plan.group, move, done=False)
            if plan.group in allowed and not move.held:
                with tally.attempt():
                    pass
        _count_held(plan, tally)


def _written(
    registry: Registry, plans: Iterable[Plan], leave: Leave, tally: Tally, broken: list[BaseException]
) -> Iterator[Row]:
    """Carry out one plan after the other. What was done is shown even if the next is interrupted."""
    for plan in plans:
        try:
            conflicts = _replace(registry, plan, leave)
        except (UnavailableError, KeyboardInterrupt, Terminated) as error:
            complain(f"of group {plan.group!r} some offsets may have been written, and of those after it none")
            broken.append(error)
            return
        except ZkgroupsException as error:
            tally.failed(error)
            continue
        told: list[ZkgroupsException] = []
        for move in plan.moves:
            conflict = conflicts.get(move.at)
            yield _row(plan.group, move, conflict, done=move.changes and conflict is None)
            if not move.held:
                if conflict is None or conflict in told:
                    with tally.attempt():
                        pass
                else:
                    told.append(conflict)
                    tally.failed(conflict)
        _count_held(plan, tally)


def _replace(registry: Registry, plan: Plan, leave: Leave) -> dict[TopicPartition, ZkgroupsException]:
    changes = [move for move in plan.moves if move.changes]
    if not changes:
        return {}
    return registry.group(plan.group).offsets.replace(
        {move.at: move.new for move in changes},
        expected={move.at: move.found for move in changes},
        force=leave.force,
    )


def _row(group: str, move: Move, conflict: ZkgroupsException | None = None, *, done: bool) -> Row:
    return {
        "group": group,
        "topic": move.at.topic,
        "partition": move.at.partition,
        "old": move.old,
        "new": move.new if conflict is None else None,
        "delta": move.delta if conflict is None else None,
        "note": move.note if conflict is None else _left_alone(conflict),
        "done": done,
    }


def _left_alone(because: ZkgroupsException) -> str:
    if isinstance(because, OffsetConflictError):
        return "changed meanwhile, left alone"
    return f"left alone: {sentence(because)}"


_ALLOWS: Final = {Refused.BACK: "--backward lets it", Refused.FORWARD: "--forward lets it skip messages"}
"""The option that allows such a move."""


def _count_held(plan: Plan, tally: Tally) -> None:
    held = [move for move in plan.moves if move.held]
    if held:
        reasons = Counter(_why_held(move) for move in held)
        counted = [f"{reason} ({number})" for reason, number in sorted(reasons.items())]
        why = next(iter(reasons)) if len(reasons) == 1 else ", ".join(counted)
        number = "1 offset stays" if len(held) == 1 else f"{len(held)} offsets stay"
        tally.failed(RefusedError(f"group {plan.group!r}: {number} as before: {why}"))


def _why_held(move: Move) -> str:
    hint = None if move.refused is None else _ALLOWS.get(move.refused)
    return str(move.note) if hint is None else f"{move.note}; {hint}"


# For an undo


def _keep(options: Options, plans: Iterable[Plan], file: Path) -> None:
    """Write down what is there, and make sure that it is on the disk before anything is changed."""
    records = [_kept(plan.group, move) for plan in plans for move in plan.moves if move.changes]
    if not records:
        return
    _write_new(file, "".join(f"{line}\n" for line in write(records, Form.JSON)))
    say(options, f"{file} keeps what was there: {bring_back(options, file, '--backward')} brings it back")
    if none := sum(record.offset is None for record in records):
        say(options, f"{none} of them had no offset; the import will say so, and `offsets delete` forgets it")


def bring_back(options: Options, file: Path, *more: str) -> str:
    """What to type to import a file, with what this command line says of the server."""
    name = f"./{file}" if str(file).startswith("-") else str(file)
    return shlex.join(["zkgroups", *as_typed(options), "offsets", "import", name, *more, "--execute"])


def _kept(group: str, move: Move) -> Record:
    if isinstance(move.found, UnreadableNode):
        return Record(group, move.at, None, f"was no offset: {move.found.shown}")
    return Record(group, move.at, move.old, "nothing was committed" if move.found is None else None)


def _write_new(file: Path, text: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError as error:
        raise _exists(file) from error
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}", click.get_current_context()) from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(descriptor)
        _sync_folder(file.absolute().parent)
    except OSError:
        file.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Or the file may be there, but not its name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
