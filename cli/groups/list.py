"""`zkgroups groups list`: list the names of groups, or one summary per group."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from zkgroups.core.znodes.states import GroupState

from ..shared.arguments import matching_option
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.messages import say
from ..shared.options import Format, Options
from ..shared.output import Column, Output, Table

if TYPE_CHECKING:
    from zkgroups import GroupDescription

_NAMES: Final = Table("groups", key="group", columns=(Column("GROUP", "group"),))
_STATES: Final = [state.value for state in GroupState if state is not GroupState.DEAD]


@click.command("list", cls=Command)
@matching_option
@click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="Only groups in this state.")
@click.pass_obj
def list_groups(options: Options, matching: re.Pattern[str] | None, state: str | None) -> None:
    """List all groups.

    -o table and -o name show only the names, which is fast. All other formats read every group, and also show its
    state, totals and last commit. With -b, they show its lag, too. --state reads every group.

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
        from .description_rows import describe_groups

        tally = Tally()
        groups = describe_groups(registry, names, tally, must_exist=())
        _write(options, output, (group for group in groups if state in (None, _state(group))), only_names=only_names)
        tally.finish()


def _write(options: Options, output: Output, groups: Iterable[GroupDescription], *, only_names: bool) -> None:
    from .description_rows import summary_row
    from .description_tables import SUMMARIES, SUMMARIES_WITH_LAG

    if only_names or options.bootstrap_server is None:
        output.write(_NAMES if only_names else SUMMARIES, map(summary_row, groups))
        return
    from ..shared.brokers import brokers
    from .read_lags import read_lags

    with brokers(options) as found:
        read = list(groups)
        lags = read_lags(found, read)
    rows = (
        summary_row(group) | {"total_lag": each.total, "max_lag": each.most, "unknown_lags": each.unknown}
        for group, each in zip(read, lags, strict=True)
    )
    output.write(SUMMARIES_WITH_LAG, rows)


def _state(group: GroupDescription) -> str:
    from .description_rows import summary_row

    return summary_row(group)["state"] or GroupState.UNKNOWN.value
