"""`zkgroups offsets reset` and `delete`: offsets moved by Kafka's vocabulary, or forgotten; shown first, then done."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups import DeniedNode, Registry, TopicPartition
from zkgroups.core.exchange import read
from zkgroups.core.reset import (
    Found,
    ShiftBy,
    Target,
    ToCurrent,
    ToEach,
    ToEarliest,
    ToLatest,
    ToOffset,
    forgetting,
    parse_duration,
    parse_time,
    plan,
)
from zkgroups.exceptions import NoPermissionError, NotFoundError

from .arguments import (
    Partitions,
    chosen_groups,
    group_argument,
    is_chosen,
    matching_option,
    maybe_groups_argument,
    topics_option,
)
from .brokers import brokers
from .committed import Committed, leave_out_missing, read_committed
from .connect import connected
from .errors import Tally
from .exchange import Offsets, by_group
from .files import read_text, source_name
from .moves import Leave, Plan, carry_out, leave_options
from .options import Command, Options
from .talk import say

if TYPE_CHECKING:
    from zkgroups.kafka import Brokers

all_topics_option = click.option("--all-topics", is_flag=True, help="All topics that have offsets in the group.")
"""As `all_topics`; see `check_choice`."""


def check_choice(topics: Partitions | None, all_topics: bool) -> None:
    """What is changed must be said: nobody forgets an option and so changes everything."""
    if (topics is None) is not all_topics:
        raise _usage("say which topics: either --topic, as often as needed, or --all-topics")


def _usage(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context())


# Where to

_FLAGS: Final[Mapping[str, Target]] = {
    "to_earliest": ToEarliest(),
    "to_latest": ToLatest(),
    "to_current": ToCurrent(),
}


def _time(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    return None if text is None else parse_time(text)


def _ago(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    return None if text is None else int(time.time() * 1000) - parse_duration(text)


@dataclass(frozen=True, slots=True)
class _Request:
    """Which offsets are to go where: one of the options above with its value."""

    option: str
    value: Any
    names: tuple[str, ...]
    matching: re.Pattern[str] | None
    topics: Partitions | None

    @property
    def names_groups(self) -> bool:
        """Whether groups were said; a file may say them itself."""
        return bool(self.names) or self.matching is not None

    @property
    def is_from_file(self) -> bool:
        """Whether each partition has an offset of its own."""
        return self.option == "from_file"

    @property
    def needs_brokers(self) -> bool:
        """Whether only they know where that is."""
        return self.option in {"to_earliest", "to_latest", "to_datetime", "by_duration"}

    def check(self, *, all_topics: bool) -> None:
        """What is changed must be said; a file says it."""
        if not self.is_from_file:
            check_choice(self.topics, all_topics)
            if not self.names_groups:
                raise _usage("say which groups: GROUP..., or --groups REGEX")


def _chosen_target(given: Mapping[str, Any]) -> tuple[str, Any]:
    chosen = [(name, value) for name, value in given.items() if value is not None and value is not False]
    if len(chosen) != 1:
        raise _usage(f"say where to, in exactly one way: {', '.join(map(_spelled, given))}")
    return chosen[0]


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@topics_option
@all_topics_option
@click.option("--to-earliest", is_flag=True, help="To the start of the log. Needs brokers.")
@click.option("--to-latest", is_flag=True, help="To the end of the log. Needs brokers.")
@click.option("--to-current", is_flag=True, help="Where it is; the end of the log where nothing is committed.")
@click.option("--to-offset", type=int, metavar="N", help="To this offset, as far as the log has it.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    callback=_time,
    help="To the first offset at or after 2026-01-31T12:00:00.000, which is UTC unless +01:00 or so follows. "
    "Needs brokers.",
)
@click.option(
    "--by-duration", metavar="P7D", callback=_ago, help="To the first offset of that long ago. Needs brokers."
)
@click.option("--shift-by", type=int, metavar="N", help="So many messages further, or back if negative.")
@click.option(
    "--from-file", metavar="FILE", type=click.Path(path_type=Path), help="To the offsets in a file; see above."
)
@leave_options
@click.pass_obj
def reset(
    options: Options,
    /,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: Partitions | None,
    all_topics: bool,
    execute: bool,
    force: bool,
    undo_file: Path | None,
    **given: Any,
) -> None:
    """Set the offsets of groups, forward or back, while they have no instances.

    Only what would be done is shown, until --execute is given; and then only what is still as it was shown is written.
    With brokers (-b) an offset is kept within the log, and with --topic the partitions that have no offset yet get one.
    --from-file reads the lines topic,partition,offset, or group,topic,partition,offset, as Kafka's own tool does, and
    whatever `offsets export` has written; it needs no --topic.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets reset invoices --topic orders --shift-by -10
      zkgroups -z zk1:2181/kafka offsets reset invoices --topic orders:0,1 --to-offset 50 --execute
      zkgroups -z zk1:2181/kafka -b kafka1:9092 offsets reset invoices --all-topics --to-earliest
      zkgroups -z zk1:2181/kafka -b kafka1:9092 offsets reset --groups 'inv.*' --all-topics --by-duration PT2H
    """
    request = _Request(*_chosen_target(given), names, matching, topics)
    request.check(all_topics=all_topics)
    wanted = _of_file(request) if request.is_from_file else None
    tally = Tally()
    with ExitStack() as stack:
        found = _brokers(stack, options, request)
        registry = stack.enter_context(connected(options, writes=execute))
        groups = _groups(registry, request, wanted)
        committed = read_committed(options, registry, groups, topics)
        there = leave_out_missing(registry, committed.values(), tally)
        for each in there:
            tell_others(options, each, tally)
        plans = _plans(there, request, found, wanted)
        if plans and not any(each.moves for each in plans):
            _say_that_there_are_none(options, topics, "reset")
        carry_out(options, registry, plans, Leave(execute, force, undo_file), tally)


def _say_that_there_are_none(options: Options, topics: Partitions | None, verb: str) -> None:
    """Where somebody has named topics, they may have been mistyped."""
    if topics:
        raise NotFoundError(f"there are no offsets of {', '.join(sorted(topics))} to {verb}")
    say(options, f"There are no offsets to {verb}.")


def _brokers(stack: ExitStack, options: Options, request: _Request) -> Brokers | None:
    if not request.needs_brokers and options.bootstrap_server is None:
        return None
    return stack.enter_context(brokers(options, what_for=_spelled(request.option)))


def _groups(registry: Registry, request: _Request, wanted: Offsets | None) -> list[str]:
    chosen = chosen_groups(registry, request.names, request.matching)
    if wanted is None:
        return chosen
    if missing := [name for name in chosen if name not in wanted]:
        raise _usage(f"the file has no offsets of group {missing[0]!r}")
    return chosen if request.names_groups else list(wanted)


# From a file


def _of_file(request: _Request) -> Offsets:
    """A file without groups is about the one that is named."""
    records = read(read_text(request.value), source=source_name(request.value))
    if all(record.group is not None for record in records):
        return by_group(records, None)
    if len(request.names) != 1 or request.matching is not None:
        raise _usage("the file has no groups, so name the one that it is about")
    return by_group(records, request.names[0])


# The plan


def _plans(there: Iterable[Committed], request: _Request, found: Brokers | None, wanted: Offsets | None) -> list[Plan]:
    """The log's ends are read after the offsets, so that nothing seems to be beyond them."""
    known = _known_partitions(found, request.topics) if found is not None and wanted is None else []
    currents = {each.group: _current(each, request, known, wanted) for each in there}
    everything = list(dict.fromkeys(at for current in currents.values() for at in current))
    target = _target(request, found, everything)
    ranges = None if found is None else found.ranges(everything)
    return [
        Plan(group, plan(current, ranges, target if wanted is None else ToEach(wanted[group])))
        for group, current in currents.items()
    ]


