"""`zkgroups groups`: a group of commands. Each is imported when it is called."""

from __future__ import annotations

import click

from ..shared.global_options import Group


@click.group(
    cls=Group,
    lazy={
        "list": f"{__package__}.list:list_groups",
        "describe": f"{__package__}.describe:describe",
        "explain": f"{__package__}.explain:explain",
        "create": f"{__package__}.change:create",
        "delete": f"{__package__}.change:delete",
        "copy": f"{__package__}.change:copy",
        "prune": f"{__package__}.change:prune",
    },
)
def groups() -> None:
    """List, describe, explain, create, delete, copy and prune consumer groups.

    A group is a child node of /consumers. Its registrations, owners and offsets are below that node.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups list
    """
