"""`zkgroups groups describe`: everything about a group, once or again whenever it changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

import click

from zkgroups import Registry, TopicPartition
from zkgroups.core.offsets.lag import LogRanges
from zkgroups.exceptions import AccessError, MissingDependencyError, UnavailableError, ZkgroupsException

from ..shared.arguments import groups_argument
from ..shared.brokers import brokers
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.durations import checked_seconds
from ..shared.errors import Tally, sentence
from ..shared.options import Format, Options
from ..shared.output import Output, Row, Table, wait_while_read
from .description import DESCRIPTIONS, DESCRIPTIONS_WITH_LAG, described, description_row


@click.command(cls=Command)
@groups_argument
@click.option("--watch", is_flag=True, help="Go on, and show it anew whenever something has changed.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    callback=checked_seconds,
    default=2.0,
    show_default=True,
    help="How often --watch looks.",
)
@click.pass_obj
def describe(options: Options, names: tuple[str, ...], watch: bool, interval: float) -> None:
    """Show what is in groups: state, instances, partitions with owner and offset, and what is wrong.

    Where the brokers are named, too (-b), it tells the ends of the logs and how far the group is behind; a dash means
    that nobody knows. In JSON and CSV these fields are always there.

    The note "orphan" means an owner that is no registered instance, "unowned" a partition of a subscribed topic that
    nobody owns, and "blocked" one that no member can have, as somebody holds it who does not share the topic with
    them; who that is, and since when, stands below. "past end" is an offset that the log does not reach, "before
    start" one that it no longer has. With -o csv there is a line for each partition.

    On a terminal --watch draws over what was there; elsewhere it writes all of it again. It ends with Ctrl-C, or when
    something cannot be shown any more.

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
            _watch(output, table, lambda tally: _descriptions(options, registry, names, tally), interval)
        tally = Tally()
        output.write(table, _descriptions(options, registry, names, tally))
    tally.finish()


def _descriptions(options: Options, registry: Registry, names: tuple[str, ...], tally: Tally) -> Iterator[Row]:
    found = described(registry, names, tally, must_exist=names)
    if options.bootstrap_server is None:
        yield from map(description_row, found)
        return
    groups = list(found)  # first the offsets and then the ends of the logs, so that no lag is negative
    logs: LogRanges | None = None
    with tally.attempt():
        logs = _logs(options, [partition.at for group in groups for partition in group.partitions])
    yield from (description_row(group, logs) for group in groups)


def _logs(options: Options, partitions: list[TopicPartition]) -> LogRanges:
    """What the brokers say of these; who cannot have that is still told what ZooKeeper knows."""
    try:
        with brokers(options, what_for="the lag") as found:
            return found.ranges(partitions)
    except (UnavailableError, AccessError, MissingDependencyError) as error:
        raise ZkgroupsException(f"the ends of the logs are unknown: {sentence(error)}") from error


def _watch(output: Output, table: Table, look: Callable[[Tally], Iterable[Row]], interval: float) -> NoReturn:
    """Write it anew whenever it is another, until somebody or something ends it."""
    shown: list[Row] | None = None
    while True:
        tally = Tally()
        rows = list(look(tally))
        if rows != shown:
            _part(output, first=shown is None)
            output.write(table, rows)
            shown = rows
        tally.finish()
        wait_while_read(interval)


def _part(output: Output, *, first: bool) -> None:
    """An empty screen, or an empty line; programs need neither."""
    if sys.stdout is not None and sys.stdout.isatty():
        click.clear()
    elif not first and output.format not in {Format.JSON, Format.JSONL, Format.YAML}:
        output.line()
