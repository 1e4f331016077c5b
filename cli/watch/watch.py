"""`zkgroups watch`: print the changes in groups as they happen."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack

import click

from zkgroups.deadline import Deadline

from ..shared.arguments import matching_option, maybe_groups_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.durations import seconds_option
from ..shared.options import Format, Options
from ..shared.output import Output, Row
from ..shared.signals import Terminated
from .events import EVENTS, HEADER, event_line
from .watched_groups import WatchedGroups


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@seconds_option("--for", "seconds", help="End after this time; by default at Ctrl-C.")
@click.option("--all", "everything", is_flag=True, help="First print the existing members, owners and offsets.")
@click.pass_obj
def watch(
    options: Options,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    seconds: float | None,
    everything: bool,
) -> None:
    """Print the changes in groups as they happen: members, claims and commits.

    The command watches the named groups, or all groups. New groups that match --groups are watched, too.

    The events are join, leave, subscribe (a changed subscription), claim, release, commit, and forget (a deleted
    offset). Times come from the server's clock, and the times of deletions from the clock of this machine. After a
    lost connection, the command reconnects and prints the changes since then. It prints several changes of one node as
    one event.

    \b
    Example:
      zkgroups -z zk1:2181/kafka watch billing
      zkgroups -z zk1:2181/kafka watch --groups 'bill.*'
      zkgroups -z zk1:2181/kafka watch billing --all -o jsonl
    """
    output = Output(options)
    with connected(options) as registry, ExitStack() as stack:
        deadline = Deadline(math.inf if seconds is None else seconds)
        groups = WatchedGroups(options, registry, stack, everything=everything)
        groups.add(names, must_exist=True)
        if matching is not None or not names:
            groups.follow(matching)
        events = groups.events(deadline)
        if output.format in {Format.TABLE, Format.WIDE}:
            _write_lines(options, output, events, with_group=not groups.is_single)
        elif output.format in {Format.JSON, Format.YAML}:
            _write_all(output, events)
        else:
            output.write(EVENTS, events)


def _write_lines(options: Options, output: Output, events: Iterator[Row], *, with_group: bool) -> None:
    """Write each event at once. A table would need all of them for the widths of its columns."""
    if not options.no_headers:
        output.line(HEADER)
    for row in events:
        output.line(event_line(row, with_group=with_group))


def _write_all(output: Output, events: Iterator[Row]) -> None:
    """Write one document at the end, also after Ctrl-C."""
    ended: list[BaseException] = []

    def until_the_end() -> Iterator[Row]:
        try:
            yield from events
        except (KeyboardInterrupt, Terminated) as end:
            ended.append(end)

    output.write(EVENTS, until_the_end())
    if ended:
        raise ended[0]
