"""The arguments TOPIC and PARTITION of history commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from zkgroups.core.history.events import Commit, OwnerChange
from zkgroups.core.znodes.names import check_topic, parse_partition

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _topic(_ctx: click.Context, _param: click.Parameter, name: str | None) -> str | None:
    return None if name is None else check_topic(name)


def _partition(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    if (number := parse_partition(text)) is None:
        raise click.BadParameter(f"{text!r} is not the number of a partition")
    return number


def partition_arguments(command: Decorated) -> Decorated:
    """One topic, or one partition of it, as `topic` and `partition`; None for all."""
    command = click.argument("partition", metavar="[PARTITION]", required=False, callback=_partition)(command)
    return click.argument("topic", metavar="[TOPIC]", required=False, callback=_topic)(command)


@dataclass(frozen=True, slots=True)
class ChosenPartition:
    """The chosen topic and partition."""

    topic: str | None
    partition: int | None

    def has(self, event: Commit | OwnerChange) -> bool:
        """Return whether an event concerns a chosen partition."""
        if self.topic is not None and event.topic != self.topic:
            return False
        return self.partition is None or event.partition == self.partition
