"""`zkgroups claim`: hold partitions, in the foreground or while a command runs."""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

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
    Watched,
)
from zkgroups.core.session_lifetime import PROOF_LIFETIME, PROOF_PERIOD, session_hex
from zkgroups.core.znodes.registrations import subscribed_topics
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.deadline import Deadline, uptime
from zkgroups.exceptions import (
    ClaimedByOtherError,
    ClaimTimeout,
    GroupInUseError,
    GroupNotFoundError,
    InvalidOptionError,
    MalformedNodeError,
    NoPermissionError,
    NotClaimedError,
    UnavailableError,
    ZkgroupsException,
)

from ..child.child_process import Child, CommandResult, WithCommand, command_of, environment
from ..shared.arguments import group_argument, instance_option, partitions_arguments
from ..shared.connect import connected
from ..shared.errors import add_hint
from ..shared.messages import say, say_in_time
from ..shared.options import Options
from ..shared.output import GROUP_AT, Column, Output, Row, Table
from ..shared.parameter_types import Duration
from ..shared.signals import raise_recorded, recorded_signals

# Record the state of the connection, for commands that check it periodically.


CONNECTED: Final = "CONNECTED"
LOST: Final = "LOST"


class ConnectionState:
    """Records the connection states that kazoo reports on its own thread."""

    def __init__(self, registry: Registry) -> None:
        self._client = registry.client
        self._states: deque[str] = deque()

    def changes(self) -> Iterator[str]:
        """Yield the states since the last call."""
        while self._states:
            yield str(self._states.popleft())

    def __enter__(self) -> Self:
        self._client.add_listener(self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.remove_listener(self._record)

    def _record(self, state: str) -> None:
        self._states.append(state)


# Track until when claims are certainly held. A command run under claims must know this at any time, without waiting.
#
# While its instance is registered, its session is proved periodically (`zkgroups/core/session_lifetime.py`). The
# owner nodes are read once, and a watch reports their changes.


_SAFETY: Final = 0.2
"""A safety margin, as a fraction of the validity of a proof: on a busy machine even SIGKILL is late."""

_SPARE: Final = 2 * PROOF_PERIOD
"""A fraction of the session timeout: one or two late proofs do not end the lease."""


def longest_margin(session_timeout: float) -> float:
    """Return the longest `margin`, in seconds, with which a lease does not end between two proofs."""
    return (PROOF_LIFETIME - _SPARE) * session_timeout


class Lease:
    """New claims, watched until the end of the `with` block.

    The lease ends `margin` seconds before the claims could be lost. A command that needs that long to stop is stopped
    in time.
    """

    def __init__(self, registry: Registry, group: Consumergroup, claims: Claims, *, margin: float = 0.0) -> None:
        self._claims = claims
        self._group = group
        self._taken: TopicPartition | None = None
        lasts = PROOF_LIFETIME * (registry.session_timeout or 0.0)
        self._margin = margin + max(lasts - margin, 0.0) * _SAFETY
        self._at = {group.paths.owner(at): at for at in claims}
        self._connection = ConnectionState(registry)
        self._watch = group.watch(Watched.OWNERS)
        self.owners: dict[TopicPartition, Owner] = {}
        """The owner node of each claim, as read from the server."""
        self.disturbed = False
        """True if the connection was lost at any time."""
        self.suspended = False
        """True while the connection is lost."""
        self.lost = ""
        """The reason why the claims may be lost; empty while they are certainly held."""

    def read_owners(self, timeout: float) -> None:
        """Read the owner nodes. Raise an error if one does not belong to its claim."""
        deadline = Deadline(timeout)
        while not self.lost and self.owners.keys() != set(self._at.values()):
            if deadline.passed:
                raise UnavailableError(
                    f"the owner nodes of the claims could not be read within {timeout:g} s: give a longer --timeout"
                )
            self.wait(min(deadline.remaining, 1.0))
        if self.lost:
            raise UnavailableError(self.lost)

    @property
    def until(self) -> float:
        """The time, on the clock of `uptime`, until which the claims are certain without another proof."""
        return self._claims.certain_until - self._margin

    @property
    def loss(self) -> str:
        """The reason why the claims may be lost, and the owner of a partition that was taken away, if it has one."""
        if self._taken is not None:
            with contextlib.suppress(ZkgroupsException):
                owner = self._group.owner(self._taken)
                return self.lost if owner is None else f"{self.lost} and is now claimed by {owner.holder}"
        return self.lost or "the connection was lost"

    def wait(self, seconds: float) -> None:
        """Wait for a change, at most this many seconds, and update the state."""
        try:
            self._read_change(seconds)
        except ZkgroupsException as error:
            self.lost = self.lost or str(error)
        for state in self._connection.changes():
            self.suspended = state != CONNECTED
            self.disturbed = self.disturbed or self.suspended
            if state == LOST:
                self.lost = self.lost or "the session expired"
        if not self.lost and (uptime() >= self.until or not self._claims.held):
            self.lost = _NO_ANSWER if self.suspended else _UNPROVED

    def _read_change(self, seconds: float) -> None:
        change = self._watch.next(timeout=seconds)
        if change is None or change.path not in self._at:
            return
        at = self._at[change.path]
        if isinstance(change.now, Owner) and change.now.session == self._claims[at].session_id and not change.before:
            self.owners.setdefault(at, change.now)
        if self.owners.get(at) != change.now:
            self._taken = at
            raise NotClaimedError(at, "was taken away")

    def __enter__(self) -> Self:
        self._connection.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.close()
        self._connection.__exit__(kind, error, trace)


_NO_ANSWER: Final = "no server answered before the claim ended"
_UNPROVED: Final = (
    "no proof in time that the session is alive: this process was suspended, or its server lost the leader"
)


# Claim the partitions of `zkgroups claim`: wait until they are free, and refuse topics of live members.


WAITING_INTERVAL: Final = 0.5
"""The interval between two checks for members while waiting, in seconds."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The partitions to claim, and the options."""

    group: str
    partitions: Sequence[TopicPartition]
    id: str | None
    wait: float | None
    force: bool


@contextlib.contextmanager
def claimed(registry: Registry, request: ClaimRequest) -> Iterator[tuple[Instance, Claims]]:
    """Claim the partitions. At the end, release them and deregister the instance."""
    group = registry.group(request.group)
    if not group.exists():
        missing = GroupNotFoundError(request.group)
        add_hint(missing)
        missing.add_note(f"`zkgroups groups create {shlex.quote(request.group)}` creates it")
        raise missing
    deadline = Deadline(request.wait or 0.0)
    _wait_until_possible(group, request, deadline)
    with group.instance(request.id) as instance:
        instance.register(timeout=deadline.remaining)
        yield instance, _claim(group, instance, request, deadline)


def _claim(group: Consumergroup, instance: Instance, request: ClaimRequest, deadline: Deadline) -> Claims:
    """Retry until the partitions are claimed or the time is up. Members may register between two attempts.

    The owner nodes contain `<id>-0`, as those of Scala members do. Kafka's own tool cuts off the part after the last
    dash, and fails for the whole group if an owner has no dash.
    """
    streams = dict.fromkeys(request.partitions, 0)
    while True:
        _wait_until_possible(group, request, deadline)
        try:
            wait = min(deadline.remaining, WAITING_INTERVAL)
            return instance.claim_many(request.partitions, timeout=wait, streams=streams)
        except ClaimTimeout as taken:
            if deadline.passed:
                raise _still_owned(taken.at, taken.owner, request) from None


def _wait_until_possible(group: Consumergroup, request: ClaimRequest, deadline: Deadline) -> None:
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
        time.sleep(min(deadline.remaining, WAITING_INTERVAL))


def _still_owned(at: TopicPartition, owner: Owner | UnreadableNode | None, request: ClaimRequest) -> Exception:
    if request.wait is None and owner is not None:
        claimed_by_other = ClaimedByOtherError(at, owner)
        if owner.session:  # otherwise it is never released
            claimed_by_other.add_note("use --wait DURATION to wait")
        return claimed_by_other
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


# Hold claims in the foreground, until a signal arrives or a claim is lost.


CLAIMS: Final = Table(
    "claims",
    key="partition",
    columns=(
        *GROUP_AT,
        Column("OFFSET", "offset", right=True),
        Column("INSTANCE", "instance"),
        Column("SESSION", "session"),
        Column("TOKEN", "token", right=True),
    ),
)


def hold_claims(options: Options, registry: Registry, request: ClaimRequest, claimed: tuple[Instance, Claims]) -> None:
    """Hold the claims until a signal arrives or a claim is lost."""
    instance, claims = claimed
    group = registry.group(request.group)
    with Lease(registry, group, claims) as lease:
        with recorded_signals() as recorded:
            lease.read_owners(options.timeout)
            offsets = group.offsets.fetch_many(request.partitions)
        raise_recorded(recorded)
        # These messages may have no reader, so a signal must interrupt them.
        Output(options).write(CLAIMS, [_row(instance, lease.owners[at], offsets[at]) for at in request.partitions])
        say(options, "Claimed. Ctrl-C releases.")
        with recorded_signals() as recorded:
            suspended = False
            while not (recorded or lease.lost):
                if lease.suspended != suspended:
                    suspended = lease.suspended
                    lost = "Connection lost; claimed until the session expires."
                    say_in_time(options, lost if suspended else "Reconnected; still claimed.")
                lease.wait(WAITING_INTERVAL)
            raise_recorded(recorded)
            raise UnavailableError(f"the claim is lost: {lease.loss}")


def _row(instance: Instance, owner: Owner, found: CurrentOffset) -> Row:
    return {
        "group": instance.group,
        "topic": owner.at.topic,
        "partition": owner.at.partition,
        "offset": found.offset if isinstance(found, CommittedOffset) else None,
        "instance": instance.id,
        "session": session_hex(owner.session),
        "token": owner.czxid,
    }


# Run a command while claims are held, and stop it before they end.


_CHECK_INTERVAL: Final = 0.05
"""The interval between two checks of a running command, in seconds."""


def run_command(
    options: Options,
    registry: Registry,
    request: ClaimRequest,
    claimed: tuple[Instance, Claims],
    command: Sequence[str],
    grace: float,
) -> int:
    """Run the command while the claim lasts. Return its exit code."""
    instance, claims = claimed
    group = registry.group(request.group)
    with recorded_signals() as recorded, Lease(registry, group, claims, margin=grace) as lease:
        lease.read_owners(options.timeout)
        variables = environment(_variables(group, instance, request, lease))
        with Child(command, variables, grace=grace, until=lease.until) as child:
            result = _wait_or_stop(options, child, lease, recorded)
        raise_recorded(recorded)
        if not result.by_itself:
            raise UnavailableError(f"the command was stopped because the claim may be lost: {lease.loss}")
    return result.code


def _wait_or_stop(options: Options, child: Child, lease: Lease, recorded: Sequence[int]) -> CommandResult:
    """Wait for the end of the command. Stop it if a signal arrives or the claim may be lost."""
    while (result := child.result()) is None and not (recorded or lease.lost or lease.disturbed):
        lease.wait(_CHECK_INTERVAL)
        child.extend(lease.until)
    if result is not None:
        return result
    child.stop(recorded[0] if recorded else signal.SIGTERM)
    if not recorded:
        say_in_time(options, f"stopping the command: {lease.lost or 'the connection was lost'}")
    return child.wait()


def _variables(group: Consumergroup, instance: Instance, request: ClaimRequest, lease: Lease) -> Mapping[str, str]:
    """Return the variables that the help lists. The token is the greatest zxid of the owner nodes."""
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


@click.command(cls=WithCommand)
@group_argument
@partitions_arguments
@instance_option("--as", "id", help="The instance id to register; by default a new one of the form host:uuid.")
@click.option(
    "--wait",
    type=Duration(),
    help="How long to wait for partitions that other instances hold; by default not at all.",
)
@click.option("--force", is_flag=True, help="Claim even if live members subscribe to the topic.")
@click.option(
    "--grace",
    type=Duration(),
    default="5s",
    show_default=True,
    help="The time between SIGTERM and SIGKILL when COMMAND is stopped.",
)
@click.pass_context
def claim(
    ctx: click.Context,
    group: str,
    partitions: list[TopicPartition],
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
    request = ClaimRequest(group, partitions, id, wait, force)
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
