"""`zkgroups groups copy`: copy the offsets of a group to a new group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

from zkgroups import CommittedOffset, Consumergroup, ForbiddenNode, Registry, UnreadableNode
from zkgroups.core.znodes.names import check_group
from zkgroups.exceptions import GroupExistsError, GroupNotFoundError, NoPermissionError

from ..shared.arguments import execute_option, group_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import partly
from ..shared.exit_codes import ExitCode
from ..shared.messages import complain, say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table

COPIES: Final = Table(
    "offsets",
    key="group",
    columns=(
        Column("GROUP", "group"),
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
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
    Output(options).write(COPIES, [_row(to, each) for each in found if isinstance(each, CommittedOffset)])
    say(options, f"copied {group} to {to}" if execute else "Nothing was changed: add --execute to apply.")
    _finish(each for each in found if isinstance(each, UnreadableNode))


def _copyable(registry: Registry, group: str, to: str) -> list[CommittedOffset | UnreadableNode]:
    """Return the offsets to copy and the nodes to skip. A forbidden node is an error: it may hide offsets."""
    _check(registry.group(group), registry.group(to))
    found = list(registry.group(group).offsets)
    for each in found:
        if isinstance(each, ForbiddenNode):
            raise NoPermissionError(each.path)
    return found


def _check(group: Consumergroup, to: Consumergroup) -> None:
    if not group.exists():
        raise GroupNotFoundError(group.name)
    if to.exists():
        raise GroupExistsError(to.name)


def _row(group: str, offset: CommittedOffset) -> Row:
    return {
        "group": group,
        "topic": offset.at.topic,
        "partition": offset.at.partition,
        "offset": offset.offset,
    }


def _finish(left_out: Iterable[UnreadableNode]) -> None:
    paths = [f"left out: {node.path} ({node.reason})" for node in left_out]
    for path in paths:
        complain(path)
    if paths:
        raise click.exceptions.Exit(ExitCode.PARTIAL)
