"""`zkgroups members evict`: remove a stuck instance from its group."""

from __future__ import annotations

from typing import Final

import click

from zkgroups import Dialect, Owner, Registration
from zkgroups.core.times import to_ms, utc
from zkgroups.core.znodes.session_ids import session_hex
from zkgroups.exceptions import NotRegisteredError

from ..shared.arguments import execute_option, group_argument, instance_argument, session_option
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from .show import described_instance

FREED: Final = Table(
    "partitions",
    key="partition",
    columns=(
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
        Column("OWNER", "instance"),
        Column("CLAIMED", "claimed_ms", show=utc),
    ),
)
"""The partitions that an eviction frees."""

_NEXT: Final = {
    Dialect.ZKGROUPS: "ZooKeeper refuses its commits. If it is only slow, it registers and joins the group again.",
    Dialect.GATEWAY: "The gateway registers it again as long as its client sends heartbeats: stop the client first.",
    Dialect.SCALA: "A Scala member that wakes up may first commit old offsets, or delete the new owner nodes of its "
    "former partitions. ZooKeeper cannot refuse that: stop its process now. Otherwise it holds nothing until it is "
    "restarted, or joins again if its session has expired.",
    Dialect.KAZOO_GO: "A kazoo-go member that wakes up may go on committing, which ZooKeeper cannot refuse: stop it.",
    Dialect.PYKAFKA: "A pykafka member that wakes up may go on committing, which ZooKeeper cannot refuse: stop it.",
}
_NEXT_OF_UNKNOWN: Final = "Its client is unknown. If it wakes up, it may go on reading and committing: stop it."


@click.command(cls=Command)
@group_argument
@instance_argument
@session_option("--expect-session", help="The session that the instance must have.")
@execute_option
@click.pass_obj
def evict(options: Options, group: str, instance: str, session: int | None, execute: bool) -> None:
    """Remove a stuck instance: delete its registration and its owner nodes, in one transaction.

    The other members notice that, rebalance, and take its partitions. `zkgroups release` would only free them: Scala
    members do not notice that, and the stuck instance would keep its share of the next rebalance.

    The command also says what the client of the instance does when it wakes up.

    \b
    Example:
      zkgroups -z zk1:2181/kafka members evict billing anna
      zkgroups -z zk1:2181/kafka members evict billing anna --execute
    """
    with connected(options, writes=execute) as registry:
        _, found = described_instance(registry, group, instance)
        if found is None:
            raise NotRegisteredError(group, instance)
        expected = found.session if session is None else session
        freed = registry.group(group).evict(instance, expected_session=expected, execute=execute)
    Output(options).write(FREED, map(_row, freed))
    dialect = found.registration.dialect if isinstance(found.registration, Registration) else None
    who = f"{dialect or 'unknown'} member {instance} of group {group}, session {session_hex(expected)}"
    say(options, f"{'Evicted' if execute else 'Would evict'} {who}. Partitions: {len(freed)}.")
    say(options, _NEXT_OF_UNKNOWN if dialect is None else _NEXT[dialect])
    if not execute:
        say(options, "Nothing was changed: add --execute to apply.")


def _row(owner: Owner) -> Row:
    return {
        "topic": owner.at.topic,
        "partition": owner.at.partition,
        "instance": owner.id,
        "claimed_ms": to_ms(owner.claimed_at) or None,
        "path": owner.path,
    }
