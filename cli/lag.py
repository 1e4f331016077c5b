"""`zkgroups lag`: show how far groups are behind the log ends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from zkgroups import GroupDescription
from zkgroups.core.offsets.lag import GroupLag, group_lag, partitions_of_group, subscribes_by_pattern

from .groups.description_rows import describe_groups, lag_row, total_lag_row
from .groups.description_tables import LAGS, TOTAL_LAGS
from .shared.arguments import (
    ChosenPartitions,
    chosen_groups,
    is_chosen,
    matching_option,
    maybe_groups_argument,
    topics_option,
)
from .shared.brokers import brokers
from .shared.command_classes import Command
from .shared.connect import connected
from .shared.errors_to_exit_codes import Tally
from .shared.messages import say
from .shared.options import Format, Options
from .shared.output import Output, Row
from .shared.progress import counted

if TYPE_CHECKING:
    from zkgroups.kafka import Brokers


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@topics_option
@click.option("--only-with-lag", is_flag=True, help="Only partitions, or groups, with a known lag above 0.")
@click.option("--summary", is_flag=True, help="One line for each group.")
@click.pass_obj
def lag(
    options: Options,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: ChosenPartitions | None,
    only_with_lag: bool,
    summary: bool,
) -> None:
    """Show how far groups are behind the log ends. Needs the brokers: -b HOST:PORT.

    The command shows the partitions of the named groups, or of all groups: all that have an offset or an owner, or
    belong to a subscribed topic. A dash means that the lag is unknown; NOTE has the reason. "before start" means that
    the messages at the offset have been deleted. The lag includes these messages.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag billing
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag --only-with-lag
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag --groups 'bill.*' --topic orders:0,1
      zkgroups -z zk1:2181/kafka -b kafka1:9092 lag --summary -o json
    """
    output, tally = Output(options), Tally()
    with brokers(options, what_for="lag") as found, connected(options) as registry:
        chosen = chosen_groups(registry, names, matching) if names or matching else registry.groups()
        groups = list(counted(options, describe_groups(registry, chosen, tally, must_exist=names), "groups"))
        lags = _lags(found, groups, topics)
    if not chosen:
        say(options, "No group matches." if matching else "There are no groups.")
    if summary or output.format is Format.NAME:
        output.write(TOTAL_LAGS, [total_lag_row(each) for each in lags if each.total or not only_with_lag])
    else:
        output.write(LAGS, _rows(lags, only_with_lag=only_with_lag))
    if only_with_lag and (unknown := sum(each.unknown for each in lags)):
        say(
            options,
            f"The lag of {unknown} more partitions is unknown."
            if unknown > 1
            else "The lag of 1 more partition is unknown.",
        )
    tally.finish()


def _lags(brokers: Brokers, groups: Sequence[GroupDescription], topics: ChosenPartitions | None) -> list[GroupLag]:
    """Compute the lags of all groups at once. The offsets were read before the log ends, so that no lag is negative."""
    named = {topic for group in groups for topic in group.subscribed}
    known = brokers.partitions(None if subscribes_by_pattern(groups) else named)
    partitions = [
        [each for each in partitions_of_group(group, known) if is_chosen(each.at, topics)] for group in groups
    ]
    logs = brokers.ranges({each.at for some in partitions for each in some})
    return [group_lag(group, some, logs) for group, some in zip(groups, partitions, strict=True)]


def _rows(lags: Sequence[GroupLag], *, only_with_lag: bool) -> Iterator[Row]:
    for each in lags:
        yield from (lag_row(each.group, one) for one in each.partitions if one.lag or not only_with_lag)
