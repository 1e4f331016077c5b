"""`zkgroups offsets`: the command group, with `get` and `set`. The other commands have modules of their own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

import click

from zkgroups import CommittedOffset, ForbiddenNode, MalformedNode, Registry, TopicPartition, UnreadableNode
from zkgroups.core.times import to_ms, utc
from zkgroups.core.znodes.names import parse_partition
from zkgroups.core.znodes.offset_codec import check_offset
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import (
    GroupNotFoundError,
    NoPermissionError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    RefusedError,
)

from ..shared.arguments import (
    ChosenPartitions,
    chosen_groups,
    group_argument,
    matching_option,
    maybe_groups_argument,
    topic_argument,
    topics_option,
)
from ..shared.command_classes import Group
from ..shared.complete_names import complete_partitions
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.exit_codes import ExitCode
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from .committed_offsets import OffsetNodePath, read_offsets
from .delete import delete
from .diff import diff
from .export import export
from .import_offsets import import_offsets
from .reset import reset

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
    """Read, set, reset, delete, export, import and compare committed offsets.

    A committed offset is the number of the next message to read. An offset is written only if no other client has
    changed it since this command read it. set and import do not let an offset go back unless --backward is given.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets get billing
    """


for command in (reset, delete, export, import_offsets, diff):
    offsets.add_command(command)


# get


@offsets.command()
@maybe_groups_argument
@matching_option
@topics_option
@click.pass_obj
def get(
    options: Options, names: tuple[str, ...], matching: re.Pattern[str] | None, topics: ChosenPartitions | None
) -> None:
    """Show the committed offsets of the named groups, or of all groups.

    A node without a valid offset is shown with an empty OFFSET and the reason in NOTE. If there are only such nodes,
    the exit code is 10. With -o jsonl, rows are printed while they are read.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets get
      zkgroups -z zk1:2181/kafka offsets get billing --topic orders:0,1 -o wide
      zkgroups -z zk1:2181/kafka offsets get --groups 'bill.*' -o jsonl
    """
    tally, counts = Tally(), _Counts()
    with connected(options) as registry:
        everything = not names and matching is None
        groups = registry.groups() if everything else chosen_groups(registry, names, matching)
        Output(options).write(_OFFSETS, _rows(options, registry, groups, topics, tally, counts))
        without = [name for name in names if name not in counts.groups]
        existing = [name for name in without if _exists(registry, name, tally)]
    if not counts.groups and existing == without:
        say(options, "There are no offsets.")
    tally.finish()
    if counts.malformed and not counts.valid:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


def _exists(registry: Registry, name: str, tally: Tally) -> bool:
    with tally.attempt():
        if registry.group(name).exists():
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
    options: Options,
    registry: Registry,
    groups: Collection[str],
    topics: ChosenPartitions | None,
    tally: Tally,
    counts: _Counts,
) -> Iterator[Row]:
    for found in read_offsets(options, registry, groups, topics):
        if isinstance(found, CommittedOffset):
            counts.groups.add(found.group)
            counts.valid += 1
            with tally.attempt():
                yield _row(found)
            continue
        counts.groups.add(OffsetNodePath.of(found).group)
        yield _malformed_row(found)
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


def _malformed_row(node: UnreadableNode) -> Row:
    path = OffsetNodePath.of(node)
    return {
        "group": path.group,
        "topic": path.topic,
        "partition": path.at.partition if path.at else None,
        "offset": None,
        "committed_ms": None,
        "version": node.version if isinstance(node, MalformedNode) else None,
        "zxid": None,
        "note": _problem(node) if isinstance(node, MalformedNode) else "no permission",
    }


def _problem(node: MalformedNode) -> str:
    path = OffsetNodePath.of(node)
    name = "" if path.at else f"{path.name}: "
    return f"{name}{node.reason}: {node.shown}" if node.data else f"{name}{node.reason}"


# set


def _partition(_ctx: click.Context, _param: click.Parameter, text: str) -> int:
    number = parse_partition(text)
    if number is None:
        raise click.BadParameter(f"{text!r} is not a partition number")
    return number


def _offset(_ctx: click.Context, _param: click.Parameter, number: int) -> int:
    return check_offset(number)


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
@topic_argument
@click.argument("partition", metavar="PARTITION", callback=_partition, shell_complete=complete_partitions)
@click.argument("offset", metavar="OFFSET", type=int, callback=_offset)
@click.option(
    "--expect", metavar="OFFSET|none", callback=_expected, help="Set it only if this is the committed offset."
)
@click.option("--backward", is_flag=True, help="Allow the offset to go back.")
@click.option(
    "--force",
    is_flag=True,
    help="Set it even if the group has registered instances. Their next commit may overwrite it.",
)
@click.pass_obj
def set_offset(
    options: Options,
    /,
    group: str,
    topic: str,
    partition: int,
    offset: int,
    expect: int | str | None,
    backward: bool,
    force: bool,
) -> None:
    """Set the committed offset of one partition, without a dry run. The group must have no registered instances.

    The offset may only go forward, unless --backward is given.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets set invoices orders 0 500
      zkgroups -z zk1:2181/kafka offsets set invoices orders 0 400 --backward --expect 500
    """
    at = TopicPartition(topic, partition)
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


def _is_expected(found: CurrentOffset, expect: int | str | None) -> bool:
    if expect is None:
        return True
    return found is None if expect == _NONE else isinstance(found, CommittedOffset) and found.offset == expect
