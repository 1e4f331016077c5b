"""Shell completion of the groups, instances, topics and partitions in ZooKeeper.

It is fast and silent: on any error it offers no names, and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from .options import Options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from zkgroups import Registry

TIMEOUT: Final = 1.0
"""The time limit of a completion, in seconds."""

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
    from .contexts_file import apply_context
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


def _partitions(registry: Registry, ctx: click.Context) -> Iterable[str]:
    topic = registry.topic(ctx.params["topic"])
    already = set(ctx.params.get("partitions") or ())
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
complete_partitions = _completing(_partitions)
complete_instances = _completing(_instances)
