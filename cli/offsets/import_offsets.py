"""`zkgroups offsets import`: set offsets to those of a file or a snapshot, after a dry run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from zkgroups import ForbiddenNode, TopicPartition
from zkgroups.core.offsets.files import FileFormat, OffsetRecord, may_be_cut, parse_offsets
from zkgroups.core.offsets.reset import ToEach, plan_reset, refuse_backward
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import NoPermissionError

from ..shared.arguments import ChosenPartitions, checked_groups, complete_groups, matching_option, topics_option
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors import Tally
from ..shared.input_files import FilePath, read_text, source_name
from ..shared.messages import complain, say
from ..shared.options import Options
from .apply_changes import ApplyOptions, GroupChanges, apply_changes, apply_options
from .committed_offsets import read_offsets_by_group
from .export import FILE_FORMATS, parse_file_format
from .from_parquet import AuditSource, OffsetSelection, SnapshotSource, snapshot_options, snapshot_source
from .reset_request import usage_error

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
        wanted = _read_file(file or _STDIN, file_format, selection)
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


def _read_file(file: Path, file_format: FileFormat | None, selection: OffsetSelection) -> OffsetsByGroup:
    if selection.matching is not None or selection.topics is not None:
        raise usage_error("--groups and --topic need --from-snapshot: a file is imported as a whole")
    if len(selection.names) > 1:
        raise usage_error(
            "--group may be repeated only with --from-snapshot: a file without groups belongs to one group"
        )
    return offsets_by_group(read_records(file, file_format), next(iter(selection.names), None))


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
