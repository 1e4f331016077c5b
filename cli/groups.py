"""`zkgroups groups`: list, describe, create and delete consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import click

from zkgroups import GroupDescription, GroupState, Registry
from zkgroups.core.paths import check_group
from zkgroups.exceptions import GroupNotFoundError, NoPermissionError

from .connect import connected
from .description import DESCRIPTIONS, NAMES, SUMMARIES, denied, description_row, summary_row
from .errors import Tally
from .options import Format, Group, Options
from .output import Output, Row
from .talk import say


def _checked_names(_ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Each name once; a name that cannot be one is refused before anything is sent."""
    return tuple(dict.fromkeys(map(check_group, names)))


names_argument = click.argument("names", metavar="GROUP...", nargs=-1, required=True, callback=_checked_names)


@click.group(cls=Group)
def groups() -> None:
    """List, describe, create and delete consumer groups.

    A group is whatever has registrations, owners or offsets under /consumers.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups list
    """


@groups.command("list")
@click.pass_obj
def list_groups(options: Options) -> None:
    """List all groups.

    The formats table and name only have the names, which is quick; wide, json, jsonl and csv read every group and
    tell its state, its totals and its last commit.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups list
      zkgroups -z zk1:2181/kafka groups list -o wide
      zkgroups -z zk1:2181/kafka groups list -o jsonl
    """
    output = Output(options)
    with connected(options) as registry:
        names = registry.groups()
        if not names:
            say(options, "There are no groups.")
        if output.format in {Format.TABLE, Format.NAME}:
            output.write(NAMES, [{"group": name} for name in names])
            return
        tally = Tally()
        output.write(SUMMARIES, _rows(registry, names, tally, summary_row, may_be_gone=True))
        tally.finish()


@groups.command()
@names_argument
@click.pass_obj
def describe(options: Options, names: tuple[str, ...]) -> None:
    """Show what is in groups: state, instances, partitions with owner and offset, and what is wrong.

    The note "orphan" means an owner that is no registered instance, "unowned" a partition of a subscribed topic that
    nobody owns. With -o csv there is a line for each partition.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups describe billing
      zkgroups -z zk1:2181/kafka groups describe billing -o json
    """
    tally = Tally()
    with connected(options) as registry:
        Output(options).write(DESCRIPTIONS, _rows(registry, names, tally, description_row))
    tally.finish()


def _rows(
    registry: Registry,
    names: Iterable[str],
    tally: Tally,
    row: Callable[[GroupDescription], Row],
    *,
    may_be_gone: bool = False,
) -> Iterator[Row]:
    """The groups that are there, one by one as they are read; one that may not be read is shown as far as it may."""
    for found in registry.describe(names):
        with tally.attempt():
            if found.state is not GroupState.DEAD:
                yield row(found)
            elif not may_be_gone:
                raise GroupNotFoundError(found.group)
            if hidden := denied(found):
                raise NoPermissionError(hidden[0].path)


@groups.command()
@names_argument
@click.pass_obj
def create(options: Options, names: tuple[str, ...]) -> None:
    """Make the directories of groups, as the first instance would. One that exists stays as it is.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups create invoices shipping
    """
    tally = Tally()
    with connected(options, writes=True) as registry:
        for name in names:
            with tally.attempt():
                existed = registry.group(name).exists()
                registry.group(name).create()
                say(options, f"{name} exists already" if existed else f"created {name}")
    tally.finish()


@groups.command()
@names_argument
@click.pass_obj
def delete(options: Options, names: tuple[str, ...]) -> None:
    """Delete groups with their offsets. A group with a registered instance or an owner is left alone.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups delete invoices
    """
    tally = Tally()
    with connected(options, writes=True) as registry:
        for name in names:
            with tally.attempt():
                registry.group(name).delete()
                say(options, f"deleted {name}")
    tally.finish()
