"""`zkgroups claim`: hold partitions, in the foreground or while a command runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from zkgroups import (
    Claims,
    CommittedOffset,
    Consumergroup,
    ForbiddenNode,
    Instance,
    MalformedNode,
    Owner,
    Registration,
    Registry,
    TopicPartition,
    UnreadableNode,
)
from zkgroups.core.session_lifetime import PROOF_LIFETIME
from zkgroups.core.znodes.session_ids import session_hex
from zkgroups.core.znodes.subscription import subscribed_topics
from zkgroups.deadline import Deadline
from zkgroups.exceptions import (
    ClaimedByOtherError,
    ClaimTimeout,
    GroupInUseError,
    GroupNotFoundError,
    InvalidOptionError,
    MalformedNodeError,
    NoPermissionError,
    UnavailableError,
)

from ..shared.arguments import group_argument, instance_option, partitions_argument, partitions_of, topic_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.durations import seconds_option
from ..shared.messages import say
from ..shared.options import SECRETS, Options, secret_variable
from ..shared.output import Column, Output, Row, Table
from ..shared.signals import raise_recorded, recorded_signals
from .child_process import Child, CommandResult
from .lease import Lease, longest_margin

CLAIMS: Final = Table(
    "claims",
    key="partition",
    columns=(
        Column("GROUP", "group"),
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
        Column("OFFSET", "offset", right=True),
        Column("INSTANCE", "instance"),
        Column("SESSION", "session"),
        Column("TOKEN", "token", right=True),
    ),
)

_COMMAND: Final = "zkgroups.command"
_PACE: Final = 0.05
"""The interval between two checks of a running command, in seconds."""
_PACE_OF_WAITING: Final = 0.5
"""The interval between two checks for members while waiting, in seconds."""


class _WithCommand(Command):
    """A command that accepts the command line of another program after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split off the command after `--`. A leading `--` only introduces names that begin with a dash."""
        if "--" in args[1:]:
            end = args.index("--", 1)
            args, command = args[:end], args[end + 1 :]
            if not command:
                raise click.UsageError("the command after -- is missing", ctx)
            ctx.meta[_COMMAND] = _known(command)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Add the command."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ...]"]


def _known(command: list[str]) -> list[str]:
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"command {command[0]!r} was not found", click.get_current_context(silent=True))
    return command


@dataclass(frozen=True, slots=True)
class _ClaimRequest:
    """The partitions to claim, and the options."""

    group: str
    partitions: Sequence[TopicPartition]
    id: str | None
    wait: float | None
    force: bool


@click.command(cls=_WithCommand)
@group_argument
@topic_argument
@partitions_argument
@instance_option("--as", "id", help="The instance id to register; by default a new one of the form host:uuid.")
@seconds_option("--wait", help="How long to wait for partitions that others hold; by default not at all.")
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

    The command registers an instance without subscriptions, so that other members assign no partitions to it. But if a
    Scala member is assigned a partition that this instance holds, it releases all its partitions. So if live members
    subscribe to the topic, --force is needed.

    COMMAND has these environment variables:

    \b
      ZKGROUPS_GROUP       the group
      ZKGROUPS_TOPIC       the topic
      ZKGROUPS_PARTITIONS  the partitions: 0,1
      ZKGROUPS_OFFSETS     committed offsets: 0:1200,1: (none committed for 1)
      ZKGROUPS_INSTANCE    the registered instance id
      ZKGROUPS_TOKEN       a fencing token: greater with every later claim of
                           these partitions (the zxid of the owner node), so
                           that a store can refuse writes with an older one

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
               once. If all three are killed, COMMAND is killed, too, but the
               processes that it has started are not. On other systems,
               COMMAND then continues as well.
      SIGSTOP  If all three are suspended at once, COMMAND continues until one
               of them is resumed, even if another instance owns the partitions
               by then. So whoever suspends all three must suspend COMMAND, too.
      others   Processes that COMMAND runs as another user or on another machine
               are not stopped.

    If the name of the group begins with a dash, write another -- before it.

    \b
    Example:
      zkgroups -z zk1:2181/kafka claim invoices orders 0 1 --wait 5 -- env
      zkgroups -z zk1:2181/kafka claim invoices orders 0 -- sh -c 'echo "from $ZKGROUPS_OFFSETS"'
    """
    options = ctx.ensure_object(Options)
    command = ctx.meta.get(_COMMAND)
    request = _ClaimRequest(group, partitions_of(topic, partitions), id, wait, force)
    code = 0
    with connected(options, writes=True) as registry:
        _check_grace(registry, grace, command)
        with _claimed(registry, request) as claims:
            if command is None:
                _hold(options, registry, request, claims)
            else:
                code = _run(options, registry, request, claims, command, grace)
    ctx.exit(code)


