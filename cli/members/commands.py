"""`zkgroups members`: a group of commands. Each is imported when it is called."""

from __future__ import annotations

import click

from ..shared.command_classes import Group


@click.group(
    cls=Group,
    lazy={
        "list": f"{__package__}.registrations:list_members",
        "show": f"{__package__}.registrations:show",
        "evict": f"{__package__}.registrations:evict",
    },
)
def members() -> None:
    """List registered instances and their subscriptions. Evict stuck instances.

    \b
    Example:
      zkgroups -z zk1:2181/kafka members list
    """
