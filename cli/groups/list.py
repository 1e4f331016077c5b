"""`zkgroups groups list`: list the names of groups, or one summary per group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from zkgroups.core.znodes.states import GroupState

from ..shared.arguments import matching_option
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.messages import say
from ..shared.options import Format, Options
from ..shared.output import Column, Output, Row, Table

if TYPE_CHECKING:
    from zkgroups import GroupDescription
    from zkgroups.core.offsets.lag import GroupLag

_NAMES: Final = Table("groups", key="group", columns=(Column("GROUP", "group"),))
_STATES: Final = [state.value for state in GroupState if state is not GroupState.DEAD]


@click.command("list", cls=Command)
@matching_option
@click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="Only groups in this state.")
@click.pass_obj
def list_groups(options: Options, matching: re.Pattern[str] | None, state: str | None) -> None:
    """List all groups.

    -o table and -o name show only the names, which is fast. All other formats read every group, and also show its
    state, totals and last commit. With -b, they show its lag, too, and for how many partitions it
    is unknown. --state reads every group.

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
        if only_names and state is None:
            output.write(_NAMES, [{"group": name} for name in names])
            return
        from .description_rows import describe_groups, summary_row
        from .description_tables import SUMMARIES, SUMMARIES_WITH_LAG

        tally = Tally()
        groups = describe_groups(registry, names, tally, must_exist=())
        chosen = (group for group in groups if state in (None, _state(group)))
        if only_names or options.bootstrap_server is None:
            output.write(_NAMES if only_names else SUMMARIES, map(summary_row, chosen))
        else:
            output.write(SUMMARIES_WITH_LAG, _with_lag(options, list(chosen), tally))
        tally.finish()


def _with_lag(options: Options, groups: Sequence[GroupDescription], tally: Tally) -> Iterator[Row]:
    from ..shared.brokers import LAG_UNKNOWN, brokers, reported_as
    from .description_rows import summary_row
    from .read_lags import check_leaders, logs_of, read_lags

    lags: Sequence[GroupLag | None] = [None] * len(groups)
    if groups:
        with reported_as(LAG_UNKNOWN, tally), brokers(options) as found:
            lags = known = read_lags(found, groups)
            check_leaders(found, logs_of(known))
    for group, lag in zip(groups, lags, strict=True):
        total, most, unknown = (lag.total, lag.most, lag.unknown) if lag else (None, None, None)
        yield summary_row(group) | {"total_lag": total, "max_lag": most, "unknown_lags": unknown}


def _state(group: GroupDescription) -> str:
    from .description_rows import summary_row

    return summary_row(group)["state"] or GroupState.UNKNOWN.value
