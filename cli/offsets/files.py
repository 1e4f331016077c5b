"""`zkgroups offsets export`, `import` and `diff`: offsets in files and snapshots."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from zkgroups import CommittedOffset, ForbiddenNode, Registry, TopicPartition, UnreadableNode
from zkgroups.core.layouts.layout import Layout
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.offsets.files import FileFormat, OffsetRecord, format_offsets, may_be_cut, parse_offsets
from zkgroups.core.offsets.reset import ToEach, plan_reset, refuse_backward
from zkgroups.core.znodes.topic_partition import check_group
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import GroupNotFoundError, NoPermissionError

from ..shared.arguments import (
    ChosenPartitions,
    checked_groups,
    chosen_groups,
    complete_groups,
    groups_then_topic_argument,
    is_chosen,
    matching_option,
    topics_option,
)
from ..shared.connect import connected
from ..shared.engine_options import layout_options
from ..shared.errors import Tally
from ..shared.global_options import Command
from ..shared.messages import complain, say
from ..shared.options import ExitCode, Options
from ..shared.output import AT, Column, Output, Row, Table
from ..shared.parameter_types import FilePath, read_text, source_name, usage_error, write_lines
from .apply_changes import ApplyOptions, GroupChanges, apply_changes, apply_options
from .from_parquet import AuditSource, OffsetSelection, SnapshotSource, snapshot_options, snapshot_source
from .read import group_exists, node_error, place_of, read_offsets, read_offsets_by_group

FILE_FORMATS: Final = click.Choice([file_format.value for file_format in FileFormat])


def parse_file_format(_ctx: click.Context, _param: click.Parameter, name: str | None) -> FileFormat | None:
    """Convert the value of `--format`."""
    return None if name is None else FileFormat(name)


@click.command(cls=Command)
@groups_then_topic_argument
@matching_option
@topics_option
@click.option(
    "--format",
    "file_format",
    type=FILE_FORMATS,
    callback=parse_file_format,
    default=FileFormat.JSON.value,
    show_default=True,
    help="The file format; see above.",
)
@snapshot_options("Export the offsets of a snapshot instead of ZooKeeper's.")
@layout_options
@click.pass_obj
def export(
    options: Options,
    /,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: ChosenPartitions | None,
    file_format: FileFormat,
    layout: Layout,
    **given: Any,
) -> None:
    """Write the offsets of groups to stdout, for `zkgroups offsets import` and other tools.

    \b
    The formats:
      json, jsonl, csv  the fields group, topic, partition and offset
      kafka-csv         for kafka-consumer-groups.sh --reset-offsets --from-file
      path              lines of Kafka's ExportZkOffsets: /consumers/billing/offsets/orders/0:5
      spark             for the option startingOffsets of Spark's Kafka source; one group only

    In csv, a name that begins with =, +, - or @ gets a leading apostrophe, so that spreadsheets do not take it for a
    formula; the import removes it.

    Nodes without a valid offset are left out and reported; the exit code is then 9. With --from-snapshot, the offsets
    come from a snapshot, and ZooKeeper is not contacted. The latest snapshot is used unless --at chooses another.

    With --layout, the command exports the offsets of another system in ZooKeeper. The file always has the next message
    to read.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets export billing
      zkgroups -z zk1:2181/kafka offsets export --groups '.*' --format kafka-csv
      zkgroups -z zk1:2181/kafka offsets export billing --format spark
      zkgroups offsets export billing --from-snapshot /data/groups --at 2026-01-31T12:00 --format spark
    """
    selection, snapshot = OffsetSelection(names, matching, topics), snapshot_source(given)
    if not selection.names_groups:
        raise usage_error("no group is chosen: give GROUP..., or --groups REGEX")
    tally = Tally()
    if snapshot is not None:
        if layout != LEGACY:
            raise usage_error("--layout cannot be combined with --from-snapshot, whose offsets are already read")
        _export_snapshot(options, snapshot, selection, file_format, tally)
    else:
        with connected(options, layout=layout) as registry:
            groups = chosen_groups(registry, names, matching, layout)
            _check_one_group(file_format, groups)
            found = read_offsets(options, registry, groups, topics, layout)
            write_lines(format_offsets(_records(registry, groups, found, layout, tally), file_format))
    tally.finish()


def _export_snapshot(
    options: Options, snapshot: SnapshotSource, selection: OffsetSelection, file_format: FileFormat, tally: Tally
) -> None:
    with snapshot.records(options, selection, tally, restores=False) as records:
        if file_format is FileFormat.SPARK:
            records = iter(found := list(records))
            _check_one_group(file_format, {*selection.names, *(str(each.group) for each in found)})
        write_lines(format_offsets(_count_first(records, tally), file_format))


def _count_first(records: Iterable[OffsetRecord], tally: Tally) -> Iterator[OffsetRecord]:
    """Count one success at the first record: if an error follows, the exit code is 9."""
    counted = False
    for each in records:
        if not counted:
            with tally.attempt():
                counted = True
        yield each


def _check_one_group(file_format: FileFormat, groups: Collection[str]) -> None:
    if file_format is FileFormat.SPARK and len(groups) != 1:
        raise usage_error(f"the format spark holds the offsets of one group, and {len(groups)} are chosen")


def _records(
    registry: Registry,
    groups: Collection[str],
    offsets: Iterable[CommittedOffset | UnreadableNode],
    layout: Layout,
    tally: Tally,
) -> Iterator[OffsetRecord]:
    """Yield the valid offsets while they are read. Report unreadable nodes and missing groups as errors."""
    empty = dict.fromkeys(groups)
    for found in offsets:
        if isinstance(found, CommittedOffset):
            empty.pop(found.group, None)
            with tally.attempt():
                yield OffsetRecord.of(found)
        else:
            empty.pop(place_of(found, layout).group, None)
            tally.failed(node_error(found, layout))
    for name in empty:
        with tally.attempt():
            if not group_exists(registry, name, layout):
                raise GroupNotFoundError(name)


# `zkgroups offsets diff`: compare the offsets of two groups, of a group and a file, or of two files.


_DIFFERENCES: Final = Table(
    "differences",
    key="partition",
    columns=(
        *AT,
        Column("A", "a", right=True),
        Column("B", "b", right=True),
        Column("DELTA", "delta", right=True, show="{:+d}".format),
        Column("NOTE", "note"),
    ),
)


@dataclass(frozen=True, slots=True)
class _Source:
    """One side of a comparison: a group in ZooKeeper, or a file."""

    group: str | None = None
    file: Path | None = None


def _source(ctx: click.Context, param: click.Parameter, text: str) -> _Source:
    """Parse `@FILE` as a file, and anything else as a group. A group whose name begins with @ is given as `@@...`."""
    if text.startswith("@") and not text.startswith("@@"):
        return _Source(file=FilePath(path_type=Path).convert(text[1:], param, ctx))
    return _Source(group=check_group(text.removeprefix("@")))


def _group(_ctx: click.Context, _param: click.Parameter, name: str | None) -> str | None:
    return None if name is None else check_group(name)


_Side = Mapping[TopicPartition, int | UnreadableNode | None]
"""The offsets of one side."""


@click.command(cls=Command)
@click.argument("a", metavar="A", callback=_source, shell_complete=complete_groups)
@click.argument("b", metavar="B", callback=_source, shell_complete=complete_groups)
@topics_option
@click.option(
    "--group",
    metavar="NAME",
    callback=_group,
    shell_complete=complete_groups,
    help="The group to compare, if a file has the offsets of several groups.",
)
@layout_options
@click.pass_obj
def diff(
    options: Options,
    /,
    a: _Source,
    b: _Source,
    topics: ChosenPartitions | None,
    group: str | None,
    layout: Layout,
) -> None:
    """Show the differences between the offsets of A and B.

    A and B are names of groups, or @FILE for a file written by `offsets export`. DELTA is the offset of B minus the
    offset of A. The exit code is 10 if there are differences. With --layout, the groups are those of another system.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets diff billing invoices
      zkgroups -z zk1:2181/kafka offsets export billing > billing.json
      zkgroups -z zk1:2181/kafka offsets diff billing @billing.json --topic orders
    """
    files = [_file_side(source.file, group) for source in (a, b) if source.file is not None]
    groups = [source.group for source in (a, b) if source.group is not None]
    found = _group_sides(options, groups, topics, layout) if groups else {}
    left, right = (files.pop(0) if source.group is None else found[source.group] for source in (a, b))
    rows = list(_differences(left, right, topics))
    Output(options).write(_DIFFERENCES, rows)
    if rows:
        raise click.exceptions.Exit(ExitCode.FINDINGS)
    say(options, "The offsets are equal.")


def _file_side(file: Path, group: str | None) -> _Side:
    records = parse_offsets(read_text(file), source=source_name(file))
    names = {record.group for record in records}
    if len(names) > 1 and group is None:
        raise usage_error(f"{file} has {len(names)} groups: choose one with --group")
    if group is not None and names - {None} and group not in names:
        raise GroupNotFoundError(group)
    return {each.at: each.offset for each in records if group is None or each.group in (group, None)}


def _group_sides(
    options: Options, groups: Collection[str], topics: ChosenPartitions | None, layout: Layout
) -> dict[str, _Side]:
    """Read the offsets of the groups. A node that hides partitions is an error, because they cannot be compared."""
    with connected(options, layout=layout) as registry:
        by_group = read_offsets_by_group(options, registry, groups, topics, layout)
        for name, each in by_group.items():
            for node in each.others:
                if isinstance(node, ForbiddenNode) or not place_of(node, layout).is_misnamed:
                    raise node_error(node, layout)
            if not each.offsets and not group_exists(registry, name, layout):
                raise GroupNotFoundError(name)
        return {
            name: {
                at: (found.offset if isinstance(found, CommittedOffset) else found)
                for at, found in each.offsets.items()
            }
            for name, each in by_group.items()
        }


def _differences(left: _Side, right: _Side, topics: ChosenPartitions | None) -> Iterator[Row]:
    for at in sorted(at for at in left.keys() | right.keys() if is_chosen(at, topics)):
        a, b = left.get(at), right.get(at)
        if a == b and not isinstance(a, UnreadableNode):
            continue
        yield {
            "topic": at.topic,
            "partition": at.partition,
            "a": a if isinstance(a, int) else None,
            "b": b if isinstance(b, int) else None,
            "delta": b - a if isinstance(a, int) and isinstance(b, int) else None,
            "note": "; ".join(_notes(a, b)) or None,
        }


def _notes(a: int | UnreadableNode | None, b: int | UnreadableNode | None) -> Iterator[str]:
    for name, value, other in (("A", a, "B"), ("B", b, "A")):
        if value is None:
            yield f"only in {other}"
        if isinstance(value, UnreadableNode):
            yield f"{name} has an invalid offset: {value.reason}"


OffsetsByGroup: TypeAlias = dict[str, dict[TopicPartition, int | None]]
"""Target offsets, for each group; None for a partition that has none in the source."""

_STDIN: Final = Path("-")


@click.command("import", cls=Command)
@click.argument("file", metavar="[FILE]", type=FilePath(path_type=Path), required=False)
@click.option(
    "--format",
    "file_format",
    type=FILE_FORMATS,
    callback=parse_file_format,
    help="The file format, as in `offsets export`; detected by default.",
)
@click.option(
    "--group",
    "names",
    metavar="NAME",
    multiple=True,
    callback=checked_groups,
    shell_complete=complete_groups,
    help="With FILE: the group to use if the file names none. With --from-snapshot: only this group; may be repeated.",
)
@matching_option
@topics_option
@snapshot_options("Import the offsets of a snapshot instead of a file.")
@click.option("--backward", is_flag=True, help="Allow offsets to go back.")
@apply_options
@click.pass_obj
def import_offsets(
    options: Options,
    /,
    file: Path | None,
    file_format: FileFormat | None,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: ChosenPartitions | None,
    backward: bool,
    execute: bool,
    force: bool,
    undo_file: Path | None,
    **given: Any,
) -> None:
    """Set the offsets of groups to those in FILE, or stdin. The groups must have no registered instances.

    Without --execute, the command only shows what it would change. With it, offsets that have changed since they were
    shown are not written. An offset that would go back is left unchanged, unless --backward is given. Missing
    groups are created. A file with an invalid line is not imported at all. If the last line of a CSV file or of a file
    of paths does not end with a newline, a warning asks you to check that line.

    --from-snapshot restores the offsets of a snapshot: of all groups, or of those chosen by --group, --groups and
    --topic. A partition without a valid offset in the snapshot is left unchanged and reported; the exit code is then 9.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets import -
      zkgroups -z zk1:2181/kafka offsets import - --format kafka-csv --group invoices --backward --execute
      zkgroups -z zk1:2181/kafka offsets import --from-snapshot /data/groups --at 2026-01-31T12:00 --group invoices
    """
    selection, snapshot, tally = OffsetSelection(names, matching, topics), snapshot_source(given), Tally()
    if snapshot is None:
        source = source_name(file or _STDIN)
        if selection.matching is not None or selection.topics is not None:
            raise usage_error("--groups and --topic need --from-snapshot: a file is imported as a whole")
        if len(selection.names) > 1:
            raise usage_error(
                "--group may be repeated only with --from-snapshot: a file without groups belongs to one group"
            )
        wanted = offsets_by_group(read_records((file or _STDIN), file_format), next(iter(selection.names), None))
    elif file is not None or file_format is not None:
        raise usage_error("--from-snapshot DEST cannot be combined with FILE or --format")
    else:
        source = "the snapshot"
        wanted = saved_offsets(options, snapshot, selection, tally, writes=execute)
    with connected(options, writes=execute, creates=True) as registry:
        current = read_offsets_by_group(options, registry, wanted)
        for each in current.values():
            for node in each.others:
                if isinstance(node, ForbiddenNode):
                    tally.failed(NoPermissionError(node.path))
        plans = [plan_each(name, current[name].offsets, offsets, backward=backward) for name, offsets in wanted.items()]
        if not wanted:
            say(options, f"{source} has no offsets.")
        apply_changes(options, registry, plans, ApplyOptions(execute, force, undo_file), tally)


def read_records(file: Path, file_format: FileFormat | None = None) -> list[OffsetRecord]:
    """Read the offsets in a file. Warn if the last line may be incomplete: a file written by hand may also end so."""
    text, source = read_text(file), source_name(file)
    records = parse_offsets(text, file_format, source=source)
    if records and may_be_cut(text, file_format):
        last = records[-1]
        complain(
            f"{source} ends without a newline, as if it was cut: check its last line, with offset {last.offset} of "
            f"{last.at}, or end the line to avoid this warning"
        )
    return records


def saved_offsets(
    options: Options, source: SnapshotSource | AuditSource, selection: OffsetSelection, tally: Tally, *, writes: bool
) -> OffsetsByGroup:
    """Read the chosen offsets of a snapshot or an audit."""
    # Spark takes seconds to start, so report a failure to connect first.
    with connected(options, writes=writes, creates=True):
        pass
    with source.records(options, selection, tally) as records:
        return offsets_by_group(records, None)


def offsets_by_group(records: Iterable[OffsetRecord], group: str | None) -> OffsetsByGroup:
    """Arrange records by group; `group` is the group of a file that names none."""
    by_group: OffsetsByGroup = {}
    for each in records:
        if each.group is None and group is None:
            raise usage_error("the file names no group: give --group NAME")
        if each.group is not None and group is not None:
            raise usage_error("the file names its groups: leave out --group")
        by_group.setdefault(each.group or str(group), {})[each.at] = each.offset
    return by_group


def plan_each(
    group: str,
    current: Mapping[TopicPartition, CurrentOffset],
    wanted: Mapping[TopicPartition, int | None],
    *,
    backward: bool,
) -> GroupChanges:
    """Plan to set the offsets of one group. Leave out partitions without an offset in both the source and ZooKeeper."""
    found = {at: current.get(at) for at, offset in wanted.items() if offset is not None or at in current}
    changes = plan_reset(found, None, ToEach(wanted))
    return GroupChanges(group, changes if backward else refuse_backward(changes))
