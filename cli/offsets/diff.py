"""`zkgroups offsets diff`: compare the offsets of two groups, of a group and a file, or of two files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from zkgroups import CommittedOffset, ForbiddenNode, TopicPartition, UnreadableNode
from zkgroups.core.layouts.layout import Layout
from zkgroups.core.offsets.file_reader import parse_offsets
from zkgroups.core.znodes.names import check_group
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import GroupNotFoundError

from ..shared.arguments import ChosenPartitions, is_chosen, topics_option
from ..shared.command_classes import Command
from ..shared.complete_names import complete_groups
from ..shared.connect import connected
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FilePath, read_text, source_name
from ..shared.layout_options import layout_options
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from .committed_offsets import group_exists, node_error, place_of, read_offsets_by_group

_DIFFERENCES: Final = Table(
    "differences",
    key="partition",
    columns=(
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
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
        raise click.UsageError(f"{file} has {len(names)} groups: choose one with --group", click.get_current_context())
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
        return {name: {at: _value(found) for at, found in each.offsets.items()} for name, each in by_group.items()}


def _value(found: CurrentOffset) -> int | UnreadableNode | None:
    return found.offset if isinstance(found, CommittedOffset) else found


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
