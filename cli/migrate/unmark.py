"""`zkgroups migrate unmark`: remove the migration marks of groups."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from zkgroups.core.layouts.layout import Layout
from zkgroups.core.znodes.values import UnreadableNode
from zkgroups.exceptions import GroupNotFoundError, RefusedError
from zkgroups.zookeeper.session.registry_context import context_of

from ..offsets.committed_offsets import group_exists
from ..shared.arguments import groups_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.layout_options import layout_options
from ..shared.messages import say
from ..shared.options import Options

if TYPE_CHECKING:
    from zkgroups import Registry


@click.command(cls=Command)
@groups_argument
@click.option("--force", is_flag=True, help="Also remove a mark that cannot be read, or that belongs to a live move.")
@layout_options
@click.pass_obj
def unmark(options: Options, names: tuple[str, ...], force: bool, layout: Layout) -> None:
    """Remove the migration marks of groups, so that legacy members may join them again.

    `migrate rollback` does this itself. A group that `migrate switch` has moved is refused without --force, because
    gateways forward its clients to the brokers: use `migrate switch --to zookeeper`.

    The members continue from the offsets in ZooKeeper, and read again the messages that new consumers have read since
    the move.

    \b
    Example:
      zkgroups -z zk1:2181/kafka migrate unmark invoices
    """
    from zkgroups.zookeeper.admin import migration_marks as marks

    tally = Tally()
    with connected(options, writes=True, layout=layout) as registry:
        for name in names if layout.has_registrations and not force else ():
            _refuse_routed(registry, name)
        context = context_of(registry)
        found = marks.read(context, names, layout)
        for group, error in marks.remove(context, names, plan=None, force=force, layout=layout).items():
            with tally.attempt():
                if error is not None:
                    raise error
                if group in found:
                    it = found[group]
                    say(
                        options,
                        f"removed the mark of group {group!r}: "
                        f"{it.reason if isinstance(it, UnreadableNode) else f'the group {it.shown}'}",
                    )
                elif group_exists(registry, group, layout):
                    say(options, f"group {group!r} has no migration mark: nothing was changed")
                else:
                    raise GroupNotFoundError(group)
    tally.finish()


def _refuse_routed(registry: Registry, group: str) -> None:
    from zkgroups.zookeeper.admin.group_routes import read_route

    if (state := read_route(context_of(registry), group).state) is not None:
        raise RefusedError(
            f"group {group!r} was moved live, its route is {state}: run `zkgroups migrate switch {shlex.quote(group)} "
            "--to zookeeper`"
        )
