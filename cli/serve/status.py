"""`zkgroups status`: show which groups are in trouble, why, and what to do, by the same rules as `zkgroups serve`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click

from zkgroups import GroupDescription, Registry, Severity
from zkgroups.core.health import Limits, Status
from zkgroups.core.time_formats import duration_text
from zkgroups.core.times import utc
from zkgroups.exceptions import GroupNotFoundError
from zkgroups.serve.page.overview import ORDERS
from zkgroups.serve.picture.build_group import Rules
from zkgroups.serve.picture.values import GroupPicture
from zkgroups.serve.sweeper import BrokerReader, ClusterState, now_ms, sweep
from zkgroups.serve.web.json_values import summary_json

from ..groups.lags import check_leaders
from ..shared.arguments import chosen_groups, matching_option, maybe_groups_argument
from ..shared.connect import LAG_UNKNOWN, brokers, connected_with_topics, reported_as
from ..shared.errors import Tally
from ..shared.errors import watch as watch_rows
from ..shared.global_options import Command
from ..shared.messages import say
from ..shared.options import ExitCode, Format, Options
from ..shared.output import Column, Output, Row, Table, wait_while_read
from ..shared.parameter_types import Duration, combined

_RATES_AFTER: Final = 5.0
"""The seconds between the two sweeps of --rates."""
_MOST_ALIKE: Final = 3
"""So many groups that need no quick help have lines of their own in a table."""
_URGENT: Final = frozenset(Status) - {Status.ABANDONED, Status.STALE, Status.MOVED, Status.OK}


def _seconds(value: float) -> str:
    return duration_text(int(value))


def _rate(value: float) -> str:
    return f"{value:.1f}/s"


STATUSES: Final = Table(
    "groups",
    key="group",
    columns=(
        Column("STATUS", "status", styles={each.value: "red" for each in _URGENT} | {"OK": "green", "WARN": "yellow"}),
        Column("SEVERITY", "severity", wide=True),
        Column("GROUP", "group"),
        Column("MEMBERS", "members", right=True),
        Column("LAG", "lag", right=True),
        Column("TIME-LAG", "time_lag_seconds", wide=True, show=_seconds, right=True),
        Column("LAST-COMMIT", "last_commit_ms", wide=True, show=utc),
        Column("REASON", "reason"),
        Column("NEXT", "next_step"),
    ),
)

_RATES: Final = (
    Column("CONSUMED", "consumed_per_second", show=_rate, right=True),
    Column("PRODUCED", "produced_per_second", show=_rate, right=True),
    Column("CATCH-UP", "catch_up_seconds", show=_seconds, right=True),
)
STATUSES_WITH_RATES: Final = STATUSES._replace(columns=(*STATUSES.columns[:7], *_RATES, *STATUSES.columns[7:]))


limit_options: Final = combined(
    click.option(
        "--allowed-lag",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="A lag of at most this many messages is always OK.",
    ),
    click.option(
        "--abandoned-after",
        type=Duration(needs_unit=True),
        default="1d",
        show_default=True,
        help="A group with unread messages, without members and without a commit for this long is ABANDONED.",
    ),
    click.option(
        "--stale-after",
        type=Duration(needs_unit=True),
        default="90d",
        show_default=True,
        help="A group without members and without a commit for this long is STALE.",
    ),
)
"""The limits of statuses."""


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@click.option(
    "--fail-on",
    type=click.Choice([severity.value for severity in Severity]),
    help="Exit with code 10 if a group has a status of this severity, or a worse one.",
)
@click.option("--rates", is_flag=True, help="Also show rates and the time to catch up. Reads twice, 5 s apart.")
@click.option("--watch", is_flag=True, help="Keep running, and show the groups again after each read.")
@click.option(
    "--interval",
    type=Duration(least=0.1),
    default="5s",
    show_default=True,
    help="How often --watch reads the groups.",
)
@limit_options
@click.pass_obj
def status(
    options: Options,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    fail_on: str | None,
    rates: bool,
    watch: bool,
    interval: float,
    allowed_lag: int,
    abandoned_after: float,
    stale_after: float,
) -> None:
    """Show which groups are in trouble, why, and what to do next. The worst come first.

    The command shows the status of the named groups, or of all groups, by the rules of `zkgroups serve`. Lag needs the
    brokers (-b); without them, the command finds only problems of members and owners.

    \b
    error    PAST_END, BLOCKED, ORPHANED, UNOWNED for 60 s, STOP, REWIND, STALL
    warning  UNOWNED, WARN, ABANDONED, UNKNOWN if something cannot be read
    info     UNKNOWN, STALE, MOVED
    (none)   OK

    STOP means that messages wait, and nothing was committed for a long time. A group that has neither members nor a
    recent commit is ABANDONED instead. In a table of all groups, more than three such groups, or groups that are STALE,
    MOVED or OK, are one line with their number. All other formats, and -o wide, show each group.

    REWIND, STALL and WARN compare with the past. So they need --watch for some minutes, or `zkgroups serve`.

    If brokers do not answer, the command shows what ZooKeeper has, and ends with exit code 9. With --watch, it goes on,
    and --fail-on ends it at the first such group.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 status
      zkgroups -z zk1:2181/kafka -b kafka1:9092 status billing -o wide --rates
      zkgroups -z zk1:2181/kafka -b kafka1:9092 status --fail-on error -o jsonl
      zkgroups -z zk1:2181/kafka -b kafka1:9092 status --groups 'bill.*' --abandoned-after 12h
    """
    output, table = Output(options), STATUSES_WITH_RATES if rates else STATUSES
    folded = output.format is Format.TABLE and not names
    limits = Limits(allowed_lag=allowed_lag, abandoned_ms=int(abandoned_after * 1000), stale_ms=int(stale_after * 1000))
    state = ClusterState(Rules(limits, asks_brokers=options.bootstrap_server is not None))
    with connected_with_topics(options) as registry:

        def read(tally: Tally, of_brokers: Tally) -> list[GroupPicture]:
            everything = not names and matching is None
            chosen = registry.groups() if everything else chosen_groups(registry, names, matching)
            sweep_groups(options, registry, chosen, state, of_brokers)
            for name in chosen:
                if name in state.groups:
                    with tally.attempt():
                        pass
                elif name in names:
                    tally.failed(GroupNotFoundError(name))
            return sorted(state.groups.values(), key=ORDERS["status"])

        if watch:
            groups: list[GroupPicture] = []

            def rows(tally: Tally, of_brokers: Tally) -> list[Row]:
                groups[:] = read(tally, of_brokers)
                return list(_rows(groups, folded=folded))

            watch_rows(output, table, rows, interval, always=True, check=lambda: _fail(groups, fail_on))
        tally = Tally()
        groups = read(tally, tally)
        if rates and groups:
            wait_while_read(_RATES_AFTER)
            groups = read(tally, tally)
        output.write(table, _rows(groups, folded=folded))
    if not groups and tally.all_done:
        say(options, "No group matches." if matching else "There are no groups.")
    elif groups and options.bootstrap_server is None:
        say(options, "Without brokers (-b), it is unknown whether messages wait.")
    tally.finish()
    _fail(groups, fail_on)


def sweep_groups(
    options: Options,
    registry: Registry,
    names: Sequence[str],
    state: ClusterState,
    tally: Tally,
    missing: str = LAG_UNKNOWN,
) -> None:
    """Read groups, and with brokers their logs, into the state. Report brokers that do not answer."""

    def read_logs(groups: Sequence[GroupDescription]) -> None:
        state.ends.is_fresh = False
        if options.bootstrap_server is not None:
            with reported_as(missing, tally), brokers(options) as asked:
                check_leaders(asked, BrokerReader(asked, state.ends).read_or_raise(groups, clock=now_ms))

    sweep(registry, names, state, read_logs)


def _fail(groups: Iterable[GroupPicture], fail_on: str | None) -> None:
    severities = (group.verdict.severity for group in groups)
    if fail_on is not None and any(each is not None and each.is_at_least(Severity(fail_on)) for each in severities):
        raise click.exceptions.Exit(ExitCode.FINDINGS)


def _rows(groups: Sequence[GroupPicture], *, folded: bool) -> Iterator[Row]:
    """Yield a row for each group. If `folded`, many groups that need no quick help are one row for each status."""
    counts = Counter(group.verdict.status for group in groups)
    seen: set[Status] = set()
    for group in groups:
        status, count = group.verdict.status, counts[group.verdict.status]
        is_urgent = status in _URGENT and group.verdict.severity is not Severity.INFO
        if not folded or is_urgent or count <= _MOST_ALIKE:
            yield summary_json(group)
        elif status not in seen:
            seen.add(status)
            more = {"reason": f"{group.verdict.reason} (and {count - 1} more groups: add -o wide)", "next_step": ""}
            yield summary_json(group) | more
