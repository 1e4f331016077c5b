"""`zkgroups migrate group`: plan and apply one group."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from zkgroups.core.layouts.layout import Layout
from zkgroups.core.migration.group_status import MigrationStage
from zkgroups.core.migration.offset_decision import Rule
from zkgroups.core.migration.target_names import Renaming
from zkgroups.core.znodes.names import check_group
from zkgroups.exceptions import RefusedError

from ..shared.arguments import execute_option, group_argument
from ..shared.command_classes import Command
from ..shared.connect import refuse_read_only
from ..shared.input_files import FolderUri
from ..shared.layout_options import layout_options
from ..shared.messages import say
from ..shared.options import Options
from ..shared.spark_options import writing_options
from .apply_verify_rollback import MigrationSession, apply_plan, migration_session
from .both_sides import writers_stopped_option
from .engines import engine_option, steps_shown
from .options import rule_is_given, rule_of, rule_options

_NOTHING_TO_WRITE: Final = (MigrationStage.BLOCKED, MigrationStage.NOTHING)


@click.command(cls=Command)
@group_argument
@click.argument("destination", metavar="DEST", type=FolderUri())
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

    DEST is a folder for the plan and its reports. Without --execute, the command only shows what it would do. If the
    folder has a plan, the command continues with it. A plan with nothing to write is replaced by a new one. So if the
    group was blocked, stop its members or choose another --on-out-of-range, and run the command again. `migrate
    verify` and `migrate rollback` take the same folder.

    With --layout, the command moves a group of another system. Stop its jobs, and add --writers-stopped.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate group invoices moved
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate group invoices moved --execute
      zkgroups -z zk1:2181 -b kafka1:9092 migrate group spout moved --layout storm:/kafkastorm
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

    head = first_row(migration.engine, migration.engine.folder(migration.destination))
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
    if request.rule_is_given and head.rule != str(request.rule):
        raise RefusedError(
            f"the plan in {migration.destination} was made with {head.rule}: for other options, use another folder"
        )
    return None
