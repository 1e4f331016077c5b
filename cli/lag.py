"""`zkgroups lag`: show how far groups are behind the log ends."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

import click

from zkgroups.core.offsets.lag import GroupLag
from zkgroups.core.time_formats import duration_text

from .groups.description_rows import describe_groups, lag_row, total_lag_row
from .groups.description_tables import LAGS, TIME_LAGS, TOTAL_LAGS, TOTAL_TIME_LAGS
from .groups.read_lags import LAG_UNKNOWN, check_leaders, lags_without_brokers, logs_of, read_lags
from .groups.time_lags import TimeLags
from .shared.arguments import (
    ChosenPartitions,
    chosen_groups,
    matching_option,
    maybe_groups_argument,
    topics_option,
)
from .shared.brokers import brokers, missing_brokers, reported_as
from .shared.command_classes import Command
from .shared.connect import connected
from .shared.durations import duration_option
from .shared.errors_to_exit_codes import Tally
from .shared.exit_codes import ExitCode
from .shared.messages import say
from .shared.options import Format, Options
from .shared.output import Output, Row
from .shared.progress import counted


class _Order(Enum):
    """The order of the lines. Unknown lags and partitions without a commit come last."""

    GROUP = "group"
    LAG = "lag"
    AGE = "age"

    def sorted(self, rows: Iterable[Row], *, lag: str, committed: str) -> list[Row]:
        """Sort rows that have the lag and the time of the last commit under these keys."""
        match self:
            case _Order.GROUP:
                return list(rows)
            case _Order.LAG:
                return sorted(rows, key=lambda row: (row[lag] is None, -(row[lag] or 0)))
            case _Order.AGE:
                return sorted(rows, key=lambda row: (not row[committed], row[committed] or 0))


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@topics_option
@click.option("--only-with-lag", is_flag=True, help="Only partitions, or groups, with a known lag above 0.")
@click.option("--summary", is_flag=True, help="One line for each group.")
@click.option(
    "--sort",
    type=click.Choice([each.value for each in _Order]),
    help="By group (the default), by lag with the largest first, or by age with the oldest commit first.",
)
@click.option(
    "--top", type=click.IntRange(1), metavar="N", help="Only the first N lines, by lag if --sort is not given."
)
@click.option(
    "--fail-over", type=click.IntRange(0), metavar="N", help="Exit with code 10 if a group has a total lag above N."
)
@click.option("--time", "with_time", is_flag=True, help="Also show how long ago the first unread message was written.")
@duration_option(
    "--fail-over-age",
    "fail_over_age",
    help="With --time, exit with code 10 if the first unread message of a group is older than this",
)
@click.pass_obj
def lag(
    options: Options,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: ChosenPartitions | None,
    only_with_lag: bool,
    summary: bool,
    sort: str | None,
    top: int | None,
    fail_over: int | None,
    with_time: bool,
    fail_over_age: float | None,
) -> None:
    """Show how far groups are behind the log ends. Needs the brokers: -b HOST:PORT.

    The command shows the partitions of the named groups, or of all groups: all that have an offset or an owner, or
    belong to a subscribed topic. A dash means that the lag is unknown; NOTE has the reason. "before start" means that
    the messages at the offset have been deleted. The lag includes these messages.

    If the leaders of some partitions do not answer, the command shows the others, and ends with exit code 9. If no
    broker answers, it shows the offsets and owners that ZooKeeper has, without lag, and ends with exit code 9, too.

    --fail-over adds up the known lags of the chosen partitions, also of those that --top leaves out.

    --time searches the time of the first unread message with about ten requests to each broker, and reads no messages.
    The age is by the clock of this machine, within a second or 1 %. If the times of messages are not in order, the
    newest time up to that message counts. A dash means that it is unknown, e.g. with brokers before 0.10.1.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag billing
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag --only-with-lag
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag --groups 'bill.*' --topic orders:0,1
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag --summary --top 10
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag billing --fail-over 10000
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag billing --time --fail-over-age 1h
    """
    if fail_over_age is not None and not with_time:
        raise click.UsageError("--fail-over-age needs --time", click.get_current_context())
    if options.bootstrap_server is None:
        raise missing_brokers("lag")
    output, tally = Output(options), Tally()
    with connected(options) as registry:
        chosen = chosen_groups(registry, names, matching) if names or matching else registry.groups()
        groups = list(counted(options, describe_groups(registry, chosen, tally, must_exist=names), "groups"))
    lags, times = lags_without_brokers(groups, topics), TimeLags({}) if with_time else None
    with reported_as(LAG_UNKNOWN, tally), brokers(options) as found:
        lags = read_lags(found, groups, topics)
        with reported_as(LAG_UNKNOWN, tally):
            check_leaders(found, logs_of(lags))
        if with_time:
            with reported_as("the age of unread messages is unknown", tally):
                times = TimeLags.read(found, lags, int(time.time() * 1000))
    if not chosen:
        say(options, "No group matches." if matching else "There are no groups.")
    order = _Order(sort) if sort else _Order.LAG if top else _Order.GROUP
    if summary or output.format is Format.NAME:
        totals = [_total_row(each, times) for each in lags if each.total or not only_with_lag]
        table = TOTAL_LAGS if times is None else TOTAL_TIME_LAGS
        output.write(table, order.sorted(totals, lag="total_lag", committed="last_commit_ms")[:top])
    else:
        rows = order.sorted(_rows(lags, times, only_with_lag=only_with_lag), lag="lag", committed="committed_ms")
        output.write(LAGS if times is None else TIME_LAGS, rows[:top])
    if only_with_lag and (unknown := sum(each.unknown for each in lags)):
        say(
            options,
            f"The lag of {unknown} more partitions is unknown."
            if unknown > 1
            else "The lag of 1 more partition is unknown.",
        )
    over = [] if fail_over is None else [each.group for each in lags if (each.total or 0) > fail_over]
    if over:
        say(options, f"Groups with a lag above {fail_over}: {', '.join(over)}.")
    late = _late(options, lags, times, fail_over_age)
    tally.finish()
    if over or late:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


def _late(options: Options, lags: Sequence[GroupLag], times: TimeLags | None, seconds: float | None) -> list[str]:
    """Return and report the groups whose first unread message is older than this."""
    if times is None or seconds is None:
        return []
    late = [each.group for each in lags if (times.most(each) or 0) > seconds]
    if late:
        say(options, f"Groups with an older unread message than {duration_text(int(seconds))}: {', '.join(late)}.")
    return late


def _rows(lags: Sequence[GroupLag], times: TimeLags | None, *, only_with_lag: bool) -> Iterator[Row]:
    for group in lags:
        for each in group.partitions:
            if each.lag or not only_with_lag:
                age = {} if times is None else {"time_lag_seconds": times.of(group, each)}
                yield {**lag_row(group.group, each), **age}


def _total_row(group: GroupLag, times: TimeLags | None) -> Row:
    return {**total_lag_row(group), **({} if times is None else {"max_time_lag_seconds": times.most(group)})}
