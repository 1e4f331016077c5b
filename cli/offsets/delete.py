"""`zkgroups offsets delete`: delete committed offsets, after a dry run."""

from __future__ import annotations

from pathlib import Path

import click

from zkgroups.core.offsets.reset import plan_delete

from ..shared.arguments import ChosenPartitions, group_argument, topics_option
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.options import Options
from .apply_changes import ApplyOptions, GroupChanges, apply_changes, apply_options
from .committed_offsets import existing_groups, read_offsets_by_group
from .reset import report_no_offsets, report_other_nodes
from .reset_request import all_topics_option, check_topics_given


@click.command(cls=Command)
@group_argument
@topics_option
@all_topics_option
@apply_options
@click.pass_obj
def delete(
    options: Options,
    /,
    group: str,
    topics: ChosenPartitions | None,
    all_topics: bool,
    execute: bool,
    force: bool,
    undo_file: Path | None,
) -> None:
    """Delete committed offsets of a group that has no registered instances.

    Consumers then start where their own auto.offset.reset says. The group itself is not deleted. Without --execute,
    the command only shows what it would delete.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets delete invoices --topic orders:2
      zkgroups -z zk1:2181/kafka offsets delete invoices --all-topics --undo-file invoices.json --execute
    """
    check_topics_given(topics, all_topics)
    tally = Tally()
    with connected(options, writes=execute) as registry:
        offsets = read_offsets_by_group(options, registry, [group], topics)
        groups = existing_groups(registry, offsets.values(), tally)
        for each in groups:
            report_other_nodes(options, each, tally)
        plans = [GroupChanges(each.group, plan_delete(each.offsets)) for each in groups]
        if not any(each.changes for each in plans):
            report_no_offsets(options, groups, topics, "delete")
        apply_changes(options, registry, plans, ApplyOptions(execute, force, undo_file), tally)
