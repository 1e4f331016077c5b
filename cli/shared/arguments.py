"""Parameters of several commands: groups, topics and partitions. Names are checked before any I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.znodes.states import GroupState
from zkgroups.core.znodes.topic_partition import check_group, check_instance

from .options import Options
from .parameter_types import Decorator, PartitionNumbers, TopicOrPartitions, TopicPartitions, combined, is_numbers

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from zkgroups import Registry, TopicPartition
    from zkgroups.core.history.events import Commit, OwnerChange
    from zkgroups.core.layouts.layout import Layout


# Shell completion of the groups, instances, topics and partitions in ZooKeeper.
#
# It is fast and silent: on any error it offers no names, and prints nothing.


TIMEOUT: Final = 1.0
"""The time limit of a completion, in seconds."""

PLACE: Final = "zkgroups.place"
"""The key in the context for the topics and partitions that arguments name."""

FindNames: TypeAlias = "Callable[[Registry, click.Context], Iterable[str]]"
Complete: TypeAlias = "Callable[[click.Context, click.Parameter, str], list[CompletionItem]]"


def _completing(find: FindNames) -> Complete:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        try:
            with _registry(ctx) as registry:
                names = sorted(
                    set(find(registry, ctx)), key=lambda name: (len(name), name) if name.isdigit() else (0, name)
                )
        except Exception:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


def _registry(ctx: click.Context) -> Registry:
    from .connect import open_registry
    from .global_options import apply_context
    from .messages import set_up_logging

    options = ctx.find_object(Options) or Options()
    apply_context(options)
    options.quiet = True
    options.timeout = min(options.timeout, TIMEOUT)
    set_up_logging(options)
    return open_registry(options, may_prompt=False)


def _groups(registry: Registry, ctx: click.Context) -> Iterable[str]:
    already = ctx.params.get("names") or ()
    return [name for name in registry.groups() if name not in already]


def _topics(registry: Registry, ctx: click.Context) -> Iterable[str]:
    group = ctx.params.get("group") or next(iter(ctx.params.get("names") or ()), None)
    known = registry.topics()
    if group is None:
        return known
    [found] = registry.describe([group])
    return [*known, *found.topics]


def _partitions_of(registry: Registry, ctx: click.Context) -> Iterable[str]:
    [place] = ctx.meta[PLACE]
    topic = registry.topic(place.topic)
    already = {number for numbers in ctx.params.get("partitions") or () for number in numbers}
    return [str(number) for number in (topic.partitions if topic else ()) if number not in already]


def _instances(registry: Registry, ctx: click.Context) -> Iterable[str]:
    return [instance.id for instance in registry.group(ctx.params["group"]).instances()]


def complete_layouts(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the kinds of layouts, and the paths in ZooKeeper after them."""
    from click.shell_completion import CompletionItem

    kind, colon, path = incomplete.rpartition(":")
    if not colon and not incomplete.startswith("/"):
        return [CompletionItem(name) for name in _LAYOUTS if name.startswith(incomplete)]
    directory = path.rpartition("/")[0]
    try:
        with _registry(ctx) as registry:
            names = sorted(registry.client.get_children(directory or "/"))
    except Exception:
        return []
    paths = (f"{kind}{colon}{directory}/{name}" for name in names)
    return [CompletionItem(found) for found in paths if found.startswith(incomplete)]


_LAYOUTS: Final = ("kafka-1.1.0", "legacy", "spark:/", "storm:/", "trident:/")

complete_groups = _completing(_groups)
complete_topics = _completing(_topics)
complete_partitions = _completing(_partitions_of)
complete_instances = _completing(_instances)


TOPIC = TopicOrPartitions()
NUMBERS = PartitionNumbers()
_MAYBE_GROUPS = "zkgroups.maybe_groups"
"""Arguments that were taken for partitions, but may be names of groups."""

_LARGEST_SESSION = 2**64
_LARGEST_OF_JAVA = 2**63

