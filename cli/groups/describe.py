"""`zkgroups groups describe`: show everything about groups, once or whenever something changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NoReturn

import click

from zkgroups import Registry
from zkgroups.core.offsets.lag import LogRanges

from ..shared.arguments import groups_argument
from ..shared.brokers import LAG_UNKNOWN, brokers, reported_as
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.durations import in_seconds
from ..shared.errors_to_exit_codes import Tally
from ..shared.messages import complain
from ..shared.options import Format, Options
from ..shared.output import Output, Row, Table, wait_while_read
from .description_rows import describe_groups, description_row
from .description_tables import DESCRIPTIONS, DESCRIPTIONS_WITH_LAG
from .read_lags import check_leaders


@click.command(cls=Command)
@groups_argument
@click.option("--watch", is_flag=True, help="Keep running, and show the groups again whenever something changes.")
@click.option(
    "--interval",
    type=str,
    callback=in_seconds(least=0.1),
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    help="How often --watch reads the groups.",
)
@click.pass_obj
def describe(options: Options, names: tuple[str, ...], watch: bool, interval: float) -> None:
    """Show the state, instances, partitions, owners, offsets and problems of groups.

    With brokers (-b), the command also shows log ends and lag; a dash means unknown. If brokers do not answer, it
    shows all else, and ends with exit code 9. JSON and CSV always have these fields. -o csv prints one line for each
    partition.

    \b
    The states of a group:
      Empty                no instance is registered
      PreparingRebalance   instances are registered, but own nothing
      CompletingRebalance  some partitions are owned, others not
      Stable               every partition of every subscribed topic is owned
      Unknown              the permission to read some nodes is missing

    \b
    NOTE has the problems of a partition:
      orphan        the owner is not a registered instance
      unowned       the topic is subscribed to, but no instance owns the partition
      blocked       its owner does not subscribe to the topic, but others do; see the table BLOCKED-TOPIC
      past end      the offset is past the log end
      before start  the messages at the offset have been deleted

    On a terminal, --watch redraws the screen; elsewhere it prints everything again. It ends with Ctrl-C, or when a
    group can no longer be shown. It goes on while no broker answers.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups describe billing
      zkgroups -z zk1:2181/kafka groups describe billing -o json
      zkgroups -z zk1:2181/kafka groups describe billing -b kafka1:9092
    """
    output = Output(options)
    table = DESCRIPTIONS if options.bootstrap_server is None else DESCRIPTIONS_WITH_LAG
    with connected(options) as registry:
        if watch:
            _watch(output, table, partial(_descriptions, options, registry, names), interval)
        tally = Tally()
        output.write(table, _descriptions(options, registry, names, tally, tally))
    tally.finish()


def _descriptions(
    options: Options, registry: Registry, names: tuple[str, ...], tally: Tally, of_brokers: Tally
) -> Iterator[Row]:
    """Yield the rows. Count groups in one tally, and the brokers in another."""
    found = describe_groups(registry, names, tally, must_exist=names)
    if options.bootstrap_server is None:
        yield from map(description_row, found)
        return
    groups = list(found)  # read offsets before log ends, so that no lag is negative
    logs: LogRanges | None = None
    with reported_as(LAG_UNKNOWN, of_brokers), brokers(options) as found_brokers:
        logs = found_brokers.ranges([partition.at for group in groups for partition in group.partitions])
        check_leaders(found_brokers, logs)
    yield from (description_row(group, logs) for group in groups)


def _watch(output: Output, table: Table, read: Callable[[Tally, Tally], Iterable[Row]], interval: float) -> NoReturn:
    """Print the rows and the errors whenever they have changed, until a group cannot be shown, or a signal."""
    shown: tuple[list[Row], list[str]] | None = None
    while True:
        errors: list[str] = []
        tally = Tally(errors.append)
        rows = list(read(tally, Tally(errors.append)))
        if (rows, errors) != shown:
            _separate(output, first=shown is None)
            output.write(table, rows)
            for error in errors:  # after the screen was cleared
                complain(error)
            shown = rows, errors
        tally.finish()
        wait_while_read(interval)


def _separate(output: Output, *, first: bool) -> None:
    """Clear a terminal, or print an empty line between two outputs for people."""
    if sys.stdout is not None and sys.stdout.isatty():
        click.clear()
    elif not first and output.format not in {Format.JSON, Format.JSONL, Format.YAML}:
        output.line()
