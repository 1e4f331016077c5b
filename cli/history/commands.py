"""`zkgroups history`: the group of commands that read transaction logs."""

from __future__ import annotations

import click

from ..shared.command_classes import Group
from .check import check
from .groups import groups
from .members import members
from .offsets import offsets
from .owners import owners


@click.group(cls=Group)
def history() -> None:
    """Show every change to groups in the transaction logs of a ZooKeeper server: who made it, and when.

    The server may be running: its files are only read. The logs of one server of an ensemble have all transactions,
    except those that it missed while it was stopped. Gaps are reported on stderr. If any transactions between two
    others are missing, the exit code is 9. So it is if --since is earlier than the first log that is left.

    Rows are printed while the logs are read, in all formats. So large logs need little memory, and if the command fails
    in the middle, a JSON or YAML document is incomplete.

    \b
    Example:
      zkgroups history offsets billing orders 3 --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history check --from-data-dir /backup/zookeeper
    """


for command in (offsets, owners, members, groups, check):
    history.add_command(command)
