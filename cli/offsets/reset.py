"""`zkgroups offsets reset`: offsets moved by Kafka's vocabulary, or back to what is kept of them; shown, then done."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zkgroups import ForbiddenNode, Registry, TopicPartition
from zkgroups.core.offsets.file_formats import read
from zkgroups.core.offsets.reset import Found, ShiftBy, Target, ToEach, ToOffset, only_back, plan
from zkgroups.exceptions import NoPermissionError, NotFoundError

from ..shared.arguments import (
    Partitions,
    chosen_groups,
    is_chosen,
    matching_option,
    maybe_groups_argument,
    topics_option,
)
from ..shared.brokers import brokers
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors import Tally
from ..shared.input_files import read_text, source_name
from ..shared.messages import say
from ..shared.options import Options
from .changes import Leave, Plan, carry_out, leave_options
from .committed_offsets import Committed, leave_out_missing, read_committed
from .export_import import Offsets, by_group, offsets_kept
from .from_parquet import Selection
from .reset_request import FLAGS, Request, all_topics_option, forward_option, request_of, spelled, target_options, usage

if TYPE_CHECKING:
    from zkgroups.kafka import Brokers


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@topics_option
@all_topics_option
@target_options
@forward_option
@leave_options
@click.pass_obj
def reset(
    options: Options,
    /,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: Partitions | None,
    all_topics: bool,
    forward: bool,
    execute: bool,
    force: bool,
    undo_file: Path | None,
    **given: Any,
) -> None:
    """Set the offsets of groups, forward or back, while they have no instances.

    Only what would be done is shown, until --execute is given; and then only what is still as it was shown is written.
    With brokers (-b) an offset is kept within the log, and with --topic the partitions that have no offset yet get one.
    --from-file reads the lines topic,partition,offset, or group,topic,partition,offset, as Kafka's own tool does, and
    whatever `offsets export` has written; it needs no --topic. --to-snapshot goes to where a snapshot found the group,
    and a time with --from-audit to the last commit until then that an audit has found: neither needs brokers, and an
    offset that is not in there stays as it is, which is said. Of several commits between two looks an audit has the
    last, so an offset may be older than it was at that time, and one that was deleted by then comes back. A time after
    its last look is refused.

    --to-datetime and --by-duration leave an offset as it is if it would go forward, because that would skip messages;
    --forward allows it. All other options move offsets both ways.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets reset invoices --topic orders --shift-by -10
      zkgroups -z zk1:2181/kafka offsets reset invoices --topic orders:0,1 --to-offset 50 --execute
      zkgroups -z zk1:2181/kafka -b kafka1:9092 offsets reset invoices --all-topics --to-earliest
      zkgroups -z zk1:2181/kafka -b kafka1:9092 offsets reset --groups 'inv.*' --all-topics --by-duration PT2H
      zkgroups -z zk1:2181/kafka offsets reset invoices --all-topics --to-snapshot /data/groups --at previous
      zkgroups -z zk1:2181/kafka offsets reset invoices --all-topics --by-duration PT2H --from-audit /data/audit
    """
    request = request_of(given, Selection(names, matching, topics))
    request.check(all_topics=all_topics, forward=forward)
    tally = Tally()
    wanted = _wanted(options, request, tally, writes=execute)
    with ExitStack() as stack:
        found = _brokers(stack, options, request)
        registry = stack.enter_context(connected(options, writes=execute))
        groups = _groups(registry, request, wanted, tally)
        committed = read_committed(options, registry, groups, topics)
        there = leave_out_missing(registry, committed.values(), tally)
        for each in there:
            tell_others(options, each, tally)
        plans = _plans(there, request, found, wanted, forward=forward or request.may_go_forward)
        if not any(each.moves for each in plans):
            say_if_there_are_none(options, there, topics, "reset")
        carry_out(options, registry, plans, Leave(execute, force, undo_file), tally)


def say_if_there_are_none(options: Options, there: list[Committed], topics: Partitions | None, verb: str) -> None:
    """Say that these groups have no offsets, unless some are hidden. It is an error for a topic that was named."""
    if not there or any(each.hides for each in there):
        return
    if topics:
        raise NotFoundError(f"there are no offsets of {', '.join(sorted(topics))} to {verb}")
    say(options, f"There are no offsets to {verb}.")


def _brokers(stack: ExitStack, options: Options, request: Request) -> Brokers | None:
    if not request.needs_brokers and options.bootstrap_server is None:
        return None
    return stack.enter_context(brokers(options, what_for=spelled(request.option)))


def _groups(registry: Registry, request: Request, wanted: Offsets | None, tally: Tally) -> list[str]:
    chosen = chosen_groups(registry, request.selection.names, request.selection.matching)
    if wanted is None:
        return chosen
    missing = [name for name in chosen if name not in wanted]
    if missing and request.is_from_file:
        raise usage(f"the file has no offsets of group {missing[0]!r}")
    for name in missing:
        if name not in request.selection.names:  # of those it has been said already
            tally.failed(NotFoundError(f"of group {name!r} no offsets are kept"))
    return [name for name in chosen if name in wanted] if request.selection.says_groups else list(wanted)


# An offset for each partition


def _wanted(options: Options, request: Request, tally: Tally, *, writes: bool) -> Offsets | None:
    """Where the offsets are known that are to be gone to; None where they follow from a rule."""
    if request.kept is not None:
        return offsets_kept(options, request.kept, request.selection, tally, writes=writes)
    return _of_file(request) if request.is_from_file else None


def _of_file(request: Request) -> Offsets:
    """A file without groups is about the one that is named."""
    records = read(read_text(request.value), source=source_name(request.value))
    if all(record.group is not None for record in records):
        return by_group(records, None)
    names = request.selection.names
    if len(names) != 1 or request.selection.matching is not None:
        raise usage("the file has no groups, so name the one that it is about")
    return by_group(records, names[0])


# The plan


def _plans(
    there: Iterable[Committed], request: Request, found: Brokers | None, wanted: Offsets | None, *, forward: bool
) -> list[Plan]:
    """The log's ends are read after the offsets, so that nothing seems to be beyond them."""
    known = _known_partitions(found, request.selection.topics) if found is not None and wanted is None else []
    currents = {each.group: _current(each, request, known, wanted) for each in there}
    everything = list(dict.fromkeys(at for current in currents.values() for at in current))
    target = _target(request, found, everything)
    ranges = None if found is None else found.ranges(everything)
    plans = []
    for group, current in currents.items():
        moves = plan(current, ranges, target if wanted is None else ToEach(wanted[group]))
        plans.append(Plan(group, moves if forward else only_back(moves, ranges)))
    return plans


