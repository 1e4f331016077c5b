"""`zkgroups offsets adopt`: copy the offsets that Kafka 1.1.0 has committed to where everything else reads them."""

from __future__ import annotations

import re
from pathlib import Path

import click

from zkgroups import CommittedOffset, ForbiddenNode
from zkgroups.core.layouts.kafka_1_1_0 import KAFKA_1_1_0
from zkgroups.exceptions import GroupNotFoundError

from ..shared.arguments import ChosenPartitions, chosen_groups, matching_option, maybe_groups_argument, topics_option
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.messages import say
from ..shared.options import Options
from .apply_changes import ApplyOptions, GroupChanges, apply_changes, apply_options
from .committed_offsets import GroupOffsets, node_error, read_offsets_by_group
from .import_offsets import plan_each
from .reset_request import usage_error


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@topics_option
@click.option("--backward", is_flag=True, help="Allow offsets to go back.")
@apply_options
@click.pass_obj
def adopt(
    options: Options,
    /,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: ChosenPartitions | None,
    backward: bool,
    execute: bool,
    force: bool,
    undo_file: Path | None,
) -> None:
    """Copy the offsets that brokers of Kafka 1.1.0 have committed to where all other clients read them.

    For clients that commit with the oldest version of the request, brokers of this release use the directory
    /consumers/GROUP/offset instead of offsets. No other release reads it. So after an update of the brokers, such
    clients start from old offsets. `zkgroups doctor` finds these groups (singular-offset).

    Without --execute, the command only shows what it would change. An offset that would go back is left unchanged,
    unless --backward is given. The groups must have no registered instances. The directory of Kafka 1.1.0 is not
    changed, because brokers of that release may still use it.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets adopt invoices
      zkgroups -z zk1:2181/kafka offsets adopt --groups '.*' --undo-file undo.json --execute
    """
    if not names and matching is None:
        raise usage_error("no group is chosen: give GROUP..., or --groups REGEX")
    tally = Tally()
    with connected(options, writes=execute) as registry:
        chosen = chosen_groups(registry, names, matching, KAFKA_1_1_0)
        found = read_offsets_by_group(options, registry, chosen, topics, KAFKA_1_1_0)
        current = read_offsets_by_group(options, registry, chosen, topics)
        plans = []
        for name, each in found.items():
            if not each.offsets and not each.others and not registry.group(name).exists():
                tally.failed(GroupNotFoundError(name))
                continue
            plans.append(_plan(each, current[name], tally, backward=backward))
        if not any(plan.changes for plan in plans):
            say(options, "There are no offsets of Kafka 1.1.0.")
        apply_changes(options, registry, plans, ApplyOptions(execute, force, undo_file), tally)


def _plan(found: GroupOffsets, current: GroupOffsets, tally: Tally, *, backward: bool) -> GroupChanges:
    """Plan the changes of one group, and report the nodes that cannot be read."""
    hidden = (node for node in current.others if isinstance(node, ForbiddenNode))
    for node in (*found.others, *found.offsets.values(), *hidden):
        if node is not None and not isinstance(node, CommittedOffset):
            tally.failed(node_error(node))
    wanted = {at: each.offset for at, each in found.offsets.items() if isinstance(each, CommittedOffset)}
    return plan_each(found.group, current.offsets, wanted, backward=backward)
