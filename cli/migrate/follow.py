"""`zkgroups migrate follow`: keep the target up to date while consumers still work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups.core.layouts.layout import Layout
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.times import utc

from ..shared.arguments import execute_option
from ..shared.connect import brokers, connected, refuse_read_only
from ..shared.engine_options import spark_options
from ..shared.global_options import Command
from ..shared.messages import say, status_line
from ..shared.options import ExitCode, Options
from ..shared.output import Column, Output, Table
from ..shared.parameter_types import Duration
from ..shared.signals import SignalEvent, raise_recorded, recorded_signals
from .options import engine_option, plan_argument, policy_options, rule_of, stored_plan, writers_stopped_option
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
        Column("STATE", "state", styles={"done": "green", "already moved": "green", "left": "red"}),
        Column("BEHIND", "behind", right=True),
        Column("DETAIL", "detail"),
    ),
)


@click.command(cls=Command)
@plan_argument
@policy_options(of_plan=True)
@click.option("--to-zookeeper", is_flag=True, help="Follow in the other direction: from the brokers to ZooKeeper.")
@click.option(
    "--every", type=Duration(), default="1s", show_default=True, help="Time between two passes over all offsets."
)
@writers_stopped_option
@execute_option
@engine_option
@spark_options
@click.pass_obj
def follow(
    options: Options,
    /,
    destination: str,
    to_zookeeper: bool,
    writers_stopped: bool,
    every: float,
    execute: bool,
    **given: Any,
) -> None:
    """Copy new commits to the brokers while legacy members still work, and finish each group once they are stopped.

    Each pass reads the offsets of all groups of the plan and writes changed offsets, forward only, to groups
    without members on the brokers. Stop the legacy members when few messages are left. When two consecutive passes
    have found no members, the command writes the rest and compares both sides: the group is done. If the group
    never had members, one pass is enough. Now start the new consumers. If restarts take longer than two passes, use
    a larger --every, so that a restarting member does not count as stopped. The command ends when each group is
    done or left unfinished for a reason. Without --execute, it runs one pass that only reads.

    After Ctrl-C, run the command again to continue. Finished groups are then "already moved". Offsets written so far
    stay on the brokers: `migrate status` shows such a group as "not marked", and `migrate rollback --force` restores
    it.

    For a plan with another --layout, nothing in ZooKeeper shows whether the jobs that write its offsets still run. So
    the command follows until Ctrl-C. Then stop the jobs, and run it again with --writers-stopped, which finishes.

    Afterwards, `migrate status` shows "moved on" for groups with later offsets than planned. A plain rollback skips
    such a group; use `migrate rollback --to-zookeeper`.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate follow /data/plan
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate follow /data/plan --execute
    """
    if execute:
        refuse_read_only(options)
    chosen = {name: given.pop(name) for name in ("on_out_of_range", "on_unreadable")}
    rows = _read(options, destination, given)
    from zkgroups.core.migration.follow_rules import FollowState
    from zkgroups.migration.follow import follow

    with (
        connected(options, writes=execute, layout=_layout(rows)) as registry,
        brokers(options, what_for="following", patient=True) as found,
        recorded_signals() as recorded,
        status_line(options) as line,
    ):
        groups = follow(
            rows,
            found,
            registry,
            execute=execute,
            to_zookeeper=to_zookeeper,
            writers_stopped=writers_stopped,
            rule=rule_of(chosen, planned=rows[0].rule),
            every=every,
            on_progress=_PassPrinter(options, line, execute=execute),
            stop=SignalEvent(recorded),
        )
    Output(options).write(_FOLLOWED, map(plain, groups))
    raise_recorded(recorded)
    if not execute:
        say(options, "Nothing was changed: add --execute to apply.")
    if any(group.state is FollowState.LEFT for group in groups):
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _read(options: Options, destination: str, given: dict[str, Any]) -> Sequence[PlanRow]:
    """Read all rows of the plan, and stop the engine again."""
    with stored_plan(options, destination, given) as engine:
        from zkgroups.migration.summaries import plan_rows

        return list(plan_rows(engine, destination))


def _layout(rows: Sequence[PlanRow]) -> Layout:
    from zkgroups.core.layouts.template import parse_layout

    return parse_layout(rows[0].layout) if rows else LEGACY


class _PassPrinter:
    """Prints changes after each pass, and a status line on a terminal. The table shows the result of a dry run."""

    def __init__(self, options: Options, line: Any, *, execute: bool) -> None:
        self._options = options
        self._execute = execute
        self._line = line
        self._states: dict[str, str] = {}
        self._details: dict[str, str] = {}
        self._trouble = ""

    def __call__(self, done: FollowPass) -> None:
        if done.trouble != self._trouble:
            self._trouble = done.trouble
            self._say(
                f"could not update offsets, retrying: {done.trouble}" if done.trouble else "updating offsets again"
            )
        for group in done.groups:
            why = group.detail not in ("", self._details.get(group.target)) and self._execute
            if why or self._states.get(group.target, "following") != group.state:
                self._say(f"{group.group}: {group.state}{f': {group.detail}' if group.detail else ''}")
            self._states[group.target], self._details[group.target] = group.state, group.detail
        following = sum(state == "following" for state in self._states.values())
        self._line(f"pass {done.number}: {following} of {len(self._states)} groups, {done.behind} messages behind")

    def _say(self, text: str) -> None:
        say(self._options, f"{utc(time.time_ns() // 1_000_000)} {text}")
