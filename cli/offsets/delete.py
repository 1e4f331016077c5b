"""`zkgroups offsets delete`: offsets forgotten; shown first, then done."""

from __future__ import annotations

from pathlib import Path

import click

from zkgroups.core.offsets.reset import forgetting

from ..shared.arguments import Partitions, group_argument, topics_option
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors import Tally
from ..shared.options import Options
from .changes import Leave, Plan, carry_out, leave_options
from .committed_offsets import leave_out_missing, read_committed
from .reset import say_if_there_are_none, tell_others
from .reset_request import all_topics_option, check_choice


@click.command(cls=Command)
@group_argument
@topics_option
@all_topics_option
@leave_options
@click.pass_obj
def delete(
    options: Options,
    /,
    group: str,
    topics: Partitions | None,
    all_topics: bool,
    execute: bool,
    force: bool,
    undo_file: Path | None,
) -> None:
    """Forget offsets of a group, so that consumers begin where their own policy says, while it has no instances.

    Only what would be done is shown, until --execute is given. The group itself stays.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets delete invoices --topic orders:2
      zkgroups -z zk1:2181/kafka offsets delete invoices --all-topics --undo-file invoices.json
    """
    check_choice(topics, all_topics)
    tally = Tally()
    with connected(options, writes=execute) as registry:
        committed = read_committed(options, registry, [group], topics)
        there = leave_out_missing(registry, committed.values(), tally)
        for each in there:
            tell_others(options, each, tally)
        plans = [Plan(each.group, forgetting(each.offsets)) for each in there]
        if not any(each.moves for each in plans):
            say_if_there_are_none(options, there, topics, "delete")
        carry_out(options, registry, plans, Leave(execute, force, undo_file), tally)
