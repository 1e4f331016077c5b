"""`zkgroups offsets reset`: move offsets to a target, with the options of Kafka's own tool, after a dry run."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import click

from zkgroups import ForbiddenNode, Registry, TopicPartition
from zkgroups.core.offsets.reset import (
    ShiftBy,
    Target,
    ToCurrent,
    ToEach,
    ToEarliest,
    ToLatest,
    ToOffset,
    plan_reset,
    refuse_forward,
)
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import NoPermissionError, NotFoundError
from zkgroups.zookeeper.admin.transaction_guards import server_time_ms
from zkgroups.zookeeper.session.session import context_of

from ..groups.lags import check_leaders
from ..shared.arguments import (
    ChosenPartitions,
    chosen_groups,
    groups_then_topic_argument,
    is_chosen,
    matching_option,
    topics_option,
)
from ..shared.connect import brokers, connected, reported_as
from ..shared.errors import Tally
from ..shared.global_options import Command
from ..shared.messages import say
from ..shared.options import Options
from ..shared.parameter_types import Duration, FilePath, FolderUri, Time, combined, source_name, usage_error
from .apply_changes import ApplyOptions, GroupChanges, apply_changes, apply_options
from .files import OffsetsByGroup, offsets_by_group, read_records, saved_offsets
from .from_parquet import AuditSource, OffsetSelection, SnapshotSource, snapshot_choice_of, snapshot_choice_options
from .read import GroupOffsets, existing_groups, read_offsets_by_group

if TYPE_CHECKING:
    from zkgroups.kafka import Brokers


FLAG_TARGETS: Final[Mapping[str, Target]] = {
    "to_earliest": ToEarliest(),
    "to_latest": ToLatest(),
    "to_current": ToCurrent(),
}
"""The targets that are options without a value."""

_TIME_OPTIONS: Final = {"to_datetime", "by_duration"}
"""With these options, the user cannot know whether an offset goes forward or back."""

forward_option = click.option(
    "--forward",
    is_flag=True,
    help="With --to-datetime or --by-duration: also move offsets forward, past messages that may be unread.",
)
"""Passed to the command as `forward`; see `ResetRequest.may_go_forward`."""


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """The target of a reset: the one option that was given, its value, and the chosen partitions.

    The value of `--by-duration` is a duration in seconds, until `at_time_before` replaces it by a time.
    """

    option: str
    value: Any
    selection: OffsetSelection
    source: SnapshotSource | AuditSource | None = None

    @property
    def is_from_file(self) -> bool:
        """True if a file has an offset for each partition."""
        return self.option == "from_file"

    @property
    def needs_brokers(self) -> bool:
        """True if only brokers know the target offsets."""
        return self.source is None and (self.option in {"to_earliest", "to_latest"} or self.option in _TIME_OPTIONS)

    @property
    def may_go_forward(self) -> bool:
        """True if offsets may go forward without `--forward`."""
        return self.option not in _TIME_OPTIONS

    @property
    def has_duration(self) -> bool:
        """True if the value is a duration."""
        return self.option == "by_duration"

    def at_time_before(self, now_ms: int) -> Self:
        """Replace the duration by the time that is this long before `now_ms`."""
        start_ms = max(0, now_ms - round(self.value * 1000))
        source = replace(self.source, time_ms=start_ms) if isinstance(self.source, AuditSource) else self.source
        return replace(self, value=start_ms, source=source)

    def check(self, *, all_topics: bool, forward: bool) -> None:
        """Raise a usage error if the topics or groups are not named (a file names them), or `forward` has no effect."""
        if forward and self.may_go_forward:
            raise usage_error(
                "--forward is only for --to-datetime and --by-duration: "
                f"{option_text(self.option)} always moves both ways"
            )
        if not self.is_from_file:
            check_topics_given(self.selection.topics, all_topics)
            if not self.selection.names_groups:
                raise usage_error("no group is chosen: give GROUP..., or --groups REGEX")


all_topics_option = click.option("--all-topics", is_flag=True, help="All topics that have offsets in the group.")
"""Passed to the command as `all_topics`; see `check_topics_given`."""


def check_topics_given(topics: ChosenPartitions | None, all_topics: bool) -> None:
    """Require either `--topic` or `--all-topics`, so that a forgotten `--topic` does not change all topics."""
    if (topics is None) is not all_topics:
        raise usage_error("choose the topics: give either --topic (may be repeated) or --all-topics")


def option_text(name: str) -> str:
    """Return an option as it is typed."""
    return {"snapshot": "--to-snapshot"}.get(name, f"--{name.replace('_', '-')}")


# Options


target_options: Final = combined(
    click.option("--to-earliest", is_flag=True, help="To the log start. Needs brokers."),
    click.option("--to-latest", is_flag=True, help="To the log end. Needs brokers."),
    click.option("--to-current", is_flag=True, help="To the committed offset; if none is committed, to the log end."),
    click.option(
        "--to-offset",
        type=int,
        metavar="N",
        help="To this offset; if it is outside the log, to the nearest offset in the log.",
    ),
    click.option(
        "--to-datetime",
        type=Time(),
        help="To the first offset at or after a time such as 2026-01-31T12:00 or yesterday. It is UTC, unless it has a "
        "zone such as +01:00. Needs brokers, or --from-audit.",
    ),
    click.option(
        "--by-duration",
        type=Duration(needs_unit=True),
        help="To the first offset at or after the time this long ago: 90m, P7D, PT2H30M. Needs brokers, or "
        "--from-audit.",
    ),
    click.option("--shift-by", type=int, metavar="N", help="Forward by N messages; back if N is negative."),
    click.option(
        "--from-file", metavar="FILE", type=FilePath(path_type=Path), help="To the offsets in a file; see above."
    ),
    click.option(
        "--to-snapshot", "snapshot", metavar="DEST", type=FolderUri(), help="To the offsets in a snapshot; see above."
    ),
    click.option(
        "--from-audit",
        "audit",
        metavar="DEST",
        type=FolderUri(),
        help="With --to-datetime or --by-duration: to the last offset that an audit has recorded by then; see above.",
    ),
    snapshot_choice_options,
)
"""All options of the target; see `reset_request`."""


def reset_request(given: dict[str, Any], selection: OffsetSelection) -> ResetRequest:
    """Build the request from the values of `target_options`."""
    audit, choice = given.pop("audit"), snapshot_choice_of(given)
    option, value = _only_target(given)
    if option == "snapshot":
        if audit is None:
            return ResetRequest(option, value, selection, SnapshotSource(value, choice))
    elif audit is None:
        choice.check_unused("--to-snapshot DEST")
    elif option in _TIME_OPTIONS:
        choice.check_unused("--to-snapshot DEST", only_at=True)
        return ResetRequest(option, value, selection, AuditSource(audit, value, choice.cluster, choice.engine))
    if audit is not None:
        raise usage_error("--from-audit needs --to-datetime TIME or --by-duration P7D")
    return ResetRequest(option, value, selection)


def _only_target(given: Mapping[str, Any]) -> tuple[str, Any]:
    chosen = [(name, value) for name, value in given.items() if value is not None and value is not False]
    if len(chosen) != 1:
        raise usage_error(f"give exactly one target: {', '.join(map(option_text, given))}")
    return chosen[0]


# The time from which `offsets reset --by-duration` counts back.
#
# With --execute, it is the time of the server, because the clock of this machine may be wrong. A dry run uses the
# clock of this machine: a server reports its time only in the answer to a write, and a dry run writes nothing.


_NOTABLE_MS: Final = 60_000
"""A larger difference between the clocks is reported."""


def with_time(options: Options, request: ResetRequest, *, execute: bool) -> ResetRequest:
    """Return a request whose duration is replaced by a time. A request without a duration is not changed."""
    if not request.has_duration:
        return request
    here_ms = int(time.time() * 1000)
    there_ms = _server_time_ms(options, request.selection) if execute else None
    if there_ms is None:
        return request.at_time_before(here_ms)
    if abs(here_ms - there_ms) > _NOTABLE_MS:
        seconds = abs(here_ms - there_ms) // 1000
        say(options, f"The clock of this machine differs from ZooKeeper's by {seconds} s. ZooKeeper's time is used.")
    return request.at_time_before(there_ms)


def _server_time_ms(options: Options, selection: OffsetSelection) -> int | None:
    """Return the time of the server; None if no chosen group exists, or nodes may not be created in it."""
    with connected(options, writes=True) as registry:
        for name in chosen_groups(registry, selection.names, selection.matching):
            group = registry.group(name)
            if not group.exists():
                continue
            try:
                return server_time_ms(context_of(group), group.paths.root)
            except NoPermissionError as error:
                say(options, f"The clock of this machine is used, because ZooKeeper's time cannot be read: {error}.")
                return None
    return None


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
