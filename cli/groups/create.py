"""`zkgroups groups create`: create the directories of groups."""

from __future__ import annotations

import click

from ..shared.arguments import groups_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.messages import say
from ..shared.options import Options


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
