"""`zkgroups offsets set`, `delete` and `adopt`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click

from zkgroups import CommittedOffset, ForbiddenNode, Registry, TopicPartition, UnreadableNode
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.layouts.legacy import KAFKA_1_1_0
from zkgroups.core.offsets.reset import plan_delete
from zkgroups.core.znodes.codecs import check_offset
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import (
    GroupNotFoundError,
    MalformedNodeError,
    NoPermissionError,
    NotFoundError,
    OffsetConflictError,
    OffsetOutOfRangeError,
    OffsetWouldGoBackError,
    RefusedError,
    UnknownPartitionError,
)

from ..groups.lags import check_leaders
from ..shared.arguments import (
    NUMBERS,
    ChosenPartitions,
    chosen_groups,
    complete_partitions,
    group_argument,
    groups_then_topic_argument,
    matching_option,
    maybe_partitions_arguments,
    named_partitions,
    topic_argument,
    topics_option,
)
from ..shared.command_classes import Command
from ..shared.connect import brokers, connected, reported_as
from ..shared.errors import Tally
from ..shared.messages import say
from ..shared.options import Options
from .apply_changes import ApplyOptions, GroupChanges, apply_changes, apply_options
from .committed_offsets import GroupOffsets, existing_groups, node_error, read_offsets_by_group
from .import_offsets import plan_each
from .marked_groups import marks_of, refuse_marked
from .reset import report_no_offsets, report_other_nodes
from .reset_request import all_topics_option, check_topics_given, usage_error

# `zkgroups offsets set`: set one offset, after checks against members, migrations and Kafka's topics.


def _partition_and_offset(
    ctx: click.Context, param: click.Parameter, words: tuple[str, ...]
) -> tuple[TopicPartition, int] | None:
    """Parse PARTITION OFFSET; only OFFSET if TOPIC names the partition."""
    if ctx.resilient_parsing:
        return None
    *numbers, offset = words
    place = named_partitions(ctx, [NUMBERS.convert(each, param, ctx) for each in numbers])
    if len(numbers) > 1 or place.numbers is None or len(place.numbers) != 1:
        raise click.UsageError(
            "give one partition and its offset: TOPIC PARTITION OFFSET or TOPIC/PARTITION OFFSET", ctx
        )
    return TopicPartition(place.topic, place.numbers[0]), check_offset(click.INT(offset, param, ctx))


_NONE: Final = "none"
"""The value of `--expect` for a partition without a committed offset."""


def _expected(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | str | None:
    if text is None or text == _NONE:
        return text
    if not re.fullmatch("[0-9]{1,19}", text):
        raise click.BadParameter(f"{text!r} is neither an offset nor {_NONE!r}")
    return check_offset(int(text))


@click.command("set", cls=Command)
@group_argument
@topic_argument()
@click.argument(
    "words",
    metavar="PARTITION OFFSET",
    nargs=-1,
    required=True,
    callback=_partition_and_offset,
    shell_complete=complete_partitions,
)
@click.option(
    "--expect", metavar="OFFSET|none", callback=_expected, help="Set it only if this is the committed offset."
)
@click.option("--backward", is_flag=True, help="Allow the offset to go back.")
@click.option(
    "--force",
    is_flag=True,
    help="Set it even if the group has registered instances, which may overwrite it; if the group was migrated; if "
    "Kafka does not have the partition; or if the offset is outside the log.",
)
@click.pass_obj
def set_offset(
    options: Options,
    /,
    group: str,
    words: tuple[TopicPartition, int],
    expect: int | str | None,
    backward: bool,
    force: bool,
) -> None:
    """Set the committed offset of one partition, without a dry run. The group must have no registered instances.

    The offset may only go forward, unless --backward is given. The topic must exist and have this partition. With
    brokers (-b), the offset must be within the log.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets set invoices orders 0 500
      zkgroups -z zk1:2181/kafka offsets set invoices orders/0 400 --backward --expect 500
    """
    at, offset = words
    with connected(options, writes=True, creates=True) as registry:
        found = _fetch(registry, group, at)
        if not _is_expected(found, expect):
            raise OffsetConflictError(at, found)
        if isinstance(found, CommittedOffset) and offset < found.offset and not backward:
            raise OffsetWouldGoBackError(group, at, found.offset, offset)
        if isinstance(found, UnreadableNode) and not backward:
            raise RefusedError(
                f"{found.path} has an invalid offset ({found.reason}); the new one might go back: --backward allows it"
            )
        if not force:
            refuse_marked(group, marks_of(registry, [group]))
            _check_partition(registry, at)
            _check_log(options, at, offset)
        for conflict in registry.group(group).offsets.replace({at: offset}, expected={at: found}, force=force).values():
            raise conflict
    before = "it had none" if found is None else f"it was {found.shown}"
    say(options, f"{group}: set the offset of {at} to {offset}; {before}")


def _fetch(registry: Registry, group: str, at: TopicPartition) -> CurrentOffset:
    found = registry.group(group).offsets.fetch_many([at])[at]
    if isinstance(found, ForbiddenNode):
        raise NoPermissionError(found.path)
    if found is None and not registry.group(group).exists():
        raise GroupNotFoundError(group)
    return found


def _check_partition(registry: Registry, at: TopicPartition) -> None:
    """Refuse a partition that Kafka does not have. Without any topic in ZooKeeper, the partitions are unknown."""
    try:
        topic = registry.topic(at.topic)
        known = topic is not None or bool(registry.topics())
    except (NoPermissionError, MalformedNodeError):
        return
    if known and (topic is None or at.partition not in topic.partitions):
        missing = f"topic {at.topic!r}" if topic is None else f"partition {at}"
        raise NotFoundError(f"Kafka has no {missing}: check the name and the number, or use --force")


def _check_log(options: Options, at: TopicPartition, offset: int) -> None:
    """With brokers, refuse a partition that they do not have, and an offset outside the log. If none answers, warn."""
    if options.bootstrap_server is None:
        return
    known: Mapping[str, Collection[int]] | None = None
    log: OffsetRange | None = None
    tally = Tally(partial(say, options))
    with reported_as(f"warning: the log of {at} was not checked", tally), brokers(options) as found:
        known, log = found.partitions([at.topic]), found.ranges([at])[at]
        check_leaders(found, {at: log})
    if known is not None and at.partition not in known.get(at.topic, ()):
        raise UnknownPartitionError(at)
    if log is not None and offset not in log:
        raise OffsetOutOfRangeError(at, offset, log.start, log.end)


def _is_expected(found: CurrentOffset, expect: int | str | None) -> bool:
    if expect is None:
        return True
    return found is None if expect == _NONE else isinstance(found, CommittedOffset) and found.offset == expect


# `zkgroups offsets delete`: delete committed offsets, after a dry run.


@click.command(cls=Command)
@group_argument
@maybe_partitions_arguments
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
            report_no_offsets(options, registry, groups, topics, "delete")
        apply_changes(options, registry, plans, ApplyOptions(execute, force, undo_file), tally)


# `zkgroups offsets adopt`: copy the offsets that Kafka 1.1.0 has committed to where everything else reads them.


@click.command(cls=Command)
@groups_then_topic_argument
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
