"""`zkgroups migrate follow`: the target kept up to date while consumers still work, so that moving takes no longer than
stopping them here and starting them there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups.core.migration.rules import OutOfRange, Rule
from zkgroups.core.times import utc

from ..shared.arguments import execute_option
from ..shared.brokers import brokers
from ..shared.command_classes import Command
from ..shared.connect import connected, refuse_read_only
from ..shared.durations import seconds_option
from ..shared.exit_codes import ExitCode
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Table
from ..shared.progress import status_line
from ..shared.signals import SignalEvent, raise_recorded, recorded_signals
from ..shared.spark_options import SparkOptions, spark_options
from .both_sides import installed, own_spark, plan_argument
from .options import out_of_range_option
from .tables import plain

if TYPE_CHECKING:
    from zkgroups.core.migration.follow_rules import FollowPass
    from zkgroups.core.migration.plan_rows import PlanRow

_FOLLOWED: Final = Table(
    "groups",
    key="group",
    columns=(
        Column("GROUP", "group"),
        Column("TARGET", "target"),
        Column("STATE", "state", styles={"done": "green", "left": "red"}),
        Column("BEHIND", "behind", right=True),
        Column("DETAIL", "detail"),
    ),
)


@click.command(cls=Command)
@plan_argument
@out_of_range_option
@click.option("--to-zookeeper", is_flag=True, help="The way back: from the brokers to ZooKeeper.")
@seconds_option("--every", default=1.0, help="From one look at all offsets to the next.")
@execute_option
@spark_options
@click.pass_obj
def follow(
    options: Options,
    /,
    destination: str,
    on_out_of_range: str,
    to_zookeeper: bool,
    every: float,
    execute: bool,
    **given: Any,
) -> None:
    """Keep the offsets on the brokers up to date while the old members still work, until they are stopped.

    Every second the offsets of all groups of the plan are read at once, and what has moved is written, forward only,
    and only while nobody takes part in the group on the brokers. Stop the members when little is left: when two looks
    in a row have found nobody, or none has found anybody, the rest is written, both sides are compared, and the group
    is done. Start the new consumers then. A member that is only started anew may be away longer than that: --every
    says how long. When all groups are done or left it ends. With Ctrl-C it ends at once, and can be begun again;
    what it has written stays on the brokers, `migrate status` says "not marked" of such a group, and `migrate rollback
    --force` takes it back. Without --execute it looks once.

    After it `migrate status` says "moved on" where more was carried than was planned, and a plain rollback leaves the
    group, because the plan is older: `migrate rollback --to-zookeeper` takes it back.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate follow /data/plan
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate follow /data/plan --execute
    """
    if execute:
        refuse_read_only(options)
    rows = _read(options, destination, own_spark(given))
    from zkgroups.core.migration.follow_rules import FollowState
    from zkgroups.migration.follow import follow

    with (
        connected(options, writes=execute) as registry,
        brokers(options, what_for="following") as found,
        recorded_signals() as recorded,
        status_line(options) as line,
    ):
        groups = follow(
            rows,
            found,
            registry,
            execute=execute,
            to_zookeeper=to_zookeeper,
            rule=Rule(OutOfRange(on_out_of_range)),
            every=every,
            told=_Story(options, line, execute=execute),
            stop=SignalEvent(recorded),
        )
    Output(options).write(_FOLLOWED, map(plain, groups))
    raise_recorded(recorded)
    if not execute:
        say(options, "Nothing was changed: --execute does it.")
    if any(group.state is FollowState.LEFT for group in groups):
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _read(options: Options, destination: str, spark: SparkOptions) -> Sequence[PlanRow]:
    """All rows of the plan; Spark is gone again when they are here."""
    with installed():
        from zkgroups.spark.migration.plan_reader import plan_rows
    with spark.session(options) as session:
        return list(plan_rows(session, destination))


class _Story:
    """Tells of each pass: on a terminal in one line, and elsewhere what has changed; of a dry run the table tells."""

    def __init__(self, options: Options, line: Any, *, execute: bool) -> None:
        self._options = options
        self._execute = execute
        self._line = line
        self._states: dict[str, str] = {}
        self._details: dict[str, str] = {}
        self._trouble = ""

    def __call__(self, told: FollowPass) -> None:
        if told.trouble != self._trouble:
            self._trouble = told.trouble
            self._say(f"trouble: {told.trouble}" if told.trouble else "all is well again")
        for group in told.groups:
            why = group.detail not in ("", self._details.get(group.target)) and self._execute
            if why or self._states.get(group.target, "following") != group.state:
                self._say(f"{group.group}: {group.state}{f': {group.detail}' if group.detail else ''}")
            self._states[group.target], self._details[group.target] = group.state, group.detail
        following = sum(state == "following" for state in self._states.values())
        self._line(f"pass {told.number}: {following} of {len(self._states)} groups, {told.behind} messages behind")

    def _say(self, text: str) -> None:
        say(self._options, f"{utc(time.time_ns() // 1_000_000)} {text}")
