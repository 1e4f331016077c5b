"""`zkgroups migrate unmark`: remove the migration marks of groups."""

from __future__ import annotations

import click

from zkgroups.core.znodes.values import UnreadableNode
from zkgroups.exceptions import GroupNotFoundError
from zkgroups.zookeeper.session.registry_context import context_of

from ..shared.arguments import groups_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.messages import say
from ..shared.options import Options


@click.command(cls=Command)
@groups_argument
@click.option("--force", is_flag=True, help="Also remove a mark that cannot be read.")
@click.pass_obj
def unmark(options: Options, names: tuple[str, ...], force: bool) -> None:
    """Remove the migration marks of groups, so that legacy members may join them again.

    `migrate rollback` does this itself. The members continue from the offsets in ZooKeeper, and read again the
    messages that new consumers have read since the move.

    \b
    Example:
      zkgroups -z zk1:2181/kafka migrate unmark invoices
    """
    from zkgroups.zookeeper.admin import migration_marks as marks

    tally = Tally()
    with connected(options, writes=True) as registry:
        found = marks.read(context_of(registry), names)
        for group, error in marks.remove(context_of(registry), names, plan=None, force=force).items():
            with tally.attempt():
                if error is not None:
                    raise error
                if group in found:
                    it = found[group]
                    say(
                        options,
                        f"unmarked {group}: the group {it.reason if isinstance(it, UnreadableNode) else it.shown}",
                    )
                elif registry.group(group).exists():
                    say(options, f"group {group!r} has no migration mark: nothing was changed")
                else:
                    raise GroupNotFoundError(group)
    tally.finish()
