"""`zkgroups snapshots`: the group of commands that work with existing snapshots."""

from __future__ import annotations

import click

from ..shared.command_classes import Group
from .diff import diff
from .plot import plot
from .snapshots import list_, prune, verify


@click.group(cls=Group)
def snapshots() -> None:
    """List, compare, verify, plot and prune snapshots.

    DEST is the folder that `zkgroups snapshot` writes to.

    \b
    Example:
      zkgroups snapshots list /data/groups
      zkgroups snapshots diff /data/groups previous latest
      zkgroups snapshots plot /data/groups billing billing.svg
    """


snapshots.add_command(list_)
snapshots.add_command(diff)
snapshots.add_command(verify)
snapshots.add_command(plot)
snapshots.add_command(prune)
