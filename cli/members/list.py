"""`zkgroups members list`: list the registered instances of groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import click

from zkgroups import GroupDescription

from ..groups.description_rows import describe_groups, instance_row
from ..groups.description_tables import INSTANCES
from ..shared.arguments import chosen_groups, matching_option, maybe_groups_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table

COLUMNS: Final = (Column("GROUP", "group"), *INSTANCES.columns)

MEMBERS: Final = Table("members", key="instance", columns=COLUMNS)
"""Instances of several groups, one row per instance."""


@click.command("list", cls=Command)
@maybe_groups_argument
@matching_option
@click.pass_obj
def list_members(options: Options, names: tuple[str, ...], matching: re.Pattern[str] | None) -> None:
    """List the instances of the named groups, or of all groups, with state, subscription and number of partitions.

    "Leaving" means that an instance is no longer registered but still owns partitions. "Dead" means that its
    registration belongs to no session, so no client is behind it; `zkgroups doctor --repair --execute` deletes it. If a
    registration cannot be read, its subscription and dialect are empty; `zkgroups members show` shows the reason.

    \b
    Example:
      zkgroups -z zk1:2181/kafka members list
      zkgroups -z zk1:2181/kafka members list billing invoices
      zkgroups -z zk1:2181/kafka members list --groups 'bill.*' -o json
    """
    tally = Tally()
    with connected(options) as registry:
        chosen = chosen_groups(registry, names, matching) if names or matching else registry.groups()
        rows = _rows(describe_groups(registry, chosen, tally, must_exist=names))
        Output(options).write(MEMBERS, _or_report_none(options, rows, tally))
    tally.finish()


def _rows(groups: Iterable[GroupDescription]) -> Iterator[Row]:
    for group in groups:
        yield from ({"group": group.group} | dict(row) for row in map(instance_row, group.instances))


def _or_report_none(options: Options, rows: Iterable[Row], tally: Tally) -> Iterator[Row]:
    """Yield the rows. If all groups were read and there are none, say so."""
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty and tally.all_done:
        say(options, "There are no registered instances.")
