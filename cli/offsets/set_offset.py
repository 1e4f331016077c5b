"""`zkgroups offsets set`: set one offset, after checks against members, migrations and Kafka's topics."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

import click

from zkgroups import CommittedOffset, ForbiddenNode, Registry, TopicPartition, UnreadableNode
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.znodes.names import parse_partition
from zkgroups.core.znodes.offset_codec import check_offset
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

from ..groups.read_lags import check_leaders
from ..shared.arguments import group_argument, topic_argument
from ..shared.brokers import brokers, reported_as
from ..shared.command_classes import Command
from ..shared.complete_names import complete_partitions
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.messages import say
from ..shared.options import Options
from .marked_groups import marks_of, refuse_marked


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


@click.command("set", cls=Command)
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
    help="Set it even if the group has registered instances, which may overwrite it; if the group was migrated; if "
    "Kafka does not have the partition; or if the offset is outside the log.",
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

    The offset may only go forward, unless --backward is given. The topic must exist and have this partition. With
    brokers (-b), the offset must be within the log.

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
