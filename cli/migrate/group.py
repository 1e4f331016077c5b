"""`zkgroups migrate group`, `switch` and `unmark`."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from zkgroups.core.layouts.layout import Layout
from zkgroups.core.migration.changes_since_plan import MigrationStage
from zkgroups.core.migration.offset_decision import Renaming, Rule
from zkgroups.core.znodes.topic_partition import check_group
from zkgroups.core.znodes.values import UnreadableNode
from zkgroups.exceptions import GroupNotFoundError, RefusedError
from zkgroups.zookeeper.session.session import context_of

from ..offsets.read import group_exists
from ..shared.arguments import execute_option, group_argument, groups_argument
from ..shared.connect import brokers, connected, refuse_read_only
from ..shared.engine_options import layout_options, writing_options
from ..shared.errors import Tally
from ..shared.global_options import Command
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Table
from ..shared.parameter_types import Duration
from .apply_verify_rollback import MigrationSession, apply_plan, migration_session
from .options import (
    PlanUri,
    engine_option,
    policy_options,
    rule_is_given,
    rule_of,
    rule_options,
    steps_shown,
    writers_stopped_option,
)

# `zkgroups migrate group`: plan and apply one group.


_NOTHING_TO_WRITE: Final = (MigrationStage.BLOCKED, MigrationStage.NOTHING)


@click.command(cls=Command)
@group_argument
@click.argument("destination", metavar="DEST", type=PlanUri())
@click.option("--as", "target", metavar="NAME", help="Another name for the group on the brokers.")
@rule_options
@execute_option
@writers_stopped_option
@engine_option
@writing_options
@layout_options
@click.pass_obj
def group(
    options: Options,
    /,
    group: str,
    destination: str,
    target: str | None,
    execute: bool,
    writers_stopped: bool,
    layout: Layout,
    **given: Any,
) -> None:
    """Move one group: `migrate plan` and `migrate apply` in one command, with the same checks.

    DEST is a folder for the plan and its reports, written with a slash. Without --execute, the command only shows what
    it would do. If the folder has a plan, the command continues with it. A plan with nothing to write is replaced by a
    new one. So if the group was blocked, stop its members or choose how to treat its offsets, and run the command
    again. `migrate verify` and `migrate rollback` take the same folder.

    With --layout, the command moves a group of another system. Stop its jobs, and add --writers-stopped.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate group invoices ./moved
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate group invoices ./moved --execute
      zkgroups -z zk1:2181 -b kafka1:9092 migrate group spout ./moved --layout storm:/kafkastorm
    """
    if execute:
        refuse_read_only(options)
    request = _GroupRequest(
        group, Renaming({group: check_group(target)} if target else {}), rule_of(given), rule_is_given(), layout
    )
    with migration_session(options, destination, given, what_for="migrate group") as migration:
        _plan(migration, request)
        apply_plan(migration, execute=execute, writers_stopped=writers_stopped)


@dataclass(frozen=True, slots=True)
class _GroupRequest:
    """The group to move, and the options of its plan."""

    group: str
    renaming: Renaming
    rule: Rule
    rule_is_given: bool
    layout: Layout


def _plan(migration: MigrationSession, request: _GroupRequest) -> None:
    """Make the plan, unless the folder has one to continue with."""
    from zkgroups.migration.planning import plan

    replaced = None
    if migration.engine.folder(migration.destination).has_plan():
        replaced = _replaceable_plan(migration, request)
        if replaced is None:
            say(migration.options, f"Continuing with the plan in {migration.destination}.")
            return
        say(
            migration.options,
            f"The plan in {migration.destination} has nothing to write: making a new one.",
        )
    assert migration.zookeeper is not None
    source = replace(migration.zookeeper, groups=re.escape(request.group), layout=request.layout.text)
    with steps_shown(migration.options, migration.engine) as on_progress:
        plan(
            migration.engine,
            migration.destination,
            source,
            migration.brokers,
            rule=request.rule,
            renaming=request.renaming,
            instead_of=replaced,
            on_progress=on_progress,
        )


def _replaceable_plan(migration: MigrationSession, request: _GroupRequest) -> str | None:
    """Return the id of the existing plan if it has nothing to write and has written nothing. Otherwise return None.

    Any other plan must be kept, because a rollback needs the earlier offsets in it.
    """
    from zkgroups.migration.steps import status
    from zkgroups.migration.summaries import first_row

    head = first_row(migration.engine.folder(migration.destination))
    states = status(migration.engine, migration.destination, migration.brokers, migration.zookeeper)
    target = request.renaming.names.get(request.group, head.target)
    if [(each.group, each.target) for each in states] != [(request.group, target)]:
        raise RefusedError(
            f"the plan in {migration.destination} is for other groups, or for another target name: use another folder"
        )
    if request.layout.text != head.layout:
        raise RefusedError(
            f"the plan in {migration.destination} was made with the layout {head.layout}: give the same --layout, or "
            "use another folder"
        )
    if states[0].stage in _NOTHING_TO_WRITE and not states[0].mark:
        return head.plan
    if request.rule_is_given and Rule.parse(head.rule) != request.rule:
        raise RefusedError(
            f"the plan in {migration.destination} was made with {head.rule}: for other options, use another folder"
        )
    return None


# `zkgroups migrate switch`: move one group live, while its consumers work.


_MOVES: Final = Table(
    "groups",
    key="group",
    columns=(
        Column("GROUP", "group"),
        Column("TO", "to"),
        Column("STATE", "state", styles={"moved": "green", "already there": "green"}),
        Column("MEMBERS", "members", right=True),
        Column("OFFSETS", "offsets", right=True),
    ),
)


@click.command(cls=Command)
@group_argument
@click.option("--to", type=click.Choice(["kafka", "zookeeper"]), required=True, help="Where to move the group.")
@click.option(
    "--wait", type=Duration(), default="90s", show_default=True, help="How long to wait for the members to leave."
)
@policy_options()
@execute_option
@click.pass_obj
def switch(options: Options, /, group: str, to: str, wait: float, execute: bool, **given: Any) -> None:
    """Move a running group to Kafka's own group coordination and offsets, or back.

    The members commit and leave, and joins wait. The command copies the offsets and compares both sides. Then the
    members join on the other side and continue at their offsets, within some seconds. Without --execute, the command
    only checks whether the group can be moved.

    Two kinds of members can move with their group: a Consumer of this library, and a client that comes through
    "zkgroups gateway". A Member of this library with the option leaves_on_move stays out until the group is back; the
    command names it. The group is not moved while other members are registered, like Scala consumers, while offsets
    of the other side are higher, or if members have not left after --wait. Then it stays where it is, and the exit code
    is 4. On the way back, all members on the brokers must be of these kinds, too.

    If the command was killed, the members wait. Run it again to finish the move, or with the other --to to undo it.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate switch invoices --to kafka
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate switch invoices --to kafka --execute
    """
    if execute:
        refuse_read_only(options)
    from zkgroups.migration.live_move import MoveStep, Side, move_live

    rule = rule_of(given)
    reached: list[MoveStep] = []

    def on_step(step: MoveStep) -> None:
        reached.append(step)
        say(options, f"{group}: {step}")

    with (
        connected(options, writes=execute) as registry,
        brokers(options, what_for="migrate switch", patient=True) as found,
    ):
        try:
            done = move_live(
                group, Side(to), found, registry, rule=rule, execute=execute, patience=wait, on_step=on_step
            )
        except RefusedError:
            raise
        except BaseException:
            if reached:
                other = Side.ZOOKEEPER if to == Side.KAFKA else Side.KAFKA
                say(
                    options,
                    f"{group}: the move may be unfinished, and then members wait: run the command again to finish it, "
                    f"or with --to {other} to undo it",
                )
            raise
    row = {
        "group": group,
        "to": to,
        "state": str(done.outcome),
        "members": done.members,
        "offsets": done.offsets,
    }
    Output(options).write(_MOVES, [row])
    if done.stay_out:
        names = ", ".join(done.stay_out)
        say(options, f"Members that leave, and do not continue on the brokers: {names}.")
    if not execute:
        say(options, "Nothing was changed: add --execute to apply.")


# `zkgroups migrate unmark`: remove the migration marks of groups.


@click.command(cls=Command)
@groups_argument
@click.option("--force", is_flag=True, help="Also remove a mark that cannot be read, or that belongs to a live move.")
@layout_options
@click.pass_obj
def unmark(options: Options, names: tuple[str, ...], force: bool, layout: Layout) -> None:
    """Remove the migration marks of groups, so that legacy members may join them again.

    `migrate rollback` does this itself. A group that `migrate switch` has moved is refused without --force, because
    gateways forward its clients to the brokers: use `migrate switch --to zookeeper`.

    The members continue from the offsets in ZooKeeper, and read again the messages that new consumers have read since
    the move.

    \b
    Example:
      zkgroups -z zk1:2181/kafka migrate unmark invoices
    """
    from zkgroups.zookeeper.admin import migration_marks as marks

    tally = Tally()
    with connected(options, writes=True, layout=layout) as registry:
        for name in names if layout.has_registrations and not force else ():
            from zkgroups.zookeeper.admin.migration_marks import read_route

            if (state := read_route(context_of(registry), name).state) is not None:
                back = f"zkgroups migrate switch {shlex.quote(name)} --to zookeeper"
                raise RefusedError(f"group {name!r} was moved live, its route is {state}: run `{back}`")
        context = context_of(registry)
        found = marks.read(context, names, layout)
        for group, error in marks.remove(context, names, plan=None, force=force, layout=layout).items():
            with tally.attempt():
                if error is not None:
                    raise error
                if group in found:
                    it = found[group]
                    say(
                        options,
                        f"removed the mark of group {group!r}: "
                        f"{it.reason if isinstance(it, UnreadableNode) else f'the group {it.shown}'}",
                    )
                elif group_exists(registry, group, layout):
                    say(options, f"group {group!r} has no migration mark: nothing was changed")
                else:
                    raise GroupNotFoundError(group)
    tally.finish()
