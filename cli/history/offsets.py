"""`zkgroups history offsets`: every commit, and who made it."""

from __future__ import annotations

from typing import Any, Final

import click

from zkgroups.core.history.events import Commit

from ..shared.command_classes import Command
from ..shared.options import Options
from ..shared.output import Column, Row, Table
from .columns import (
    DIALECT,
    GROUP,
    HOST,
    INSTANCE,
    MARKS,
    PARTITION,
    SESSION,
    TIME,
    TOPIC,
    ZXID,
    event_row,
    instance_row,
    marks,
    owner_row,
)
from .options import HistoryOptions, HistoryRun, group_argument, history_options
from .partitions import ChosenPartition, partition_arguments

_COMMITS: Final = Table(
    "commits",
    key="zxid",
    columns=(
        TIME,
        ZXID,
        GROUP,
        TOPIC,
        PARTITION,
        Column("BEFORE", "before", right=True),
        Column("OFFSET", "offset", right=True),
        SESSION,
        INSTANCE,
        HOST,
        DIALECT,
        Column("OWNER", "owner"),
        Column("EVENT", "event", wide=True),
        Column("VERSION", "version", right=True, wide=True),
        MARKS,
        Column("PROBLEM", "problem", wide=True),
    ),
)


@click.command(cls=Command)
@group_argument
@partition_arguments
@history_options
@click.pass_obj
def offsets(options: Options, /, topic: str | None, partition: int | None, **given: Any) -> None:
    """Show every commit in the logs, in order: the offset before and after, and who made it.

    INSTANCE is the instance that the session had registered in the group at that moment. OWNER is the owner of the
    partition. The address of a client is not in the logs, but most ids of instances contain the host (-o wide).

    MARKS: went-back, the offset is lower than before; gap, the previous commit is missing in the logs, so BEFORE is
    unknown; not-owner, another session owned the partition; unowned, nobody owned it; unregistered, the session had no
    registration in the group; incomplete, earlier transactions are missing, so the owner or the instance may be
    unknown.

    \b
    Example:
      zkgroups history offsets billing orders 3 --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history offsets billing --from-data-dir /backup/zookeeper --since 2026-01-31T12:00:00 -o csv
      zkgroups history offsets --session 0x10000a1b2c3d4e5 --from-data-dir /backup/zookeeper
    """
    chosen, run = ChosenPartition(topic, partition), HistoryRun(options, HistoryOptions.of(given))
    rows = (_row(event) for event in run.events() if isinstance(event, Commit) and chosen.has(event))
    run.write(_COMMITS, rows, "No commits were found.")


def _row(commit: Commit) -> Row:
    return {
        **event_row(commit),
        "topic": commit.topic,
        "partition": commit.partition,
        "before": commit.before,
        "offset": commit.offset,
        "version": commit.version if commit.version >= 0 else None,
        **instance_row(commit.instance),
        **owner_row(commit.owner),
        "marks": list(marks(commit)),
        "problem": commit.problem,
    }
