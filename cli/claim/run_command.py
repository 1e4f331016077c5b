"""Run a command while claims are held, and stop it before they end."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any, Final

from zkgroups import Claims, Consumergroup, ForbiddenNode, Instance, MalformedNode, Registry
from zkgroups.exceptions import MalformedNodeError, NoPermissionError, UnavailableError

from ..child.child_process import Child, CommandResult
from ..child.command_line import environment
from ..shared.messages import say_in_time
from ..shared.options import Options
from ..shared.signals import raise_recorded, recorded_signals
from .lease import Lease
from .wait_and_claim import ClaimRequest

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
