"""`zkgroups release`: take partitions away from their owner."""

from __future__ import annotations

import click

from ..shared.arguments import group_argument, instance_option, partitions_argument, partitions_of, topic_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.errors_to_exit_codes import Tally
from ..shared.messages import say
from ..shared.options import Options

_LARGEST = 2**64
_LARGEST_OF_JAVA = 2**63


def _session(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    """Parse a hexadecimal session id. Ids from 2**63 are negative, as Java longs."""
    if text is None:
        return None
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 < number < _LARGEST:
        raise click.BadParameter(f"{text!r} is not a session id like 0x10000a1b2c3d4e5")
    return number if number < _LARGEST_OF_JAVA else number - _LARGEST


@click.command(cls=Command)
@group_argument
@topic_argument
@partitions_argument
@instance_option("--expect-owner", "owner", required=True, help="The owner that the partitions must have.")
@click.option(
    "--expect-session", "session", metavar="HEX", callback=_session, help="The session that the owner must have."
)
@click.pass_obj
def release(
    options: Options, group: str, topic: str, partitions: tuple[int, ...], owner: str, session: int | None
) -> None:
    """Take partitions away from an owner that does not release them. This command has no dry run.

    A partition with another owner than the expected one is left unchanged. If the owner uses zkgroups, its next commit
    for the partition is refused. Other clients do not notice the release and continue, so stop them first. `zkgroups
    owners list -o wide` prints this command for each owner.

    \b
    Example:
      zkgroups -z zk1:2181/kafka release billing orders 0 --expect-owner anna
    """
    tally = Tally()
    with connected(options, writes=True) as registry:
        for at in partitions_of(topic, partitions):
            with tally.attempt():
                released = registry.group(group).release(at, expected_owner=owner, expected_session=session)
                say(options, f"released {at}, which was claimed by {released.holder}")
    tally.finish()
