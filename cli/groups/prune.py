"""`zkgroups groups prune`: delete unused groups, after exporting their offsets to a file."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from zkgroups import GroupDescription, Registry
from zkgroups.core.doctor.unused_groups import in_use, unreadable_nodes
from zkgroups.core.offsets.file_formats import FileFormat, OffsetRecord
from zkgroups.core.offsets.file_writer import format_offsets
from zkgroups.core.time_formats import duration_text
from zkgroups.core.times import to_ms, utc

from ..offsets.undo_file import import_command
from ..shared.arguments import chosen_groups, execute_option, matching_option, maybe_groups_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.durations import duration_option
from ..shared.errors_to_exit_codes import Tally, partly
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FilePath
from ..shared.messages import complain, say
from ..shared.new_files import file_exists, write_new_file
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from ..shared.progress import counted
from .description_rows import describe_groups, forbidden_nodes

PRUNED: Final = Table(
    "groups",
    key="group",
    columns=(
        Column("GROUP", "group"),
        Column("OFFSETS", "offsets", right=True),
        Column("LAST-COMMIT", "last_commit_ms", show=utc),
        Column("CREATED", "created_ms", show=utc, wide=True),
        Column("AGE", "idle_seconds", show=duration_text, right=True),
    ),
)


@dataclass(frozen=True, slots=True)
class _UnusedGroup:
    """A group without instances and owners, with its age in seconds."""

    group: GroupDescription
    created_ms: int
    seconds: int


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@duration_option(
    "--older-than",
    "age",
    required=True,
    help="Delete groups without a commit for this long",
)
@click.option(
    "--export",
    type=FilePath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Save the offsets to this new file first, for `zkgroups offsets import`. Required with --execute.",
)
@execute_option
@click.pass_obj
def prune(
    options: Options,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    age: int,
    export: Path | None,
    execute: bool,
) -> None:
    """Delete unused groups: those without instances, owners and recent commits.

    The command considers the named groups, or all groups. For a group without offsets, the age of its znode counts. A
    group with unreadable nodes is left unchanged and reported; the exit code is then 9.

    Without --execute, the command only shows what it would delete. With it, the offsets of these groups are first saved
    to the --export file. A group in which a client registers or commits in the meantime is not deleted.
    Ages are by the clock of this machine. A group is deleted only if it is old enough by ZooKeeper's clock, too.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups prune --older-than 90d
      zkgroups -z zk1:2181/kafka groups prune --older-than 90d --groups 'test-.*'
      zkgroups -z zk1:2181/kafka groups prune --older-than 90d --export pruned.jsonl --execute
    """
    if execute:
        _check(export)
    tally = Tally()
    with connected(options, writes=execute) as registry:
        chosen = chosen_groups(registry, names, matching) if names or matching else registry.groups()
        found = list(counted(options, describe_groups(registry, chosen, tally, must_exist=names), "groups"))
        old = _old_groups(registry, [group for group in found if not forbidden_nodes(group)], age)
        plan = [each for each in old if not unreadable_nodes(each.group)]
        if export is not None and execute and plan:
            _export(export, plan)
            say(options, f"Saved their offsets to {export}. To restore them: {import_command(options, export)}")
        output = Output(options)
        if execute:
            output.write_done(PRUNED, _delete_groups(options, registry, plan, age, tally))
        else:
            output.write(PRUNED, map(_row, plan))
    if not plan and not names:
        say(options, "Nothing to delete: no group has been unused for that long.")
    elif plan and not execute:
        say(options, f"Nothing was changed: add {'' if export else '--export FILE '}--execute to apply.")
    _report_remaining(options, names, found, old)
    tally.finish()
    if len(plan) < len(old):
        raise click.exceptions.Exit(ExitCode.PARTIAL)


def _check(export: Path | None) -> None:
    if export is None:
        raise click.UsageError(
            "--execute needs --export FILE, to save the deleted offsets", click.get_current_context()
        )
    if os.path.lexists(export):
        raise file_exists(export)


def _old_groups(registry: Registry, groups: Iterable[GroupDescription], age: int) -> list[_UnusedGroup]:
    """Return the unused groups without a commit for at least `age` seconds, by the local clock."""
    unused = {group.group: group for group in groups if not in_use(group)}
    now_ms = int(time.time() * 1000)
    idle = [
        _UnusedGroup(
            unused[name], to_ms(created_at), (now_ms - to_ms(unused[name].last_commit_at or created_at)) // 1000
        )
        for name, created_at in registry.created_at(unused).items()
    ]
    return [each for each in idle if each.seconds >= age]


def _export(file: Path, groups: Iterable[_UnusedGroup]) -> None:
    """Write the offsets to a new file, and return only when it is on the disk."""
    offsets = (partition.offset for each in groups for partition in each.group.partitions)
    records = (OffsetRecord.of(offset) for offset in offsets if offset is not None)
    write_new_file(file, format_offsets(records, FileFormat.JSONL))


def _delete_groups(
    options: Options, registry: Registry, groups: Iterable[_UnusedGroup], age: int, tally: Tally
) -> Iterator[Row]:
    for each in groups:
        with tally.attempt():
            offsets = [partition.offset for partition in each.group.partitions if partition.offset is not None]
            name = each.group.group
            with partly(
                f"interrupted in group {name!r}: some of its offsets may be deleted; the --export file has all"
            ):
                registry.group(each.group.group).prune(offsets, unused_for=age)
            say(options, f"deleted {each.group.group}")
            yield _row(each)


def _row(each: _UnusedGroup) -> Row:
    return {
        "group": each.group.group,
        "offsets": each.group.offsets,
        "last_commit_ms": to_ms(each.group.last_commit_at) or None,
        "created_ms": each.created_ms,
        "idle_seconds": each.seconds,
    }


def _report_remaining(
    options: Options, named: Collection[str], found: Iterable[GroupDescription], old: Iterable[_UnusedGroup]
) -> None:
    """Report why old groups with unreadable nodes, and named groups, are not deleted."""
    old_names = {each.group.group for each in old}
    for group in found:
        if group.group in old_names:
            for node in unreadable_nodes(group)[:1]:
                complain(f"group {group.group} is not deleted: {node.path} cannot be read ({node.reason})")
        elif group.group in named and not forbidden_nodes(group):
            say(options, f"group {group.group} is not deleted: it is {'in use' if in_use(group) else 'not old enough'}")
