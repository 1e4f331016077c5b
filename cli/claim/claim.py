"""`zkgroups claim`: hold partitions, in the foreground or while a command runs."""

from __future__ import annotations

import click

from zkgroups import Registry
from zkgroups.exceptions import InvalidOptionError

from ..child.command_line import WithCommand, command_of
from ..shared.arguments import group_argument, instance_option, partitions_argument, partitions_of, topic_argument
from ..shared.connect import connected
from ..shared.durations import seconds_option
from ..shared.options import Options
from .hold_claims import hold_claims
from .lease import longest_margin
from .run_command import run_command
from .wait_and_claim import ClaimRequest, claimed


@click.command(cls=WithCommand)
@group_argument
@topic_argument
@partitions_argument
@instance_option("--as", "id", help="The instance id to register; by default a new one of the form host:uuid.")
@seconds_option("--wait", help="How long to wait for partitions that other instances hold; by default not at all.")
@click.option("--force", is_flag=True, help="Claim even if live members subscribe to the topic.")
@seconds_option("--grace", default=5.0, help="The time between SIGTERM and SIGKILL when COMMAND is stopped.")
@click.pass_context
def claim(
    ctx: click.Context,
    group: str,
    topic: str,
    partitions: tuple[int, ...],
    id: str | None,
    wait: float | None,
    force: bool,
    grace: float,
) -> None:
    """Hold partitions, all or none, until Ctrl-C or while COMMAND runs.

    The command registers an instance without subscriptions, so that other members assign no partitions to it. If
    live members subscribe to the topic, --force is needed: a Scala member that waits for a held partition releases all
    of its own partitions.

    COMMAND has these environment variables:

    \b
      ZKGROUPS_GROUP       the group
      ZKGROUPS_TOPIC       the topic
      ZKGROUPS_PARTITIONS  the partitions: 0,1
      ZKGROUPS_OFFSETS     the committed offsets, such as 0:1200,1: if
                           partition 1 has no committed offset
      ZKGROUPS_INSTANCE    the registered instance id
      ZKGROUPS_TOKEN       a fencing token (the zxid of the newest owner node):
                           it grows with every claim of these partitions, so a
                           store can refuse writes with a lower token

    ZKGROUPS_PASSWORD and ZKGROUPS_TLS_KEY_PASSWORD are removed from the environment of COMMAND. If COMMAND runs
    zkgroups, give the passwords in files: --password-file or ZKGROUPS_PASSWORD_FILE.

    When COMMAND ends, all processes that it has started are stopped, and then the partitions are released. The exit
    code is that of COMMAND, or 128 + n for signal n. If the connection is lost, the session expires, or a partition is
    taken away, COMMAND gets SIGTERM, and SIGKILL after the grace time; the exit code is 7. Ctrl-C and SIGTERM are
    passed on, and the exit codes are 130 and 143.

    Two helper processes stop COMMAND before the session expires, even if zkgroups is killed or suspended. On Linux they
    also stop all processes that COMMAND has started. The limits are:

    \b
      SIGKILL  On Linux, any two of zkgroups and its helpers may be killed at
               once. If all three are killed, COMMAND is killed, but processes
               that it has started continue. On other systems, COMMAND
               continues, too.
      SIGSTOP  If all three are suspended at once, COMMAND continues until one
               of them is resumed, even if another instance owns the partitions
               by then. If you suspend all three, suspend COMMAND, too.
      others   Processes that COMMAND runs as another user or on another machine
               are not stopped.

    If the name of the group begins with a dash, write another -- before GROUP.

    \b
    Example:
      zkgroups -z zk1:2181/kafka claim invoices orders 0 1 --wait 5 -- env
      zkgroups -z zk1:2181/kafka claim invoices orders 0 -- sh -c 'echo "from $ZKGROUPS_OFFSETS"'
    """
    options = ctx.ensure_object(Options)
    command = command_of(ctx)
    request = ClaimRequest(group, partitions_of(topic, partitions), id, wait, force)
    code = 0
    with connected(options, writes=True) as registry:
        _check_grace(registry, grace, command)
        with claimed(registry, request) as claims:
            if command is None:
                hold_claims(options, registry, request, claims)
            else:
                code = run_command(options, registry, request, claims, command, grace)
    ctx.exit(code)


def _check_grace(registry: Registry, grace: float, command: object) -> None:
    timeout = registry.session_timeout
    if command is None or timeout is None or grace < longest_margin(timeout):
        return
    reason = (
        f"it must be less than {longest_margin(timeout):g} s with a session timeout of {timeout:g} s: give a shorter "
        "time, or a longer --session-timeout"
    )
    raise InvalidOptionError("--grace", grace, reason)
