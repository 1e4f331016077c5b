"""`zkgroups offsets`: the command group, with `get`. The other commands have modules of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import click

from zkgroups import CommittedOffset, ForbiddenNode, MalformedNode, Registry, UnreadableNode
from zkgroups.core.layouts.layout import Layout, OffsetPlace
from zkgroups.core.times import to_ms, utc
from zkgroups.exceptions import (
    GroupNotFoundError,
    NoPermissionError,
)

from ..shared.arguments import (
    ChosenPartitions,
    chosen_groups,
    groups_then_topic_argument,
    matching_option,
    topics_option,
)
from ..shared.command_classes import Group
from ..shared.connect import connected
from ..shared.engine_options import layout_options
from ..shared.errors import Tally
from ..shared.exit_codes import ExitCode
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from .committed_offsets import group_exists, place_of, read_offsets
from .export import diff, export
from .import_offsets import import_offsets
from .reset import reset
from .set_offset import adopt, delete, set_offset

_OFFSETS: Final = Table(
    "offsets",
    key="partition",
    columns=(
        Column("GROUP", "group"),
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
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


for command in (set_offset, reset, delete, export, import_offsets, diff, adopt):
    offsets.add_command(command)


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
                yield _row(found)
            continue
        place = place_of(found, layout)
        counts.groups.add(place.group)
        yield _malformed_row(found, place)
        if isinstance(found, ForbiddenNode):
            tally.failed(NoPermissionError(found.path))
        else:
            counts.malformed += 1


def _row(found: CommittedOffset) -> Row:
    return {
        "group": found.group,
        "topic": found.at.topic,
        "partition": found.at.partition,
        "offset": found.offset,
        "committed_ms": to_ms(found.committed_at),
        "version": found.version,
        "zxid": found.zxid,
        "note": None,
    }


def _malformed_row(node: UnreadableNode, place: OffsetPlace) -> Row:
    return {
        "group": place.group,
        "topic": place.topic,
        "partition": place.at.partition if place.at else None,
        "offset": None,
        "committed_ms": None,
        "version": node.version if isinstance(node, MalformedNode) else None,
        "zxid": None,
        "note": _problem(node, place) if isinstance(node, MalformedNode) else "no permission",
    }


def _problem(node: MalformedNode, place: OffsetPlace) -> str:
    name = "" if place.at else f"{place.name}: "
    return f"{name}{node.reason}: {node.shown}" if node.data else f"{name}{node.reason}"
