"""`zkgroups history groups`: which groups were created and deleted."""

from __future__ import annotations

from typing import Any, Final

import click

from zkgroups.core.history.events import GroupChange

from ..shared.command_classes import Command
from ..shared.options import Options
from ..shared.output import Column, Table
from .columns import DIALECT, GROUP, HOST, INSTANCE, MARKS, SESSION, TIME, ZXID, event_row, instance_row, marks
from .options import HistoryOptions, HistoryRun, group_argument, history_options

_GROUPS: Final = Table(
    "groups",
    key="group",
    columns=(TIME, ZXID, GROUP, Column("EVENT", "event"), SESSION, INSTANCE, HOST, DIALECT, MARKS),
)


@click.command(cls=Command)
@group_argument
@history_options
@click.pass_obj
def groups(options: Options, /, **given: Any) -> None:
    """Show which groups were created and deleted in the logs, in order.

    \b
    Example:
      zkgroups history groups --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history groups --groups 'bill.*' --from-data-dir /backup/zookeeper --since 7d
    """
    run = HistoryRun(options, HistoryOptions.of(given))
    rows = (
        {**event_row(event), **instance_row(event.instance), "marks": list(marks(event))}
        for event in run.events()
        if isinstance(event, GroupChange)
    )
    run.write(_GROUPS, rows, "No groups were created or deleted.")
