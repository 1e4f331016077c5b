"""`zkgroups offsets`: the command group, with `get`, `set`, `delete` and `adopt`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import click

from zkgroups import CommittedOffset, ForbiddenNode, MalformedNode, Registry, TopicPartition, UnreadableNode
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.layouts.layout import Layout, OffsetPlace
from zkgroups.core.layouts.legacy import KAFKA_1_1_0
from zkgroups.core.offsets.reset import plan_delete
from zkgroups.core.times import to_ms, utc
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
from ..shared.connect import brokers, connected, reported_as
from ..shared.engine_options import layout_options
from ..shared.errors import Tally
from ..shared.global_options import Group
from ..shared.messages import say
from ..shared.options import ExitCode, Options
from ..shared.output import GROUP_AT, Column, Output, Row, Table
from ..shared.parameter_types import usage_error
from .apply_changes import ApplyOptions, GroupChanges, apply_changes, apply_options
from .files import diff, export, import_offsets, plan_each
from .read import (
    GroupOffsets,
    existing_groups,
    group_exists,
    marks_of,
    node_error,
    place_of,
    read_offsets,
    read_offsets_by_group,
    refuse_marked,
)
from .reset import all_topics_option, check_topics_given, report_no_offsets, report_other_nodes, reset

_OFFSETS: Final = Table(
    "offsets",
    key="partition",
    columns=(
        *GROUP_AT,
        Column("OFFSET", "offset", right=True),
        Column("COMMITTED", "committed_ms", show=utc, wide=True),
        Column("VERSION", "version", wide=True, right=True),
        Column("ZXID", "zxid", wide=True, show=hex),
        Column("NOTE", "note", styles={"no permission": "red"}),
    ),
)


@click.group(cls=Group)
def offsets() -> None:
    """Read, set, reset, delete, export, import, compare and adopt committed offsets.

    A committed offset is the number of the next message to read. An offset is written only if no other client has
    changed it since this command read it. set and import do not let an offset go back unless --backward is given.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets get billing
    """


# get


@offsets.command()
@groups_then_topic_argument
@matching_option
@topics_option
@layout_options
@click.pass_obj
def get(
    options: Options,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: ChosenPartitions | None,
    layout: Layout,
) -> None:
    """Show the committed offsets of the named groups, or of all groups.

    A node without a valid offset is shown with an empty OFFSET and the reason in NOTE. If there are only such nodes,
    the exit code is 10. With -o jsonl, rows are printed while they are read.

    With --layout, the command shows the offsets that another system keeps in ZooKeeper. OFFSET is always the next
    message to read, whatever that system stores.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets get
      zkgroups -z zk1:2181/kafka offsets get billing orders 0-3 -o wide
      zkgroups -z zk1:2181/kafka offsets get --groups 'bill.*' -o jsonl
      zkgroups -z zk1:2181 offsets get --layout storm:/kafkastorm
    """
    tally, counts = Tally(), _Counts()
    with connected(options, layout=layout) as registry:
        everything = not names and matching is None
        groups = registry.groups(layout) if everything else chosen_groups(registry, names, matching, layout)
        found = read_offsets(options, registry, groups, topics, layout)
        Output(options).write(_OFFSETS, _rows(found, layout, tally, counts))
        without = [name for name in names if name not in counts.groups]
        existing = [name for name in without if _exists(registry, name, layout, tally)]
    if not counts.groups and existing == without:
        say(options, "There are no offsets.")
    tally.finish()
    if counts.malformed and not counts.valid:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


def _exists(registry: Registry, name: str, layout: Layout, tally: Tally) -> bool:
    with tally.attempt():
        if group_exists(registry, name, layout):
            return True
        raise GroupNotFoundError(name)
    return False


@dataclass(slots=True)
class _Counts:
    """The groups seen so far, and the numbers of valid and malformed offsets."""

    groups: set[str] = field(default_factory=set)
    valid: int = 0
    malformed: int = 0


def _rows(
    offsets: Iterable[CommittedOffset | UnreadableNode], layout: Layout, tally: Tally, counts: _Counts
) -> Iterator[Row]:
    for found in offsets:
        if isinstance(found, CommittedOffset):
            counts.groups.add(found.group)
            counts.valid += 1
            with tally.attempt():
                yield {
                    "group": found.group,
                    "topic": found.at.topic,
                    "partition": found.at.partition,
                    "offset": found.offset,
                    "committed_ms": to_ms(found.committed_at),
                    "version": found.version,
                    "zxid": found.zxid,
                    "note": None,
                }
            continue
        place = place_of(found, layout)
        counts.groups.add(place.group)
        yield {
            "group": place.group,
            "topic": place.topic,
            "partition": place.at.partition if place.at else None,
            "offset": None,
            "committed_ms": None,
            "version": found.version if isinstance(found, MalformedNode) else None,
            "zxid": None,
            "note": _problem(found, place) if isinstance(found, MalformedNode) else "no permission",
        }
        if isinstance(found, ForbiddenNode):
            tally.failed(NoPermissionError(found.path))
        else:
            counts.malformed += 1


def _problem(node: MalformedNode, place: OffsetPlace) -> str:
    name = "" if place.at else f"{place.name}: "
    return f"{name}{node.reason}: {node.shown}" if node.data else f"{name}{node.reason}"


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


@offsets.command("set")
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


@offsets.command()
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


@offsets.command()
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


for command in (reset, export, import_offsets, diff):
    offsets.add_command(command)
