"""`zkgroups migrate group`: one group, planned and moved at once."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import click

from zkgroups.core.migration import Renaming, Rule
from zkgroups.core.paths import check_group
from zkgroups.exceptions import RefusedError

from .arguments import execute_option, group_argument
from .connect import refuse_read_only
from .migration_carry import Work, at_work, carry_out
from .migration_options import rule_of, rule_options
from .options import Command, Options
from .spark import spark_options, steps_shown
from .talk import say


@click.command(cls=Command)
@group_argument
@click.argument("destination", metavar="DEST")
@click.option("--as", "target", metavar="NAME", help="What the group is to be called on the brokers.")
@rule_options
@execute_option
@spark_options
@click.pass_obj
def group(options: Options, /, group: str, destination: str, target: str | None, execute: bool, **given: Any) -> None:
    """Move one group: `migrate plan` and `migrate apply` in one, with the same guards.

    DEST is a folder for the plan and for what became of it. Only what would be done is shown, until --execute is given:
    then the plan that is in the folder is gone on with. `migrate verify` and `migrate rollback` take the same folder.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate group invoices moved
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate group invoices moved --execute
    """
    if execute:
        refuse_read_only(options)
    rule = rule_of(given)
    renaming = Renaming({group: check_group(target)} if target else {})
    with at_work(options, destination, given, what_for="migrate group") as work:
        _plan(work, group, rule, renaming)
        carry_out(work, execute=execute)


def _plan(work: Work, group: str, rule: Rule, renaming: Renaming) -> None:
    """Make the plan, where there is none yet."""
    from zkgroups.spark.migration.folder import Folder
    from zkgroups.spark.migration.planning import STEPS, groups, plan

    if Folder(work.session, work.destination).has_plan():
        found = {each.group: each.target for each in groups(work.session, work.destination)}
        if found.keys() != {group} or found[group] != renaming.names.get(group, found[group]):
            raise RefusedError(
                f"the plan in {work.destination} is of other groups, or moves it to another name:"
                " a new one needs a folder of its own"
            )
        say(
            work.options,
            f"Going on with the plan in {work.destination}: what becomes of each offset was decided there.",
        )
        return
    assert work.zookeeper is not None
    source = replace(work.zookeeper, groups=re.escape(group))
    with steps_shown(work.options, work.session, STEPS) as told:
        plan(work.session, work.destination, source, work.brokers, rule=rule, renaming=renaming, told=told)
