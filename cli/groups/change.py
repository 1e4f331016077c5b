"""`zkgroups groups create`, `copy`, `delete` and `prune`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from zkgroups import (
    CommittedOffset,
    ForbiddenNode,
    GroupDescription,
    GroupState,
    InstanceState,
    Registry,
    TopicPartition,
    UnreadableNode,
)
from zkgroups.core.doctor.group_nodes import in_use, unreadable_nodes
from zkgroups.core.offsets.files import FileFormat
from zkgroups.core.offsets.reset import OffsetChange, plan_delete
from zkgroups.core.time_formats import duration_text
from zkgroups.core.times import to_ms, utc
from zkgroups.core.znodes.paths import GroupPaths
from zkgroups.core.znodes.topic_partition import check_group
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import (
    GroupExistsError,
    GroupInUseError,
    GroupNotFoundError,
    NoPermissionError,
    ZkgroupsException,
)

from ..offsets.apply_changes import recorded_deletion, saved_offsets_file, undo_file_option
from ..offsets.read import place_of
from ..shared.arguments import (
    chosen_groups,
    execute_option,
    group_argument,
    groups_argument,
    matching_option,
    maybe_groups_argument,
)
from ..shared.connect import connected
from ..shared.errors import Tally, partly
from ..shared.global_options import Command
from ..shared.messages import complain, counted, say
from ..shared.options import ExitCode, Options
from ..shared.output import GROUP_AT, Column, Output, Row, Table
from ..shared.parameter_types import Duration, FilePath, usage_error
from ..shared.private_files import file_exists
from .describe import describe_groups, forbidden_nodes

# `zkgroups groups create`: create the directories of groups.


@click.command(cls=Command)
@groups_argument
@click.pass_obj
def create(options: Options, names: tuple[str, ...]) -> None:
    """Create the directories of groups, as the first instance of a group does. Existing groups are left unchanged.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups create invoices shipping
    """
    tally = Tally()
    with connected(options, writes=True, creates=True) as registry:
        for name in names:
            with tally.attempt():
                existed = registry.group(name).exists()
                registry.group(name).create()
                say(options, f"{name} already exists" if existed else f"created {name}")
    tally.finish()


# `zkgroups groups copy`: copy the offsets of a group to a new group.


COPIES: Final = Table(
    "offsets",
    key="group",
    columns=(
        *GROUP_AT,
        Column("OFFSET", "offset", right=True),
    ),
)


@click.command(cls=Command)
@group_argument
@click.argument("to", metavar="TO", callback=lambda _ctx, _param, name: check_group(name))
@execute_option
@click.pass_obj
def copy(options: Options, group: str, to: str, execute: bool) -> None:
    """Copy the offsets of GROUP to a new group TO, which must not exist. Registrations and owners are not copied.

    Without --execute, the command only shows what it would copy. Nodes without a valid offset are left out and
    reported; the exit code is then 9.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups copy billing billing-blue
      zkgroups -z zk1:2181/kafka groups copy billing billing-blue --execute
    """
    with connected(options, writes=execute) as registry:
        found = _copyable(registry, group, to)
        if execute:
            with partly(f"group {to} may be incomplete: delete it with `zkgroups groups delete {to} --execute`"):
                left_out = registry.group(group).copy(to).left_out
            found = [*registry.group(to).offsets, *left_out]
    Output(options).write(
        COPIES,
        [
            {
                "group": to,
                "topic": each.at.topic,
                "partition": each.at.partition,
                "offset": each.offset,
            }
            for each in found
            if isinstance(each, CommittedOffset)
        ],
    )
    say(options, f"copied {group} to {to}" if execute else "Nothing was changed: add --execute to apply.")
    unreadable = [each for each in found if isinstance(each, UnreadableNode)]
    for node in unreadable:
        complain(f"left out: {node.path} ({node.reason})")
    if unreadable:
        raise click.exceptions.Exit(ExitCode.PARTIAL)


def _copyable(registry: Registry, group: str, to: str) -> list[CommittedOffset | UnreadableNode]:
    """Return the offsets to copy and the nodes to skip. A forbidden node is an error: it may hide offsets."""
    if not registry.group(group).exists():
        raise GroupNotFoundError(group)
    if registry.group(to).exists():
        raise GroupExistsError(to)
    found = list(registry.group(group).offsets)
    for each in found:
        if isinstance(each, ForbiddenNode):
            raise NoPermissionError(each.path)
    return found


# `zkgroups groups delete`: delete groups, after a dry run.


DELETED: Final = Table(
    "groups",
    key="group",
    columns=(
        Column("GROUP", "group"),
        Column("TOPICS", "topics", right=True),
        Column("OFFSETS", "offsets", right=True),
        Column("LAST-COMMIT", "last_commit_ms", show=utc),
    ),
)


@click.command(cls=Command)
@groups_argument
@undo_file_option
@execute_option
@click.pass_obj
def delete(options: Options, names: tuple[str, ...], undo_file: Path | None, execute: bool) -> None:
    """Delete groups and their offsets. A group with a registered instance or a live owner is refused.

    Everything in the group is deleted, including owners and registrations without a session. Without --execute, the
    command only shows what it would delete. With --undo-file, a group is deleted only if it still has exactly the
    offsets that were saved.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups delete invoices
      zkgroups -z zk1:2181/kafka groups delete invoices --undo-file undo.json --execute
    """
    tally, output = Tally(), Output(options)
    with connected(options, writes=execute) as registry:
        found = list(_deletable(registry, names, tally))
        if execute:
            saved = {each.group: plan_delete(_deleted_offsets(each)) for each in found}
            nodes = {each.group: None if undo_file is None else _offset_nodes(each) for each in found}
            with saved_offsets_file(options, saved.items(), undo_file) as made:
                done = _deleted(
                    options,
                    registry,
                    map(_deleted_row, found),
                    tally,
                    saved,
                    made,
                    lambda name: registry.group(name).delete(nodes[name]),
                    if_interrupted="run the command again",
                )
                output.write_done(DELETED, done)
        else:
            output.write(DELETED, _shown(found, tally))
    if found and not execute:
        say(options, "Nothing was changed: add --execute to apply.")
    tally.finish()


def _deletable(registry: Registry, names: Iterable[str], tally: Tally) -> Iterator[GroupDescription]:
    """Yield the groups that can be deleted, and report the others."""
    for found in registry.describe(names):
        if (refusal := _refusal(found)) is None:
            yield found
        else:
            tally.failed(refusal, found.group)


def _refusal(group: GroupDescription) -> ZkgroupsException | None:
    if group.state is GroupState.DEAD:
        return GroupNotFoundError(group.group)
    if forbidden := forbidden_nodes(group):
        return NoPermissionError(forbidden[0].path)
    not_alive = (InstanceState.DEAD, InstanceState.LEAVING)
    living = [each.id for each in group.instances if each.state not in not_alive]
    holders = [owner.holder for partition in group.partitions for owner in partition.owners]
    return GroupInUseError(group.group, living or holders) if living or holders else None


def _shown(groups: Iterable[GroupDescription], tally: Tally) -> Iterator[Row]:
    for each in groups:
        with tally.attempt():
            yield _deleted_row(each)


def _deleted(
    options: Options,
    registry: Registry,
    rows: Iterable[Row],
    tally: Tally,
    saved: Mapping[str, Sequence[OffsetChange]],
    made: dict[str, Sequence[OffsetChange]],
    delete: Callable[[str], object],
    *,
    if_interrupted: str,
) -> Iterator[Row]:
    """Delete the group of each row, and yield the row."""
    for row in rows:
        name = row["group"]
        interrupted = f"interrupted in group {name!r}: some of its offsets may be deleted; {if_interrupted}"
        with tally.attempt(name), recorded_deletion(registry, name, saved[name], made):
            with partly(interrupted):
                delete(name)
            say(options, f"deleted {name}")
            yield row


def _offset_nodes(group: GroupDescription) -> list[CommittedOffset | UnreadableNode]:
    """Return the offsets of a group, with the nodes among them that cannot be read."""
    directory = GroupPaths(group.group).offsets
    offsets = [each.offset for each in group.partitions if each.offset is not None]
    return [*offsets, *(node for node in group.unreadable if node.path.startswith(f"{directory}/"))]


def _deleted_offsets(group: GroupDescription) -> dict[TopicPartition, CurrentOffset]:
    found = (
        ((each.at if isinstance(each, CommittedOffset) else place_of(each).at), each) for each in _offset_nodes(group)
    )
    return {at: each for at, each in found if at is not None}


def _deleted_row(group: GroupDescription) -> Row:
    return {
        "group": group.group,
        "topics": len(group.topics),
        "offsets": group.offsets,
        "last_commit_ms": to_ms(group.last_commit_at) or None,
    }


# `zkgroups groups prune`: delete unused groups, after exporting their offsets to a file.


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
@click.option(
    "--older-than",
    "age",
    type=Duration(needs_unit=True),
    required=True,
    help="Delete groups without a commit for this long, such as 90d or P90D.",
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
    to the --export file. A group in which a client registers or commits in the meantime is not deleted, and its offsets
    are taken out of the file. A group that is restored from the file has new znodes, so it counts as used at that time:
    with --older-than 90d, it is not pruned again for 90 days.
    Ages are by the clock of this machine. A group is deleted only if it is old enough by ZooKeeper's clock, too.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups prune --older-than 90d
      zkgroups -z zk1:2181/kafka groups prune --older-than 90d --groups 'test-.*'
      zkgroups -z zk1:2181/kafka groups prune --older-than 90d --export pruned.jsonl --execute
    """
    if execute:
        if export is None:
            raise usage_error("--execute needs --export FILE, to save the deleted offsets")
        if os.path.lexists(export):
            raise file_exists(export)
    tally = Tally()
    with connected(options, writes=execute) as registry:
        chosen = chosen_groups(registry, names, matching) if names or matching else registry.groups()
        found = list(counted(options, describe_groups(registry, chosen, tally, must_exist=names), "groups"))
        old = _old_groups(registry, [group for group in found if not forbidden_nodes(group)], age)
        plan = [each for each in old if not unreadable_nodes(each.group)]
        output = Output(options)
        if execute:
            offsets = {each.group.group: _offsets(each) for each in plan}
            saved = {name: plan_delete({each.at: each for each in known}) for name, known in offsets.items()}
            with saved_offsets_file(options, saved.items(), export, FileFormat.JSONL, backward=False) as made:
                done = _deleted(
                    options,
                    registry,
                    map(_pruned_row, plan),
                    tally,
                    saved,
                    made,
                    lambda name: registry.group(name).prune(offsets[name], unused_for=age),
                    if_interrupted="the --export file has all",
                )
                output.write_done(PRUNED, done)
        else:
            output.write(PRUNED, map(_pruned_row, plan))
    if not plan and not names:
        say(options, "Nothing to delete: no group has been unused for that long.")
    elif plan and not execute:
        say(options, f"Nothing was changed: add {'' if export else '--export FILE '}--execute to apply.")
    _report_remaining(options, names, found, old)
    tally.finish()
    if len(plan) < len(old):
        raise click.exceptions.Exit(ExitCode.PARTIAL)


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


def _offsets(each: _UnusedGroup) -> list[CommittedOffset]:
    return [partition.offset for partition in each.group.partitions if partition.offset is not None]


def _pruned_row(each: _UnusedGroup) -> Row:
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
