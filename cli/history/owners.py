"""`zkgroups history owners`: every claim, and how it ended."""

from __future__ import annotations

from typing import Any, Final

import click

from zkgroups.core.history.events import OwnerChange

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

_OWNERS: Final = Table(
    "owners",
    key="zxid",
    columns=(
        TIME,
        ZXID,
        GROUP,
        TOPIC,
        PARTITION,
        Column("EVENT", "event", styles={"taken": "red", "expired": "yellow"}),
        Column("OWNER", "owner"),
        Column("OWNER-SESSION", "owner_session"),
        Column("HELD-MS", "held_ms", right=True, wide=True),
        SESSION._replace(wide=True),
        INSTANCE._replace(wide=True),
        HOST,
        DIALECT,
        MARKS,
    ),
)


@click.command(cls=Command)
@group_argument
@partition_arguments
@history_options
@click.pass_obj
def owners(options: Options, /, topic: str | None, partition: int | None, **given: Any) -> None:
    """Show every claim in the logs, in order, and how it ended.

    EVENT: claimed; released, by its own session; taken, another session deleted the owner node; closed, the client
    closed its session; expired, the server ended the session; changed, the owner node was written; deleted, it is not
    known by whose session. With -o wide, SESSION and INSTANCE show who made the change, and HELD-MS is how long
    the claim has lasted.

    \b
    Example:
      zkgroups history owners billing orders 3 --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history owners billing --from-data-dir /backup/zookeeper --since 2h -o wide
    """
    chosen, run = ChosenPartition(topic, partition), HistoryRun(options, HistoryOptions.of(given))
    rows = (_row(event) for event in run.events() if isinstance(event, OwnerChange) and chosen.has(event))
    run.write(_OWNERS, rows, "No owners were found.")


def _row(change: OwnerChange) -> Row:
    claimed_ms = change.owner.claimed_ms
    return {
        **event_row(change),
        "topic": change.topic,
        "partition": change.partition,
        **owner_row(change.owner),
        "held_ms": change.time_ms - claimed_ms if claimed_ms and claimed_ms != change.time_ms else None,
        "holder": change.holder.id if change.holder else None,
        **instance_row(change.instance),
        "beside": [owner.id for owner in change.others],
        "marks": list(marks(change)),
    }
