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
from zkgroups.core.session_proof import PROOF_LIFETIME
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
from ..shared.signals import noted_signals, raise_noted
from .child_process import Child, Ended
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
"""In seconds: how often to look what has become of a command."""
_PACE_OF_WAITING: Final = 0.5
"""In seconds: how often somebody who waits looks whether members have come."""


class _WithCommand(Command):
    """Takes the command line of another program after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What stands after `--` is not ours; one in the first place is, before names that begin with a dash."""
        if "--" in args[1:]:
            end = args.index("--", 1)
            args, command = args[:end], args[end + 1 :]
            if not command:
                raise click.UsageError("there is no command after --", ctx)
            ctx.meta[_COMMAND] = _known(command)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """With the command."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ...]"]


def _known(command: list[str]) -> list[str]:
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no command {command[0]!r}", click.get_current_context(silent=True))
    return command


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is to be claimed, and how."""

    group: str
    partitions: Sequence[TopicPartition]
    id: str | None
    wait: float | None
    force: bool


@click.command(cls=_WithCommand)
@group_argument
@topic_argument
@partitions_argument
@instance_option("--as", "id", help="The id to register; by default a new one, of the form host:uuid.")
@seconds_option("--wait", help="How long to wait for partitions that are held; by default not at all.")
@click.option("--force", is_flag=True, help="Also where live members subscribe to the topic.")
@seconds_option("--grace", default=5.0, help="Between SIGTERM and SIGKILL, when the command is stopped.")
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
    """Hold partitions, all or none: in the foreground until Ctrl-C, or while COMMAND runs.

    An instance is registered that subscribes to nothing, which other members ignore. But a Scala member that meets a
    foreign owner releases all it has: where live members subscribe to the topic, --force is needed.

    COMMAND finds in its environment

    \b
      ZKGROUPS_GROUP       the group
      ZKGROUPS_TOPIC       the topic
      ZKGROUPS_PARTITIONS  the partitions: 0,1
      ZKGROUPS_OFFSETS     where each begins: 0:1200,1: (nothing was committed for 1)
      ZKGROUPS_INSTANCE    the id that is registered
      ZKGROUPS_TOKEN       a number that is greater with every later claim of these
                           partitions (the zxid that made the owner node), for a
                           store that turns away whoever comes with an old one

    ZKGROUPS_PASSWORD and ZKGROUPS_TLS_KEY_PASSWORD are removed from its environment. If COMMAND runs zkgroups, it can
    read the passwords from files: --password-file or ZKGROUPS_PASSWORD_FILE.

    When COMMAND ends, everything it has started is ended too, and then the partitions are released. Its exit code is
    passed on, 128 + n for signal n. If the connection is lost, the session expires, or a partition is taken away,
    COMMAND gets SIGTERM, and SIGKILL after the grace time; the exit code is 7. Two helper processes make sure that
    COMMAND ends before the session does, even if zkgroups is killed or suspended. On Linux they also end everything
    that COMMAND has started, even if SIGKILL hits any two of zkgroups and its two helpers at once. If it hits all
    three, only COMMAND itself is killed, and on other systems not even that. If all three are suspended at once
    (SIGSTOP), COMMAND continues, even when another instance has the partitions, until one of them is resumed. So
    suspend COMMAND, too. Processes that COMMAND runs as another user or on another machine cannot be stopped. Ctrl-C
    and SIGTERM are passed on, and end with 130 and 143.

    A group whose name begins with a dash stands after a -- of its own.

    \b
    Example:
      zkgroups -z zk1:2181/kafka claim invoices orders 0 1 --wait 5 -- env
      zkgroups -z zk1:2181/kafka claim invoices orders 0 -- sh -c 'echo "from $ZKGROUPS_OFFSETS"'
    """
    options = ctx.ensure_object(Options)
    command = ctx.meta.get(_COMMAND)
    wish = _Wish(group, partitions_of(topic, partitions), id, wait, force)
    code = 0
    with connected(options, writes=True) as registry:
        _check_grace(registry, grace, command)
        with _claimed(registry, wish) as claims:
            if command is None:
                _hold(options, registry, wish, claims)
            else:
                code = _run(options, registry, wish, claims, command, grace)
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
def _claimed(registry: Registry, wish: _Wish) -> Iterator[tuple[Instance, Claims]]:
    """The claims; at the end they are let go, and the instance is deregistered."""
    group = registry.group(wish.group)
    if not group.exists():
        raise GroupNotFoundError(wish.group)
    patience = Deadline(wish.wait or 0.0)
    _wait_until_possible(group, wish, patience)
    with group.instance(wish.id) as instance:
        instance.register(timeout=patience.remaining)
        yield instance, _claim(group, instance, wish, patience)


def _claim(group: Consumergroup, instance: Instance, wish: _Wish, patience: Deadline) -> Claims:
    """Retry until the partitions are claimed or time is up: members may come between two attempts.

    The owner nodes carry `<id>-0`, as those of Scala members do. Kafka's own tool cuts off the part after the last
    dash, and fails for the whole group if an owner has no dash.
    """
    streams = dict.fromkeys(wish.partitions, 0)
    while True:
        _wait_until_possible(group, wish, patience)
        try:
            wait = min(patience.remaining, _PACE_OF_WAITING)
            return instance.claim_many(wish.partitions, timeout=wait, streams=streams)
        except ClaimTimeout as taken:
            if patience.passed:
                raise _in_vain(taken.at, taken.owner, wish) from None


