"""`zkgroups offsets export`: write committed offsets to stdout, in any format of `core/offsets/file_formats.py`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import click

from zkgroups import CommittedOffset, Registry, UnreadableNode
from zkgroups.core.layouts.layout import Layout
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.offsets.file_formats import FileFormat, OffsetRecord
from zkgroups.core.offsets.file_writer import format_offsets
from zkgroups.exceptions import GroupNotFoundError

from ..shared.arguments import ChosenPartitions, chosen_groups, matching_option, maybe_groups_argument, topics_option
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.input_files import write_lines
from ..shared.layout_options import layout_options
from ..shared.options import Options
from .committed_offsets import group_exists, node_error, place_of, read_offsets
from .from_parquet import OffsetSelection, SnapshotSource, snapshot_options, snapshot_source
from .reset_request import usage_error

FILE_FORMATS: Final = click.Choice([file_format.value for file_format in FileFormat])


def parse_file_format(_ctx: click.Context, _param: click.Parameter, name: str | None) -> FileFormat | None:
    """Convert the value of `--format`."""
    return None if name is None else FileFormat(name)


@click.command(cls=Command)
@maybe_groups_argument
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