ChosenPartitions: TypeAlias = dict[str, frozenset[int] | None]
"""The chosen partitions of each topic; None means all partitions of the topic."""


state_option = click.option(
    "--state",
    "states",
    type=click.Choice([state.value for state in GroupState if state is not GroupState.DEAD], case_sensitive=False),
    multiple=True,
    help="Only groups in this state. May be repeated.",
)


def _checked_group(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    return check_group(name)


def checked_groups(_ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """The callback of a parameter with names of groups: check them and remove duplicates."""
    return tuple(dict.fromkeys(map(check_group, names)))


def _checked_instance(_ctx: click.Context, _param: click.Parameter, name: str | None) -> str | None:
    return None if name is None else check_instance(name)


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


def expression(_ctx: click.Context, _param: click.Parameter, text: str | None) -> re.Pattern[str] | None:
    """The callback of an option for a regular expression."""
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression: {error}") from error


def _keep_topic(ctx: click.Context, _param: click.Parameter, found: TopicPartitions | None) -> None:
    """Keep the argument TOPIC for the callback of a later argument or option."""
    if found is not None:
        ctx.meta[PLACE] = [found]


def _keep_partitions(ctx: click.Context, _param: click.Parameter, lists: tuple[tuple[int, ...], ...]) -> None:
    """Add the arguments PARTITION... to TOPIC."""
    if lists and not ctx.resilient_parsing:
        ctx.meta[PLACE] = [named_partitions(ctx, lists)]


def named_partitions(ctx: click.Context, lists: Iterable[tuple[int, ...]]) -> TopicPartitions:
    """Return the partitions that TOPIC PARTITION... or TOPIC:0,1 name; all of the topic if there are no numbers."""
    [place] = ctx.meta[PLACE]
    numbers = tuple(dict.fromkeys(chain.from_iterable(lists)))
    if numbers and place.numbers is not None:
        raise click.UsageError(f"give the partitions of {place.topic!r} either with the topic or after it", ctx)
    return TopicPartitions(place.topic, numbers or place.numbers)


def _partitions(
    ctx: click.Context, _param: click.Parameter, lists: tuple[tuple[int, ...], ...]
) -> list[TopicPartition] | tuple[tuple[int, ...], ...]:
    from zkgroups import TopicPartition

    if ctx.resilient_parsing:
        return lists  # for `complete_partitions`
    place = named_partitions(ctx, lists)
    if place.numbers is None:
        raise click.UsageError(f"name the partitions of {place.topic!r}, such as {place.topic}:0,1", ctx)
    return [TopicPartition(place.topic, number) for number in place.numbers]


def _groups_then_topic(ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Split GROUP TOPIC PARTITION..., TOPIC/PARTITION and TOPIC:PARTITIONS into the group and the partitions."""
    if len(names) > 2 and all(map(is_numbers, names[2:])):
        ctx.meta[PLACE] = [TOPIC.convert(names[1], _param, ctx)]
        ctx.meta[PLACE] = [named_partitions(ctx, [NUMBERS.convert(each, _param, ctx) for each in names[2:]])]
        ctx.meta[_MAYBE_GROUPS] = names[2:]
        names = names[:1]
    elif len(names) > 1 and all("/" in name or is_numbers(name.partition(":")[2]) for name in names[1:]):
        ctx.meta[PLACE] = [TOPIC.convert(each, _param, ctx) for each in names[1:]]
        ctx.meta[_MAYBE_GROUPS] = [name for name in names[1:] if "/" not in name]
        names = names[:1]
    return checked_groups(ctx, _param, names)


def _chosen_topics(
    ctx: click.Context, _param: click.Parameter, given: tuple[TopicPartitions, ...]
) -> ChosenPartitions | None:
    """Merge the values of --topic, and the partitions named by arguments."""
    chosen: ChosenPartitions = {}
    for topic, numbers in (*given, *ctx.meta.get(PLACE, ())):
        before = chosen.get(topic, frozenset())
        chosen[topic] = None if before is None or numbers is None else before | frozenset(numbers)
    return chosen or None


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
    callback=expression,
    help="Choose the groups whose whole name matches, in addition to any named ones.",
)
"""Groups whose name matches an expression, as `matching`; see `chosen_groups`."""

groups_then_topic_argument = click.argument(
    "names",
    metavar="[GROUP... | GROUP TOPIC PARTITION...]",
    nargs=-1,
    is_eager=True,
    callback=_groups_then_topic,
    shell_complete=complete_groups,
)
"""Any number of groups, as `names`; or partitions of one group, which `topics_option` passes on."""


def topic_argument(*, required: bool = True) -> Decorator[Any]:
    """Return the argument TOPIC, which may contain partitions, for `named_partitions`."""
    return click.argument(
        "topic",
        metavar="TOPIC" if required else "[TOPIC]",
        required=required,
        type=TOPIC,
        is_eager=not required,
        expose_value=False,
        callback=_keep_topic,
        shell_complete=complete_topics,
    )


def _numbers_argument(**more: Any) -> Decorator[Any]:
    return click.argument(
        "partitions", metavar="[PARTITION...]", nargs=-1, type=NUMBERS, shell_complete=complete_partitions, **more
    )


partitions_arguments: Final = combined(topic_argument(), _numbers_argument(callback=_partitions))
"""TOPIC PARTITION..., or TOPIC:0,1, as `partitions`: a list of `TopicPartition`."""

instance_argument = click.argument(
    "instance", metavar="INSTANCE", callback=_checked_instance, shell_complete=complete_instances
)
"""The id of an instance of the group, as `instance`."""

topics_option = click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:0,1,4-7]",
    type=TOPIC,
    multiple=True,
    callback=_chosen_topics,
    shell_complete=complete_topics,
    help="Only this topic, or these partitions of it, such as orders:0-3 or orders/3. May be repeated.",
)
"""The chosen topics and partitions, as `topics`; None means all. See `is_chosen`."""

maybe_partitions_arguments: Final = combined(
    topic_argument(required=False),
    _numbers_argument(is_eager=True, expose_value=False, callback=_keep_partitions),
    topics_option,
)
"""[TOPIC] [PARTITION...], and `--topic`, as `topics`; see `topics_option`."""

execute_option = click.option(
    "--execute",
    is_flag=True,
    help="Make the changes; without it, only show them.",
)
"""The flag of commands that are dry runs by default, as `execute`."""


def instance_option(*names: str, help: str, required: bool = False) -> Decorator[Any]:
    """Return an option for an instance id, which is checked and completed."""
    return click.option(
        *names,
        metavar="ID",
        required=required,
        callback=_checked_instance,
        shell_complete=complete_instances,
        help=help,
    )


def session_option(*names: str, help: str) -> Decorator[Any]:
    """Return an option for the id of a ZooKeeper session, as `session`."""
    return click.option(*names, "session", metavar="HEX", callback=_session, help=help)


def chosen_groups(
    registry: Registry, names: Collection[str], matching: re.Pattern[str] | None, layout: Layout = LEGACY
) -> list[str]:
    """Return the named groups in their order, then the groups that match."""
    context = click.get_current_context(silent=True)
    for number in context.meta.get(_MAYBE_GROUPS, ()) if context else ():
        if number in registry.groups(layout):
            raise click.UsageError(f"{number!r} may be a partition or a group: use --topic, or --groups", context)
    found = [] if matching is None else [name for name in registry.groups(layout) if matching.fullmatch(name)]
    return list(dict.fromkeys([*names, *found]))


def is_chosen(at: TopicPartition | Commit | OwnerChange, topics: ChosenPartitions | None) -> bool:
    """Return whether a partition, or the one of an event, is chosen."""
    if topics is None:
        return True
    if at.topic not in topics:
        return False
    numbers = topics[at.topic]
    return numbers is None or at.partition in numbers
