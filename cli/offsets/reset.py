"""`zkgroups offsets reset`: move offsets to a target, with the options of Kafka's own tool, after a dry run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zkgroups import ForbiddenNode, Registry, TopicPartition
from zkgroups.core.offsets.reset import ShiftBy, Target, ToEach, ToOffset, plan_reset, refuse_forward
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import NoPermissionError, NotFoundError

from ..groups.lags import check_leaders
from ..shared.arguments import (
    ChosenPartitions,
    chosen_groups,
    groups_then_topic_argument,
    is_chosen,
    matching_option,
    topics_option,
)
from ..shared.command_classes import Command
from ..shared.connect import brokers, connected, reported_as
from ..shared.errors import Tally
from ..shared.input_files import source_name
from ..shared.messages import say
from ..shared.options import Options
from .apply_changes import ApplyOptions, GroupChanges, apply_changes, apply_options
from .committed_offsets import GroupOffsets, existing_groups, read_offsets_by_group
from .from_parquet import OffsetSelection
from .import_offsets import OffsetsByGroup, offsets_by_group, read_records, saved_offsets
from .reset_request import (
    FLAG_TARGETS,
    ResetRequest,
    all_topics_option,
    forward_option,
    option_text,
    reset_request,
    target_options,
    usage_error,
    with_time,
)

if TYPE_CHECKING:
    from zkgroups.kafka import Brokers


@click.command(cls=Command)
@groups_then_topic_argument
@matching_option
@topics_option
@all_topics_option
@target_options
@forward_option
@apply_options
@click.pass_obj
def reset(
    options: Options,
    /,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: ChosenPartitions | None,
    all_topics: bool,
    forward: bool,
    execute: bool,
    force: bool,
    undo_file: Path | None,
    **given: Any,
) -> None:
    """Move the offsets of groups, forward or back. The groups must have no registered instances.

    Choose topics with --topic or --all-topics, and one target: --to-..., --by-duration, --shift-by or --from-file.

    Without --execute, the command only shows what it would change. With it, offsets that have changed since they were
    shown are not written. With brokers (-b), the new offset is always within the log, and --topic also sets an
    offset for partitions that have none yet.

    --from-file reads all formats of `offsets export`, and lines of Kafka's own tool: [group,]topic,partition,offset.
    It needs no --topic.

    --to-snapshot takes the offsets from a snapshot. --from-audit takes them from an audit, and needs --to-datetime or
    --by-duration. Neither needs brokers. A partition without a recorded offset is left unchanged and reported.

    An audit reads all offsets from time to time, and records the changed ones. So the recorded offset may be older than
    the true offset at that time, or may have been deleted by then. A time after the last read of the audit is refused.
    An audit of another ZooKeeper cluster is refused, unless --cluster names that cluster.

    With --execute, --by-duration counts back from ZooKeeper's time, and in a dry run from the time of this machine.

    --to-datetime and --by-duration do not move an offset forward, because that would skip messages; --forward allows
    it. All other options move offsets both ways.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets reset invoices --topic orders --shift-by -10
      zkgroups -z zk1:2181/kafka offsets reset invoices --topic orders:0,1 --to-offset 50 --execute
      zkgroups -z zk1:2181/kafka -b kafka1:9092 offsets reset invoices --all-topics --to-earliest
      zkgroups -z zk1:2181/kafka -b kafka1:9092 offsets reset --groups 'inv.*' --all-topics --by-duration PT2H
      zkgroups -z zk1:2181/kafka offsets reset invoices --all-topics --to-snapshot /data/groups --at previous
      zkgroups -z zk1:2181/kafka offsets reset invoices --all-topics --by-duration PT2H --from-audit /data/audit
    """
    request = reset_request(given, OffsetSelection(names, matching, topics))
    request.check(all_topics=all_topics, forward=forward)
    request = with_time(options, request, execute=execute)
    tally = Tally()
    wanted = _wanted(options, request, tally, writes=execute)
    with ExitStack() as stack:
        kafka = _brokers(stack, options, request)
        registry = stack.enter_context(connected(options, writes=execute))
        chosen = _groups(registry, request, wanted, tally)
        offsets = read_offsets_by_group(options, registry, chosen, topics)
        groups = existing_groups(registry, offsets.values(), tally)
        for each in groups:
            report_other_nodes(options, each, tally)
        plans = _plans(groups, request, kafka, wanted, tally, forward=forward or request.may_go_forward)
        if not any(each.changes for each in plans):
            report_no_offsets(options, registry, groups, topics, "reset")
        apply_changes(options, registry, plans, ApplyOptions(execute, force, undo_file), tally)


def report_no_offsets(
    options: Options,
    registry: Registry,
    groups: list[GroupOffsets],
    topics: ChosenPartitions | None,
    verb: str,
) -> None:
    """Report that the groups have no offsets, as an error if topics were named. Say nothing about forbidden nodes."""
    if not groups or any(each.has_forbidden_nodes for each in groups):
        return
    if topics:
        names = [each.group for each in groups]
        everything = read_offsets_by_group(options, registry, names).values()
        known = sorted({at.topic for each in everything for at in each.offsets})
        which = f"group {names[0]!r} has" if len(names) == 1 else "the chosen groups have"
        found = f"; {'it has' if len(names) == 1 else 'they have'}: {', '.join(known)}" if known else ""
        raise NotFoundError(f"{which} no offsets of {', '.join(map(_place, sorted(topics.items())))}{found}")
    say(options, f"There are no offsets to {verb}.")


def _place(chosen: tuple[str, Collection[int] | None]) -> str:
    """Return a topic, or the chosen partitions of it, as text."""
    topic, numbers = chosen
    return f"topic {topic!r}" if numbers is None else f"{topic}:{','.join(map(str, sorted(numbers)))}"


def _brokers(stack: ExitStack, options: Options, request: ResetRequest) -> Brokers | None:
    if not request.needs_brokers and options.bootstrap_server is None:
        return None
    return stack.enter_context(brokers(options, what_for=option_text(request.option)))


def _groups(registry: Registry, request: ResetRequest, wanted: OffsetsByGroup | None, tally: Tally) -> list[str]:
    chosen = chosen_groups(registry, request.selection.names, request.selection.matching)
    if wanted is None:
        return chosen
    missing = [name for name in chosen if name not in wanted]
    if missing and request.is_from_file:
        raise usage_error(f"{source_name(request.value)} has no offsets of group {missing[0]!r}")
    for name in missing:
        if name not in request.selection.names:  # for names, `saved_offsets` has reported it
            tally.failed(
                NotFoundError(f"no offsets of group {name!r} are recorded: check the name, the time and the source")
            )
    return [name for name in chosen if name in wanted] if request.selection.names_groups else list(wanted)


# A target offset for each partition


def _wanted(options: Options, request: ResetRequest, tally: Tally, *, writes: bool) -> OffsetsByGroup | None:
    """Return the target offsets of a file, snapshot or audit; None if the target is a rule for all partitions."""
    if request.source is not None:
        return saved_offsets(options, request.source, request.selection, tally, writes=writes)
    return _read_file(request) if request.is_from_file else None


def _read_file(request: ResetRequest) -> OffsetsByGroup:
    """Read the offsets of a file. If the file names no groups, they belong to the group on the command line."""
    records = read_records(request.value)
    if all(record.group is not None for record in records):
        return offsets_by_group(records, None)
    names = request.selection.names
    if len(names) != 1 or request.selection.matching is not None:
        raise usage_error(f"{source_name(request.value)} names no groups: give exactly one GROUP")
    return offsets_by_group(records, names[0])


# The plan


def _plans(
    groups: Iterable[GroupOffsets],
    request: ResetRequest,
    kafka: Brokers | None,
    wanted: OffsetsByGroup | None,
    tally: Tally,
    *,
    forward: bool,
) -> list[GroupChanges]:
    """Plan the changes. Log ends are read after the offsets, so that no offset seems to be past the log end."""
    known = _known_partitions(kafka, request.selection.topics) if kafka is not None and wanted is None else []
    currents = {each.group: _current(each, request, known, wanted) for each in groups}
    partitions = list(dict.fromkeys(at for current in currents.values() for at in current))
    target = _target(request, kafka, partitions)
    ranges = None if kafka is None else kafka.ranges(partitions)
    if kafka is not None and ranges is not None:
        with reported_as("log ends are unknown", tally):
            check_leaders(kafka, ranges)
    plans = []
    for group, current in currents.items():
        changes = plan_reset(current, ranges, target if wanted is None else ToEach(wanted[group]))
        plans.append(GroupChanges(group, changes if forward else refuse_forward(changes, ranges)))
    return plans


def _current(
    group: GroupOffsets, request: ResetRequest, known: Iterable[TopicPartition], wanted: OffsetsByGroup | None
) -> dict[TopicPartition, CurrentOffset]:
    """Return the current offsets of all partitions to reset."""
    if wanted is None:
        return dict.fromkeys(known, None) | group.offsets
    current = {at: group.offsets.get(at) for at in wanted[group.group] if is_chosen(at, request.selection.topics)}
    # A file lists the partitions to reset. With a snapshot or audit, also report committed offsets that it lacks.
    return current if request.is_from_file else current | group.offsets


def _known_partitions(kafka: Brokers, topics: ChosenPartitions | None) -> list[TopicPartition]:
    """Return the partitions of the chosen topics, with and without committed offsets."""
    if topics is None:
        return []
    known = kafka.partitions(topics)
    return [
        TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers or known.get(topic, ())
    ]


def _target(request: ResetRequest, kafka: Brokers | None, partitions: Iterable[TopicPartition]) -> Target:
    match request.option:
        case "to_offset":
            return ToOffset(request.value)
        case "shift_by":
            return ShiftBy(request.value)
        case "to_datetime" | "by_duration" if kafka is not None:
            return ToEach(kafka.offsets_at(dict.fromkeys(partitions, request.value)))
    return FLAG_TARGETS.get(request.option, ToEach({}))


def report_other_nodes(options: Options, group: GroupOffsets, tally: Tally) -> None:
    """Report the nodes that are left unchanged. A forbidden node counts as an error."""
    for node in group.others:
        if isinstance(node, ForbiddenNode):
            tally.failed(NoPermissionError(node.path))
        else:
            say(options, f"{node.path} is left unchanged: {node.reason}")
