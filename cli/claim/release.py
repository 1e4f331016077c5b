"""`zkgroups release`: take partitions away from their owner."""

from __future__ import annotations

import click

from ..shared.arguments import (
    group_argument,
    instance_option,
    partitions_argument,
    partitions_of,
    session_option,
    topic_argument,
)
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.messages import say
from ..shared.options import Options


@click.command(cls=Command)
@group_argument
@topic_argument
@partitions_argument
@instance_option("--expect-owner", "owner", required=True, help="The owner that the partitions must have.")
@session_option("--expect-session", help="The session that the owner must have.")
@click.option("--rebalance", is_flag=True, help="Then make all members rebalance, so that they take the partitions.")
@click.pass_obj
def release(
    options: Options,
    group: str,
    topic: str,
    partitions: tuple[int, ...],
    owner: str,
    session: int | None,
    rebalance: bool,
) -> None:
    """Take partitions away from an owner that does not release them. This command has no dry run.

    A partition with another owner than the expected one is left unchanged. If the owner uses zkgroups, its next commit
    for the partition is refused. Other clients do not notice the release and continue, so stop them first. `zkgroups
    owners list -o wide` prints this command for each owner.

    zkgroups members take a free partition at once. Scala members take it in their next rebalance, which --rebalance
    triggers. An owner that is still registered keeps its share: to take all partitions of a stuck member, use
    `zkgroups members evict`.

    \b
    Example:
      zkgroups -z zk1:2181/kafka release billing orders 0 --expect-owner anna --rebalance
    """
    tally, released_any = Tally(), False
    with connected(options, writes=True) as registry:
        for at in partitions_of(topic, partitions):
            with tally.attempt():
                released = registry.group(group).release(at, expected_owner=owner, expected_session=session)
                say(options, f"released {at}, which was claimed by {released.holder}")
                released_any = True
        if rebalance and released_any:
            registry.group(group).trigger_rebalance()
    tally.finish()