def _check_grace(registry: Registry, grace: float, command: object) -> None:
    timeout = registry.session_timeout
    if command is None or timeout is None or grace < longest_margin(timeout):
        return
    reason = (
        f"it must be less than {longest_margin(timeout):g} s: with a session of {timeout:g} s, a claim is certain for "
        f"{PROOF_LIFETIME * timeout:g} s after each proof that the session lives; give a shorter time, or a longer "
        "--session-timeout"
    )
    raise InvalidOptionError("--grace", grace, reason)


# Claiming


@contextlib.contextmanager
def _claimed(registry: Registry, request: _ClaimRequest) -> Iterator[tuple[Instance, Claims]]:
    """Claim the partitions. At the end, release them and deregister the instance."""
    group = registry.group(request.group)
    if not group.exists():
        raise GroupNotFoundError(request.group)
    deadline = Deadline(request.wait or 0.0)
    _wait_until_possible(group, request, deadline)
    with group.instance(request.id) as instance:
        instance.register(timeout=deadline.remaining)
        yield instance, _claim(group, instance, request, deadline)


def _claim(group: Consumergroup, instance: Instance, request: _ClaimRequest, deadline: Deadline) -> Claims:
    """Retry until the partitions are claimed or the time is up. Members may register between two attempts.

    The owner nodes contain `<id>-0`, as those of Scala members do. Kafka's own tool cuts off the part after the last
    dash, and fails for the whole group if an owner has no dash.
    """
    streams = dict.fromkeys(request.partitions, 0)
    while True:
        _wait_until_possible(group, request, deadline)
        try:
            wait = min(deadline.remaining, _PACE_OF_WAITING)
            return instance.claim_many(request.partitions, timeout=wait, streams=streams)
        except ClaimTimeout as taken:
            if deadline.passed:
                raise _still_owned(taken.at, taken.owner, request) from None


def _wait_until_possible(group: Consumergroup, request: _ClaimRequest, deadline: Deadline) -> None:
    """Wait until the partitions have no owner. Then raise GroupInUseError if live members subscribe to the topic.

    Owners are reported first, also if their nodes cannot be read.
    """
    while True:
        members = [] if request.force else _subscribers(group, request.partitions[0].topic)
        held = _held(group, request.partitions)
        if held is None and members:
            raise GroupInUseError(group.name, members)
        if held is None:
            return
        if deadline.passed:
            raise _still_owned(*held, request)
        time.sleep(min(deadline.remaining, _PACE_OF_WAITING))


def _still_owned(at: TopicPartition, owner: Owner | UnreadableNode | None, request: _ClaimRequest) -> Exception:
    if request.wait is None and owner is not None:
        return ClaimedByOtherError(at, owner)
    return ClaimTimeout(at, owner, request.wait or 0.0)


def _held(
    group: Consumergroup, partitions: Sequence[TopicPartition]
) -> tuple[TopicPartition, Owner | UnreadableNode] | None:
    wanted = {group.paths.owner(at): at for at in partitions}
    for owner in group.owners():
        at = owner.at if isinstance(owner, Owner) else wanted.get(owner.path)
        if at is not None and at in partitions:
            return at, owner
    return None


def _subscribers(group: Consumergroup, topic: str) -> list[str]:
    """Return the live members that subscribe to the topic, or that have an unreadable registration."""
    return [
        instance.id
        for instance in group.living()
        if not isinstance(instance.registration, Registration)
        or topic in subscribed_topics(instance.registration, [topic])
    ]


# Holding


