"""`zkgroups groups create` and `delete`."""

from __future__ import annotations

import click

from ..shared.arguments import groups_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors import Tally, partly
from ..shared.messages import say
from ..shared.options import Options


@click.command(cls=Command)
@groups_argument
@click.pass_obj
def create(options: Options, names: tuple[str, ...]) -> None:
    """Make the directories of groups, as the first instance would. One that exists stays as it is.

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


@click.command(cls=Command)
@groups_argument
@click.pass_obj
def delete(options: Options, names: tuple[str, ...]) -> None:
    """Delete groups with their offsets, at once. A group with a registered instance or a living owner is left alone.

    Deleted offsets cannot be restored unless they were saved before: zkgroups offsets export GROUP > FILE. Everything
    in the group is deleted, also owners and registrations that belong to no session.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups delete invoices
    """
    tally = Tally()
    with connected(options, writes=True) as registry:
        for name in names:
            with tally.attempt():
                with partly(f"of group {name!r} some offsets may be deleted already"):
                    registry.group(name).delete()
                say(options, f"deleted {name}")
    tally.finish()