def _current(
    committed: Committed, request: _Request, known: Iterable[TopicPartition], wanted: Offsets | None
) -> dict[TopicPartition, Found]:
    """What is there now, of all partitions that are to be reset: None where nothing is."""
    if wanted is None:
        return dict.fromkeys(known, None) | committed.offsets
    return {at: committed.offsets.get(at) for at in wanted[committed.group] if is_chosen(at, request.topics)}


def _known_partitions(found: Brokers, topics: Partitions | None) -> list[TopicPartition]:
    """The partitions of the chosen topics, whether anything is committed or not."""
    if topics is None:
        return []
    there = found.partitions(topics)
    return [
        TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers or there.get(topic, ())
    ]


def _target(request: _Request, found: Brokers | None, partitions: Iterable[TopicPartition]) -> Target:
    match request.option:
        case "to_offset":
            return ToOffset(request.value)
        case "shift_by":
            return ShiftBy(request.value)
        case "to_datetime" | "by_duration" if found is not None:
            return ToEach(found.offsets_at(dict.fromkeys(partitions, request.value)))
    return _FLAGS.get(request.option, ToEach({}))


def tell_others(options: Options, committed: Committed, tally: Tally) -> None:
    """Say what is there beside the offsets: it is left alone, and what is hidden is an error."""
    for node in committed.others:
        if isinstance(node, DeniedNode):
            tally.failed(NoPermissionError(node.path))
        else:
            say(options, f"{node.path} is left alone: {node.reason}")


# Delete


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
        plans = []
        for each in leave_out_missing(registry, committed.values(), tally):
            tell_others(options, each, tally)
            plans.append(Plan(each.group, forgetting(each.offsets)))
        if plans and not plans[0].moves:
            _say_that_there_are_none(options, topics, "delete")
        carry_out(options, registry, plans, Leave(execute, force, undo_file), tally)