def _hold(options: Options, registry: Registry, request: _ClaimRequest, claimed: tuple[Instance, Claims]) -> None:
    """Hold the claims until a signal arrives or a claim is lost."""
    instance, claims = claimed
    group = registry.group(request.group)
    with recorded_signals() as recorded, Lease(registry, group, claims) as lease:
        lease.read_owners(options.timeout)
        offsets = group.offsets.fetch_many(request.partitions)
        Output(options).write(CLAIMS, [_row(instance, lease.owners[at], offsets[at]) for at in request.partitions])
        say(options, "Claimed. Ctrl-C releases.")
        _wait_for_end(options, lease, recorded)


def _wait_for_end(options: Options, lease: Lease, recorded: Sequence[int]) -> None:
    suspended = False
    while not (recorded or lease.lost):
        if lease.suspended != suspended:
            suspended = lease.suspended
            say(
                options,
                "Connection lost; claimed until the session expires." if suspended else "Reconnected; still claimed.",
            )
        lease.wait(_PACE_OF_WAITING)
    raise_recorded(recorded)
    raise UnavailableError(f"the claim is lost: {lease.lost}")


def _row(instance: Instance, owner: Owner, found: CommittedOffset | UnreadableNode | None) -> Row:
    return {
        "group": instance.group,
        "topic": owner.at.topic,
        "partition": owner.at.partition,
        "offset": found.offset if isinstance(found, CommittedOffset) else None,
        "instance": instance.id,
        "session": session_hex(owner.session),
        "token": owner.czxid,
    }


# Running a command


def _run(
    options: Options,
    registry: Registry,
    request: _ClaimRequest,
    claimed: tuple[Instance, Claims],
    command: Sequence[str],
    grace: float,
) -> int:
    """Run the command while the claim lasts. Return its exit code."""
    instance, claims = claimed
    group = registry.group(request.group)
    with recorded_signals() as recorded, Lease(registry, group, claims, margin=grace) as lease:
        lease.read_owners(options.timeout)
        environment = {**_without_secrets(os.environ), **_environment(group, instance, request, lease)}
        with Child(command, environment, grace=grace, until=lease.until) as child:
            result = _attend(options, child, lease, recorded)
        raise_recorded(recorded)
        if not result.by_itself:
            raise UnavailableError(f"the command was stopped because the claim may be lost: {_reason(lease)}")
    return result.code


def _attend(options: Options, child: Child, lease: Lease, recorded: Sequence[int]) -> CommandResult:
    """Wait for the end of the command. Stop it if a signal arrives or the claim may be lost."""
    while (result := child.result()) is None and not (recorded or lease.lost or lease.disturbed):
        lease.wait(_PACE)
        child.extend(lease.until)
    if result is not None:
        return result
    if not recorded:
        say(options, f"stopping the command: {_reason(lease)}")
    child.stop(recorded[0] if recorded else signal.SIGTERM)
    return child.wait()


def _reason(lease: Lease) -> str:
    return lease.lost or "the connection was lost"


def _without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove zkgroups' own passwords: COMMAND may be an untrusted program."""
    secrets = {secret_variable(name) for name in SECRETS}
    return {name: value for name, value in environment.items() if name not in secrets}


def _environment(group: Consumergroup, instance: Instance, request: _ClaimRequest, lease: Lease) -> Mapping[str, str]:
    """Return the variables that the help lists. The token is the greatest of all partitions."""
    offsets = group.offsets.fetch_many(request.partitions)
    return {
        "ZKGROUPS_GROUP": group.name,
        "ZKGROUPS_TOPIC": request.partitions[0].topic,
        "ZKGROUPS_PARTITIONS": ",".join(str(at.partition) for at in request.partitions),
        "ZKGROUPS_OFFSETS": ",".join(f"{at.partition}:{_start(offsets[at])}" for at in request.partitions),
        "ZKGROUPS_INSTANCE": instance.id,
        "ZKGROUPS_TOKEN": str(max(owner.czxid for owner in lease.owners.values())),
    }


def _start(found: Any) -> str:
    """Format an offset. Refuse an unreadable one: without an offset the command would start from the beginning."""
    if isinstance(found, ForbiddenNode):
        raise NoPermissionError(found.path)
    if isinstance(found, MalformedNode):
        raise MalformedNodeError(found)
    return "" if found is None else str(found.offset)
