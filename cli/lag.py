"""`zkgroups lag`: show how far groups are behind the log ends."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

import click

from zkgroups import GroupDescription, MalformedNode
from zkgroups.core.layouts.layout import Layout
from zkgroups.core.offsets.lag import GroupLag
from zkgroups.core.time_formats import duration_text

from .groups.describe import (
    LAGS,
    TIME_LAGS,
    TOTAL_LAGS,
    TOTAL_TIME_LAGS,
    describe_groups,
    lag_row,
    state_of,
    total_lag_row,
)
from .groups.lags import TimeLags, check_leaders, lags_without_brokers, logs_of, read_lags
from .offsets.read import moved_targets, node_error
from .shared.arguments import (
    ChosenPartitions,
    chosen_groups,
    groups_then_topic_argument,
    matching_option,
    state_option,
    topics_option,
)
from .shared.connect import LAG_UNKNOWN, brokers, connected, missing_brokers, reported_as
from .shared.engine_options import layout_options
from .shared.errors import Tally
from .shared.global_options import Command
from .shared.messages import counted, say
from .shared.options import ExitCode, Format, Options
from .shared.output import Output, Row
from .shared.parameter_types import Duration, usage_error


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
@groups_then_topic_argument
@matching_option
@topics_option
@click.option("--only-with-lag", is_flag=True, help="Only partitions, or groups, with a known lag above 0.")
@click.option("--summary", is_flag=True, help="One line for each group, with its state and its number of members.")
@click.option("--live", is_flag=True, help="Only groups with registered members.")
@state_option
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
@click.option(
    "--include-moved",
    is_flag=True,
    help="Also check groups that were moved to the brokers: their offsets in ZooKeeper stand still.",
)
@click.option("--time", "with_time", is_flag=True, help="Also show how long ago the first unread message was written.")
@click.option(
    "--fail-over-age",
    type=Duration(needs_unit=True),
    help="With --time, exit with code 10 if the first unread message of a group is older than this.",
)
@layout_options
@click.pass_obj
def lag(
    options: Options,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: ChosenPartitions | None,
    only_with_lag: bool,
    summary: bool,
    live: bool,
    states: tuple[str, ...],
    sort: str | None,
    top: int | None,
    fail_over: int | None,
    include_moved: bool,
    with_time: bool,
    fail_over_age: float | None,
    layout: Layout,
) -> None:
    """Show how far groups are behind the log ends. Needs the brokers: -b HOST:PORT.

    The command shows the partitions of the named groups, or of all groups: all that have an offset or an owner, or
    belong to a subscribed topic. A dash means that the lag is unknown; NOTE has the reason. "before start" means that
    the messages at the offset have been deleted. The lag includes these messages, and the control records of
    transactions, which brokers do not count apart.

    If the leaders of some partitions do not answer, the command shows the others, and ends with exit code 9. If no
    broker answers, it shows the offsets and owners that ZooKeeper has, without lag, and ends with exit code 9, too.

    --fail-over adds up the known lags of the chosen partitions, also of those that --top leaves out. MOVED-TO marks the
    groups that were moved to the brokers. --fail-over and --fail-over-age leave them out, unless --include-moved is
    given.

    --time searches the time of the first unread message with about ten requests to each broker, and reads no messages.
    The age is by the clock of this machine, within a second or 1 %. If the times of messages are not in order, the
    newest time up to that message counts. A dash means that it is unknown, e.g. with brokers before 0.10.1.

    With --layout, the command shows the lag of jobs of another system, which keeps its offsets in ZooKeeper.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag billing
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag --only-with-lag
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag --groups 'bill.*' --topic orders:0,1
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag --summary --top 10
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag billing --fail-over 10000
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag billing --time --fail-over-age 1h
      zkgroups -z zk1:2181 -b kafka1:9092 lag --layout storm:/kafkastorm
    """
    if fail_over_age is not None and not with_time:
        raise usage_error("--fail-over-age needs --time")
    if options.bootstrap_server is None:
        raise missing_brokers("lag")
    output, tally = Output(options), Tally()
    with connected(options, layout=layout) as registry:
        everything = not names and matching is None
        chosen = registry.groups(layout) if everything else chosen_groups(registry, names, matching, layout)
        described = describe_groups(registry, chosen, tally, must_exist=names, layout=layout)
        groups = [
            group
            for group in counted(options, described, "groups")
            if (group.members or not live) and (not states or state_of(group) in states)
        ]
        moved = moved_targets(registry, [group.group for group in groups], layout)
    _report_hidden(groups, layout, tally)
    lags, times = lags_without_brokers(groups, topics, layout), TimeLags({}) if with_time else None
    with reported_as(LAG_UNKNOWN, tally), brokers(options) as found:
        lags = read_lags(found, groups, topics, layout)
        with reported_as(LAG_UNKNOWN, tally):
            check_leaders(found, logs_of(lags))
        if with_time:
            with reported_as("the age of unread messages is unknown", tally):
                times = TimeLags.read(found, lags, int(time.time() * 1000))
    if not chosen:
        say(options, "No group matches." if matching else "There are no groups.")
    order = _Order(sort) if sort else _Order.LAG if top else _Order.GROUP
    if summary or output.format is Format.NAME:
        totals = [
            {**total_lag_row(group, each, moved.get(each.group)), **_most_time(each, times)}
            for group, each in zip(groups, lags, strict=True)
            if each.total or not only_with_lag
        ]
        table = TOTAL_LAGS if times is None else TOTAL_TIME_LAGS
        output.write(table.with_moved(moved), order.sorted(totals, lag="total_lag", committed="last_commit_ms")[:top])
    else:
        rows = order.sorted(_rows(lags, times, moved, only_with_lag=only_with_lag), lag="lag", committed="committed_ms")
        output.write((LAGS if times is None else TIME_LAGS).with_moved(moved), rows[:top])
    if only_with_lag and (unknown := sum(each.unknown for each in lags)):
        say(
            options,
            f"The lag of {unknown} more partitions is unknown."
            if unknown > 1
            else "The lag of 1 more partition is unknown.",
        )
    checked = [each for each in lags if include_moved or each.group not in moved]
    if moved and not include_moved and (fail_over is not None or fail_over_age is not None):
        say(options, f"Not checked, because they were moved to the brokers: {', '.join(moved)}.")
    over = [] if fail_over is None else [each.group for each in checked if (each.total or 0) > fail_over]
    if over:
        say(options, f"Groups with a lag above {fail_over}: {', '.join(over)}.")
    late = _late(options, checked, times, fail_over_age)
    tally.finish()
    if over or late:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


def _report_hidden(groups: Iterable[GroupDescription], layout: Layout, tally: Tally) -> None:
    """Report the nodes whose partitions nobody knows, so that they are missing in the result."""
    for group in groups:
        for node in group.unreadable:
            place = layout.place(node.path)
            if isinstance(node, MalformedNode) and place and place.at is None and not place.is_misnamed:
                tally.failed(node_error(node, layout))


def _late(options: Options, lags: Sequence[GroupLag], times: TimeLags | None, seconds: float | None) -> list[str]:
    """Return and report the groups whose first unread message is older than this."""
    if times is None or seconds is None:
        return []
    late = [each.group for each in lags if (times.most(each) or 0) > seconds]
    if late:
        say(options, f"Groups with an older unread message than {duration_text(int(seconds))}: {', '.join(late)}.")
    return late


def _rows(
    lags: Sequence[GroupLag], times: TimeLags | None, moved: Mapping[str, str], *, only_with_lag: bool
) -> Iterator[Row]:
    for group in lags:
        for each in group.partitions:
            if each.lag or not only_with_lag:
                age = {} if times is None else {"time_lag_seconds": times.of(group, each)}
                yield {**lag_row(group.group, each, moved.get(group.group)), **age}


def _most_time(group: GroupLag, times: TimeLags | None) -> Row:
    return {} if times is None else {"max_time_lag_seconds": times.most(group)}