def _current(
    committed: Committed, request: Request, known: Iterable[TopicPartition], wanted: Offsets | None
) -> dict[TopicPartition, Found]:
    """What is there now, of all partitions that are to be reset: None where nothing is."""
    if wanted is None:
        return dict.fromkeys(known, None) | committed.offsets
    current = {
        at: committed.offsets.get(at) for at in wanted[committed.group] if is_chosen(at, request.selection.topics)
    }
    # A file says which partitions it is about; of all that are chosen, some may be newer than what is kept.
    return current if request.is_from_file else current | committed.offsets


def _known_partitions(found: Brokers, topics: Partitions | None) -> list[TopicPartition]:
    """The partitions of the chosen topics, whether anything is committed or not."""
    if topics is None:
        return []
    there = found.partitions(topics)
    return [
        TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers or there.get(topic, ())
    ]


def _target(request: Request, found: Brokers | None, partitions: Iterable[TopicPartition]) -> Target:
    match request.option:
        case "to_offset":
            return ToOffset(request.value)
        case "shift_by":
            return ShiftBy(request.value)
        case "to_datetime" | "by_duration" if found is not None:
            return ToEach(found.offsets_at(dict.fromkeys(partitions, request.value)))
    return FLAGS.get(request.option, ToEach({}))


def tell_others(options: Options, committed: Committed, tally: Tally) -> None:
    """Say what is there beside the offsets: it is left alone, and what is hidden is an error."""
    for node in committed.others:
        if isinstance(node, ForbiddenNode):
            tally.failed(NoPermissionError(node.path))
        else:
            say(options, f"{node.path} is left alone: {node.reason}")
