"""`zkgroups groups list`: list the names of groups, or one summary per group."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from ..offsets.read import moved_targets
from ..shared.arguments import matching_option, state_option
from ..shared.connect import connected
from ..shared.errors import Tally
from ..shared.global_options import Command
from ..shared.messages import say
from ..shared.options import Format, Options
from ..shared.output import Column, Output, Row, Table

if TYPE_CHECKING:
    from zkgroups import GroupDescription
    from zkgroups.core.offsets.lag import GroupLag

_NAMES: Final = Table("groups", key="group", columns=(Column("GROUP", "group"),))


@click.command("list", cls=Command)
@matching_option
@state_option
@click.pass_obj
def list_groups(options: Options, matching: re.Pattern[str] | None, states: tuple[str, ...]) -> None:
    """List all groups.

    -o table and -o name show only the names, which is fast. All other formats read every group, and also show its
    state, totals and last commit. With -b, they show its lag, too, and for how many partitions it is unknown. --state
    reads every group. MOVED-TO is the name of a group on the brokers, if it was moved there.

    `zkgroups groups describe --help` explains the states.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups list
      zkgroups -z zk1:2181/kafka groups list -o wide
      zkgroups -z zk1:2181/kafka groups list -o wide -b kafka1:9092
      zkgroups -z zk1:2181/kafka groups list -o jsonl
      zkgroups -z zk1:2181/kafka groups list --groups 'bill.*' --state Empty
    """
    output = Output(options)
    with connected(options) as registry:
        names = [name for name in registry.groups() if matching is None or matching.fullmatch(name)]
        if not names:
            say(options, "There are no groups." if matching is None else "No group matches.")
        only_names = output.format in {Format.TABLE, Format.NAME}
        if only_names and not states:
            moved = {} if output.format is Format.NAME else moved_targets(registry, names)
            rows = [{"group": name, "moved_to": moved.get(name)} for name in names]
            output.write(_NAMES.with_moved(moved), rows)
            return
        from .describe import SUMMARIES, SUMMARIES_WITH_LAG, describe_groups, summary_row

        tally = Tally()
        groups = describe_groups(registry, names, tally, must_exist=())
        found = Counter[bool]()
        chosen = _in_states(groups, states, found)
        if only_names or options.bootstrap_server is None:
            output.write(_NAMES if only_names else SUMMARIES, map(summary_row, chosen))
        else:
            output.write(SUMMARIES_WITH_LAG, _with_lag(options, list(chosen), tally))
        if names and states and not found[True]:
            say(options, f"No group is {' or '.join(states)}.")
        tally.finish()


def _in_states(
    groups: Iterable[GroupDescription], states: Collection[str], found: Counter[bool]
) -> Iterator[GroupDescription]:
    """Yield the groups in these states, or all groups without states. Count the groups that are and are not."""
    from .describe import state_of

    for group in groups:
        is_found = not states or state_of(group) in states
        found[is_found] += 1
        if is_found:
            yield group


def _with_lag(options: Options, groups: Sequence[GroupDescription], tally: Tally) -> Iterator[Row]:
    from ..shared.connect import LAG_UNKNOWN, brokers, reported_as
    from .describe import summary_row
    from .lags import check_leaders, logs_of, read_lags

    lags: Sequence[GroupLag | None] = [None] * len(groups)
    if groups:
        with reported_as(LAG_UNKNOWN, tally), brokers(options) as found:
            lags = known = read_lags(found, groups)
            check_leaders(found, logs_of(known))
    for group, lag in zip(groups, lags, strict=True):
        total, most, unknown = (lag.total, lag.most, lag.unknown) if lag else (None, None, None)
        yield summary_row(group) | {"total_lag": total, "max_lag": most, "unknown_lags": unknown}