def _wait_until_possible(group: Consumergroup, wish: _Wish, patience: Deadline) -> None:
    """Refuse beside live members of the topic; a partition that is held, by whomever and in whichever form, is told
    first, and waited for."""
    while True:
        members = [] if wish.force else _subscribers(group, wish.partitions[0].topic)
        held = _held(group, wish.partitions)
        if held is None and members:
            raise GroupInUseError(group.name, members)
        if held is None:
            return
        if patience.passed:
            raise _in_vain(*held, wish)
        time.sleep(min(patience.remaining, _PACE_OF_WAITING))


def _in_vain(at: TopicPartition, owner: Owner | UnreadableNode | None, wish: _Wish) -> Exception:
    if wish.wait is None and owner is not None:
        return ClaimedByOtherError(at, owner)
    return ClaimTimeout(at, owner, wish.wait or 0.0)


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
    """The live members that subscribe to the topic, or whose registrations cannot be read."""
    return [
        instance.id
        for instance in group.living()
        if not isinstance(instance.registration, Registration)
        or topic in subscribed_topics(instance.registration, [topic])
    ]


# Holding


def _hold(options: Options, registry: Registry, wish: _Wish, claimed: tuple[Instance, Claims]) -> None:
    """Hold until a signal comes or the claim is lost."""
    instance, claims = claimed
    group = registry.group(wish.group)
    with noted_signals() as noted, Lease(registry, group, claims) as lease:
        lease.see(options.timeout)
        offsets = group.offsets.fetch_many(wish.partitions)
        Output(options).write(CLAIMS, [_row(instance, lease.owners[at], offsets[at]) for at in wish.partitions])
        say(options, "Held. Ctrl-C lets go.")
        _wait_for_the_end(options, lease, noted)


def _wait_for_the_end(options: Options, lease: Lease, noted: Sequence[int]) -> None:
    suspended = False
    while not (noted or lease.lost):
        if lease.suspended != suspended:
            suspended = lease.suspended
            say(options, "No connection; held until the session ends." if suspended else "Connected again, still held.")
        lease.wait(_PACE_OF_WAITING)
    raise_noted(noted)
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
    wish: _Wish,
    claimed: tuple[Instance, Claims],
    command: Sequence[str],
    grace: float,
) -> int:
    """Run the command for as long as the claim lasts, and return its exit code."""
    instance, claims = claimed
    group = registry.group(wish.group)
    with noted_signals() as noted, Lease(registry, group, claims, margin=grace) as lease:
        lease.see(options.timeout)
        environment = {**_without_secrets(os.environ), **_environment(group, instance, wish, lease)}
        with Child(command, environment, grace=grace, until=lease.until) as child:
            ended = _attend(options, child, lease, noted)
        raise_noted(noted)
        if not ended.by_itself:
            raise UnavailableError(f"the command was stopped, as the claim is no longer certain: {_reason(lease)}")
    return ended.code


def _attend(options: Options, child: Child, lease: Lease, noted: Sequence[int]) -> Ended:
    """Wait for the end of the command, which comes at the latest with that of the claim."""
    while (ended := child.ended()) is None and not (noted or lease.lost or lease.disturbed):
        lease.wait(_PACE)
        child.extend(lease.until)
    if ended is not None:
        return ended
    if not noted:
        say(options, f"stopping the command: {_reason(lease)}")
    child.stop(noted[0] if noted else signal.SIGTERM)
    return child.wait()


def _reason(lease: Lease) -> str:
    return lease.lost or "the connection was lost"


def _without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove zkgroups' own passwords: COMMAND may be an untrusted program."""
    secrets = {secret_variable(name) for name in SECRETS}
    return {name: value for name, value in environment.items() if name not in secrets}


def _environment(group: Consumergroup, instance: Instance, wish: _Wish, lease: Lease) -> Mapping[str, str]:
    """What the help says. One token for all: the greatest is greater than all of an earlier claim."""
    offsets = group.offsets.fetch_many(wish.partitions)
    return {
        "ZKGROUPS_GROUP": group.name,
        "ZKGROUPS_TOPIC": wish.partitions[0].topic,
        "ZKGROUPS_PARTITIONS": ",".join(str(at.partition) for at in wish.partitions),
        "ZKGROUPS_OFFSETS": ",".join(f"{at.partition}:{_start(offsets[at])}" for at in wish.partitions),
        "ZKGROUPS_INSTANCE": instance.id,
        "ZKGROUPS_TOKEN": str(max(owner.czxid for owner in lease.owners.values())),
    }


def _start(found: Any) -> str:
    """An offset that cannot be read is not none: the command would begin anew."""
    if isinstance(found, ForbiddenNode):
        raise NoPermissionError(found.path)
    if isinstance(found, MalformedNode):
        raise MalformedNodeError(found)
    return "" if found is None else str(found.offset)
