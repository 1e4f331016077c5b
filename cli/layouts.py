"""`zkgroups layouts`: find out where systems keep offsets in ZooKeeper."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import click

from zkgroups.exceptions import NotFoundError
from zkgroups.zookeeper.session.session import context_of

from .shared.connect import open_registry
from .shared.global_options import Command, Group
from .shared.messages import say
from .shared.options import Options
from .shared.output import Column, Output, Row, Table

if TYPE_CHECKING:
    from zkgroups.zookeeper.reading.layouts import LayoutFound

_LONGEST_VALUE: Final = 200
"""The number of bytes of a value to show."""

_LAYOUTS: Final = Table(
    "layouts",
    key="layout",
    columns=(
        Column("LAYOUT", "layout"),
        Column("GROUPS", "groups", right=True),
        Column("OFFSETS", "offsets", right=True),
        Column("UNREADABLE", "unreadable", right=True),
        Column("CHROOT", "chroot"),
        Column("OPTIONS", "options"),
        Column("EXAMPLE", "example", wide=True),
        Column("VALUE", "value", wide=True),
        Column("NOTE", "note"),
    ),
)


@click.group(cls=Group)
def layouts() -> None:
    """Find offsets that other systems keep in ZooKeeper: Storm, Trident, Spark jobs, and your own.

    \b
    Example:
      zkgroups -z zk1:2181 layouts detect
    """


@layouts.command(cls=Command)
@click.argument("path", metavar="[PATH]", default="/")
@click.option(
    "--nodes",
    "most_nodes",
    type=click.IntRange(1),
    default=20_000,
    show_default=True,
    help="The most nodes to look at.",
)
@click.pass_obj
def detect(options: Options, path: str, most_nodes: int) -> None:
    """Look at the tree below PATH, and show the layouts that it has, with the options to use for each.

    The command looks at some children of each node only, so it is fast on any tree. To find rare groups, give a PATH.
    It starts at the root, or at the chroot of -z. Where a CHROOT is shown, add it to the address. OFFSETS is the number
    of offsets that the OPTIONS read, counted up to 10,000. UNREADABLE nodes hold no valid offset. The example of
    -o wide is one of the nodes.

    A layout with a path is a guess: check its fields and what the number means. For spark, only you know which end of a
    batch your job stores.

    \b
    Example:
      zkgroups -z zk1:2181 layouts detect
      zkgroups -z zk1:2181 layouts detect /kafkastorm -o wide
    """
    from zkgroups.zookeeper.reading.layouts import detect_layouts

    if not path.startswith("/"):
        raise click.BadParameter(f"{path!r} must begin with a slash", param_hint="PATH")
    with open_registry(options) as registry:
        context = context_of(registry)
        if not context.session.exists(path, deadline=context.deadline()):
            raise NotFoundError(f"{path} does not exist: check the path and the chroot")
        found = detect_layouts(context, path, most_nodes=most_nodes)
    Output(options).write(_LAYOUTS, [_row(each) for each in found.layouts])
    if not found.layouts:
        say(options, "No offsets were found.")
    if not found.is_complete:
        say(options, f"Looked at {found.nodes} nodes, a part of the tree. To look closer, give a PATH or more --nodes.")


def _row(found: LayoutFound) -> Row:
    detected = found.detected
    more = "" if found.is_complete else f"more than {found.offsets + found.unreadable} nodes"
    return {
        "layout": detected.name,
        "groups": found.groups,
        "offsets": found.offsets,
        "unreadable": found.unreadable,
        "chroot": detected.chroot or None,
        "options": shlex.join(detected.options) or None,
        "example": detected.example.path,
        "value": detected.example.data[:_LONGEST_VALUE].decode(errors="replace"),
        "note": "; ".join(filter(None, [detected.note, more])) or None,
        "complete": found.is_complete,
    }
