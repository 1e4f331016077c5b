"""`zkgroups migrate group`: one group, planned and moved at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from zkgroups.core.migration.comparison import Stage
from zkgroups.core.migration.rules import Renaming, Rule
from zkgroups.core.znodes.names import check_group
from zkgroups.exceptions import RefusedError

from ..shared.arguments import execute_option, group_argument
from ..shared.command_classes import Command
from ..shared.connect import refuse_read_only
from ..shared.input_files import FolderUri
from ..shared.messages import say
from ..shared.options import Options
from ..shared.spark_options import steps_shown, writing_options
from .apply_verify_rollback import Work, at_work, carry_out
from .options import rule_is_said, rule_of, rule_options

_NOTHING_TO_WRITE: Final = (Stage.BLOCKED, Stage.NOTHING)


@click.command(cls=Command)
@group_argument
@click.argument("destination", metavar="DEST", type=FolderUri())
@click.option("--as", "target", metavar="NAME", help="What the group is to be called on the brokers.")
@rule_options
@execute_option
@writing_options
@click.pass_obj
def group(options: Options, /, group: str, destination: str, target: str | None, execute: bool, **given: Any) -> None:
    """Move one group: `migrate plan` and `migrate apply` in one, with the same guards.

    DEST is a folder for the plan and for what became of it. Only what would be done is shown, until --execute is given:
    then the plan that is in the folder is gone on with, as it was decided. One by which nothing could be moved is
    recreated: when its members have stopped, or with another --on-out-of-range, run it again. `migrate verify` and
    `migrate rollback` take the same folder.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate group invoices moved
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate group invoices moved --execute
    """
    if execute:
        refuse_read_only(options)
    asked = _Asked(group, Renaming({group: check_group(target)} if target else {}), rule_of(given), rule_is_said())
    with at_work(options, destination, given, what_for="migrate group") as work:
        _plan(work, asked)
        carry_out(work, execute=execute)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be moved, and how."""

    group: str
    renaming: Renaming
    rule: Rule
    rule_is_said: bool


def _plan(work: Work, asked: _Asked) -> None:
    """Make the plan, unless there is one to go on with."""
    from zkgroups.spark.migration.plan_folder import PlanFolder
    from zkgroups.spark.migration.planning import STEPS, plan

    useless = None
    if PlanFolder(work.session, work.destination).has_plan():
        useless = _useless_plan(work, asked)
        if useless is None:
            say(work.options, f"Going on with the plan in {work.destination}, as it was decided when it was made.")
            return
        say(work.options, f"By the plan in {work.destination} nothing can be moved, nor was: it is recreated.")
    assert work.zookeeper is not None
    source = replace(work.zookeeper, groups=re.escape(asked.group))
    with steps_shown(work.options, work.session, STEPS) as told:
        plan(
            work.session,
            work.destination,
            source,
            work.brokers,
            rule=asked.rule,
            renaming=asked.renaming,
            instead_of=useless,
            on_progress=told,
        )


def _useless_plan(work: Work, asked: _Asked) -> str | None:
    """The name of the plan that is there, if it has nothing to write and nothing was written by it.

    Any other is gone on with: it knows what was there before.
    """
    from zkgroups.spark.migration.plan_reader import plan_head
    from zkgroups.spark.migration.status import status

    head = plan_head(work.session, work.destination)
    states = status(work.session, work.destination, work.brokers, work.zookeeper)
    target = asked.renaming.names.get(asked.group, head.target)
    if [(each.group, each.target) for each in states] != [(asked.group, target)]:
        raise RefusedError(
            f"the plan in {work.destination} is of other groups, or moves it to another name:"
            " a new one needs a folder of its own"
        )
    if states[0].stage in _NOTHING_TO_WRITE and not states[0].mark:
        return head.plan
    if asked.rule_is_said and head.rule != str(asked.rule):
        raise RefusedError(
            f"the plan in {work.destination} was made with {head.rule}: with other options it needs a folder of its own"
        )
    return None
