"""Parameters of several commands: groups, topics and partitions. Names are checked before any I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.znodes.names import check_group, check_instance, check_topic, parse_partition

from .complete_names import complete_groups, complete_instances, complete_partitions, complete_topics

if TYPE_CHECKING:
    from zkgroups import Registry, TopicPartition
    from zkgroups.core.layouts.layout import Layout

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_LARGEST_SESSION = 2**64
_LARGEST_OF_JAVA = 2**63

ChosenPartitions: TypeAlias = dict[str, frozenset[int] | None]
"""The chosen partitions of each topic; None means all partitions of the topic."""


def _checked_group(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    return check_group(name)


def checked_groups(_ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """The callback of a parameter with names of groups: check them and remove duplicates."""
    return tuple(dict.fromkeys(map(check_group, names)))


def _checked_instance(_ctx: click.Context, _param: click.Parameter, name: str | None) -> str | None:
    return None if name is None else check_instance(name)


def _checked_topic(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    return check_topic(name)


def _checked_partitions(_ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(_partition, names)))


def _session(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    """Parse a hexadecimal session id. Ids from 2**63 are negative, as Java longs."""
    if text is None:
        return None
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 < number < _LARGEST_SESSION:
        raise click.BadParameter(f"{text!r} is not a session id like 0x10000a1b2c3d4e5")
    return number if number < _LARGEST_OF_JAVA else number - _LARGEST_SESSION


def _expression(_ctx: click.Context, _param: click.Parameter, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression: {error}") from error


def _chosen_topics(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> ChosenPartitions | None:
    """Parse values like `orders` and `orders:0,1`. A topic named `orders:0,1` is written `orders:0,1:`."""
    if not given:
        return None
    chosen: ChosenPartitions = {}
    for text in given:
        topic, colon, numbers = text.rpartition(":")
        if colon and re.fullmatch("[0-9, -]+", numbers) and not re.fullmatch("[0-9]+(,[0-9]+)*", numbers):
            raise click.BadParameter(
                f"{text!r} must be like {topic}:0,1,2; if this is the name of a topic, write {text}:"
            )
        if not colon or not re.fullmatch("[0-9]+(,[0-9]+)*|", numbers):
            topic, numbers = text, ""
        before = chosen.get(check_topic(topic), frozenset())
        more = frozenset(map(_partition, numbers.split(","))) if numbers else None
        chosen[topic] = None if before is None or more is None else before | more
    return chosen


def _partition(text: str) -> int:
    number = parse_partition(text)
    if number is None:
        raise click.BadParameter(f"{text!r} is not the number of a partition")
    return number


group_argument = click.argument("group", metavar="GROUP", callback=_checked_group, shell_complete=complete_groups)
"""One group, as `group`."""

groups_argument = click.argument(
    "names", metavar="GROUP...", nargs=-1, required=True, callback=checked_groups, shell_complete=complete_groups
)
"""One or more groups, as `names`."""

maybe_groups_argument = click.argument(
    "names", metavar="[GROUP...]", nargs=-1, callback=checked_groups, shell_complete=complete_groups
)
"""Any number of groups, as `names`; see `chosen_groups`."""

matching_option = click.option(
    "--groups",
    "matching",
    metavar="REGEX",
    callback=_expression,
    help="Choose the groups whose whole name matches, in addition to any named ones.",
)
"""Groups whose name matches an expression, as `matching`; see `chosen_groups`."""

topic_argument = click.argument("topic", metavar="TOPIC", callback=_checked_topic, shell_complete=complete_topics)
"""One topic, as `topic`."""

instance_argument = click.argument(
    "instance", metavar="INSTANCE", callback=_checked_instance, shell_complete=complete_instances
)
"""The id of an instance of the group, as `instance`."""

partitions_argument = click.argument(
    "partitions",
    metavar="PARTITION...",
    nargs=-1,
    required=True,
    callback=_checked_partitions,
    shell_complete=complete_partitions,
)
"""Partition numbers, as `partitions`."""

topics_option = click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:0,1,...]",
    multiple=True,
    callback=_chosen_topics,
    shell_complete=complete_topics,
    help="Only this topic, or these partitions of it. May be repeated.",
)
"""The chosen topics and partitions, as `topics`; None means all. See `is_chosen`."""

execute_option = click.option(
    "--execute",
    is_flag=True,
    help="Make the changes; without it, only show them.",
)
"""The flag of commands that are dry runs by default, as `execute`."""


def instance_option(*names: str, help: str, required: bool = False) -> Callable[[Decorated], Decorated]:
    """Return an option for an instance id, which is checked and completed."""
    return click.option(
        *names,
        metavar="ID",
        required=required,
        callback=_checked_instance,
        shell_complete=complete_instances,
        help=help,
    )


def session_option(*names: str, help: str) -> Callable[[Decorated], Decorated]:
    """Return an option for the id of a ZooKeeper session, as `session`."""
    return click.option(*names, "session", metavar="HEX", callback=_session, help=help)


def chosen_groups(
    registry: Registry, names: Collection[str], matching: re.Pattern[str] | None, layout: Layout = LEGACY
) -> list[str]:
    """Return the named groups in their order, then the groups that match."""
    found = [] if matching is None else [name for name in registry.groups(layout) if matching.fullmatch(name)]
    return list(dict.fromkeys([*names, *found]))


def is_chosen(at: TopicPartition, topics: ChosenPartitions | None) -> bool:
    """Return whether `--topic` chooses this partition."""
    if topics is None:
        return True
    if at.topic not in topics:
        return False
    numbers = topics[at.topic]
    return numbers is None or at.partition in numbers


def partitions_of(topic: str, numbers: Iterable[int]) -> list[TopicPartition]:
    """Return the partitions of a topic that have these numbers."""
    from zkgroups import TopicPartition

    return [TopicPartition(topic, number) for number in numbers]
