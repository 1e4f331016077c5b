"""`zkgroups groups delete`: delete groups, after a dry run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from zkgroups import (
    CommittedOffset,
    GroupDescription,
    GroupState,
    InstanceState,
    Registry,
    TopicPartition,
    UnreadableNode,
)
from zkgroups.core.offsets.reset import plan_delete
from zkgroups.core.times import to_ms, utc
from zkgroups.core.znodes.paths import GroupPaths
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import GroupInUseError, GroupNotFoundError, NoPermissionError, ZkgroupsException

from ..offsets.committed_offsets import place_of
from ..offsets.undo_file import save_undo_file, undo_file_option
from ..shared.arguments import execute_option, groups_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally, partly
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from .description_rows import forbidden_nodes

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
            if undo_file is not None:
                save_undo_file(options, [(each.group, plan_delete(_offsets(each))) for each in found], undo_file)
            output.write_done(DELETED, _deleted(options, registry, found, tally, unchanged=undo_file is not None))
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
            tally.failed(refusal)


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
            yield _row(each)


def _deleted(
    options: Options, registry: Registry, groups: Iterable[GroupDescription], tally: Tally, *, unchanged: bool
) -> Iterator[Row]:
    """Delete the groups, and yield a row for each. With `unchanged`, only if they have the offsets that were read."""
    for each in groups:
        with tally.attempt():
            name = each.group
            with partly(f"interrupted in group {name!r}: some of its offsets may be deleted; run the command again"):
                registry.group(name).delete(_offset_nodes(each) if unchanged else None)
            say(options, f"deleted {name}")
            yield _row(each)


def _offset_nodes(group: GroupDescription) -> list[CommittedOffset | UnreadableNode]:
    """Return the offsets of a group, with the nodes among them that cannot be read."""
    directory = GroupPaths(group.group).offsets
    offsets = [each.offset for each in group.partitions if each.offset is not None]
    return [*offsets, *(node for node in group.unreadable if node.path.startswith(f"{directory}/"))]


def _offsets(group: GroupDescription) -> dict[TopicPartition, CurrentOffset]:
    found = ((_at(each), each) for each in _offset_nodes(group))
    return {at: each for at, each in found if at is not None}


def _at(found: CommittedOffset | UnreadableNode) -> TopicPartition | None:
    return found.at if isinstance(found, CommittedOffset) else place_of(found).at


def _row(group: GroupDescription) -> Row:
    return {
        "group": group.group,
        "topics": len(group.topics),
        "offsets": group.offsets,
        "last_commit_ms": to_ms(group.last_commit_at) or None,
    }
