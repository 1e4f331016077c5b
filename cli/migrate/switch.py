"""`zkgroups migrate switch`: move one group live, while its consumers work."""

from __future__ import annotations

from typing import Final

import click

from zkgroups.exceptions import RefusedError

from ..shared.arguments import execute_option, group_argument
from ..shared.brokers import brokers
from ..shared.command_classes import Command
from ..shared.connect import connected, refuse_read_only
from ..shared.durations import seconds_option
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Table

_MOVES: Final = Table(
    "groups",
    key="group",
    columns=(
        Column("GROUP", "group"),
        Column("TO", "to"),
        Column("STATE", "state", styles={"moved": "green", "already there": "green"}),
        Column("MEMBERS", "members", right=True),
        Column("OFFSETS", "offsets", right=True),
    ),
)


@click.command(cls=Command)
@group_argument
@click.option("--to", type=click.Choice(["kafka", "zookeeper"]), required=True, help="Where to move the group.")
@seconds_option("--wait", default=90.0, help="How long to wait for the members to leave.")
@execute_option
@click.pass_obj
def switch(options: Options, /, group: str, to: str, wait: float, execute: bool) -> None:
    """Move a running group to Kafka's own group coordination and offsets, or back.

    The members commit and leave, and joins wait. The command copies the offsets and compares both sides. Then the
    members join on the other side and continue at their offsets, within some seconds. Without --execute, the command
    only checks whether the group can be moved.

    Two kinds of members can move with their group: a Consumer of this library, and a client that comes through
    "zkgroups gateway". A Member of this library with the option leaves_on_move stays out until the group is back; the
    command names it. The group is not moved while other members are registered, like Scala consumers, while offsets
    of the other side are higher, or if members have not left after --wait. Then it stays where it is, and the exit code
    is 4. On the way back, all members on the brokers must be of these kinds, too.

    If the command was killed, the members wait. Run it again to finish the move, or with the other --to to undo it.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate switch invoices --to kafka
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate switch invoices --to kafka --execute
    """
    if execute:
        refuse_read_only(options)
    from zkgroups.migration.live_move import MoveStep, Side, move_live

    reached: list[MoveStep] = []

    def on_step(step: MoveStep) -> None:
        reached.append(step)
        say(options, f"{group}: {step}")

    with (
        connected(options, writes=execute) as registry,
        brokers(options, what_for="migrate switch", patient=True) as found,
    ):
        try:
            done = move_live(group, Side(to), found, registry, execute=execute, patience=wait, on_step=on_step)
        except RefusedError:
            raise
        except BaseException:
            if reached:
                other = Side.ZOOKEEPER if to == Side.KAFKA else Side.KAFKA
                say(
                    options,
                    f"{group}: the move may be unfinished, and then members wait: run the command again to finish it, "
                    f"or with --to {other} to undo it",
                )
            raise
    row = {
        "group": group,
        "to": to,
        "state": str(done.outcome),
        "members": done.members,
        "offsets": done.offsets,
    }
    Output(options).write(_MOVES, [row])
    if done.stay_out:
        names = ", ".join(done.stay_out)
        say(options, f"Members that leave, and do not continue on the brokers: {names}.")
    if not execute:
        say(options, "Nothing was changed: add --execute to apply.")
