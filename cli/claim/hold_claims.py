"""Hold claims in the foreground, until a signal arrives or a claim is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from zkgroups import Claims, CommittedOffset, Instance, Owner, Registry
from zkgroups.core.znodes.session_ids import session_hex
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import UnavailableError

from ..shared.messages import say, say_in_time
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from ..shared.signals import raise_recorded, recorded_signals
from .lease import Lease
from .wait_and_claim import WAITING_INTERVAL, ClaimRequest

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
            _wait_for_end(options, lease, recorded)


def _wait_for_end(options: Options, lease: Lease, recorded: Sequence[int]) -> None:
    suspended = False
    while not (recorded or lease.lost):
        if lease.suspended != suspended:
            suspended = lease.suspended
            say_in_time(
                options,
                "Connection lost; claimed until the session expires." if suspended else "Reconnected; still claimed.",
            )
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
