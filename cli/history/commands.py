"""`zkgroups history`: the group of commands that read transaction logs."""

from __future__ import annotations

import click

from ..shared.command_classes import Group
from .events import check, groups, members, offsets, owners


@click.group(cls=Group)
def history() -> None:
    """Show every change to groups in the transaction logs of a ZooKeeper server: who made it, and when.

    The server may be running: its files are only read. In an ensemble, the logs of one server have all transactions,
    except from the time when it was stopped. Gaps are reported on stderr. If any transactions between two others are
    missing, or --since is earlier than the first log that is left, the exit code is 9.

    Rows are printed while the logs are read, in all formats. So large logs need little memory, and if the command fails
    in the middle, a JSON or YAML document is incomplete.

    \b
    Example:
      zkgroups history offsets billing orders 3 --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history check --from-data-dir /backup/zookeeper
    """


for command in (offsets, owners, members, groups, check):
    history.add_command(command)
