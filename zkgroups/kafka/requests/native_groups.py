"""Groups on the brokers, in bulk: reading their states and members, and deleting them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ...core.kafka_values import NativeGroup, NativeMember, NativeState
from ...deadline import Deadline
from ...exceptions import GroupInUseError, NotConnectedError, OutcomeUnknownError
from ...input_errors import ZkgroupsException
from ..wire import codec
from ..wire.cluster import Cluster
from ..wire.error_codes import Code
from ..wire.errors import WireError
from .coordinators import Coordinators
from .fetch_offsets import Before, Committed, fetch
from .group_requests import Asked, GroupCode, ask_groups
from .retry import LOOK, tries

_GROUPS: Final = 200
"""Groups per request."""
_STATES: Final = {state.value: state for state in NativeState} | {
    "AwaitingSync": NativeState.COMPLETING_REBALANCE  # until release 1.0
}


async def describe(
    cluster: Cluster, coordinators: Coordinators, groups: Sequence[str], deadline: Deadline
) -> dict[str, NativeGroup | ZkgroupsException]:
    """Return the state and members of each group, or the error. An unknown group is Dead."""

    async def ask(node: int, names: Sequence[str], timeout: float) -> Mapping[str, NativeGroup | GroupCode]:
        answer = await cluster.ask(node, codec.DescribeGroupsRequest(groups=list(names)), timeout=timeout)
        found = {each.group_id: _group(each) for each in answer.groups}
        dead = [name for name, it in found.items() if isinstance(it, NativeGroup) and it.state is NativeState.DEAD]
        if dead and (await cluster.versions(node)).best(codec.CONSUMER_GROUP_DESCRIBE) is not None:
            found |= await _new_groups(cluster, node, dead, timeout)
        return found

    return await ask_groups(coordinators, groups, _GROUPS, ask, deadline)


async def _new_groups(
    cluster: Cluster, node: int, names: Sequence[str], timeout: float
) -> dict[str, NativeGroup | GroupCode]:
    """Describe groups of the protocol of release 4.0 (KIP-848). To the older request, these do not exist."""
    request = codec.ConsumerGroupDescribeRequest(group_ids=list(names), include_authorized_operations=False)
    answer = await cluster.ask(node, request, timeout=timeout)
    return {each.group_id: _new_group(each) for each in answer.groups}


def _new_group(found: Any) -> NativeGroup | GroupCode:
    # Brokers before 4.0 do not support the request unless the new protocol is switched on.
    if found.error_code in (Code.GROUP_ID_NOT_FOUND, Code.UNSUPPORTED_VERSION):
        return NativeGroup(found.group_id, NativeState.DEAD)
    if found.error_code != Code.NONE:
        return GroupCode(found.error_code)
    return _native(found.group_id, found.group_state, ((each, each.instance_id) for each in found.members))


def _group(found: Any) -> NativeGroup | GroupCode:
    if found.error_code == Code.GROUP_ID_NOT_FOUND:  # since release 4.0
        return NativeGroup(found.group_id, NativeState.DEAD)
    if found.error_code != Code.NONE:
        return GroupCode(found.error_code)
    return _native(found.group_id, found.group_state, ((each, each.group_instance_id) for each in found.members))


def _native(name: str, state: str, members: Iterable[tuple[Any, str | None]]) -> NativeGroup:
    found = [NativeMember(each.member_id, each.client_id, each.client_host, id) for each, id in members]
    return NativeGroup(name, state_of(state), tuple(sorted(found, key=lambda each: each.id)))


def state_of(name: str) -> NativeState:
    """Return a state by its name on brokers of any release."""
    return _STATES.get(name, NativeState.UNKNOWN)


async def delete(
    cluster: Cluster,
    coordinators: Coordinators,
    groups: Sequence[str],
    deadline: Deadline,
    before: Before | None = None,
) -> dict[str, ZkgroupsException | None]:
    """Delete groups with all their offsets. Return None or the error for each.

    If an answer is lost, the group is read, and the request is sent again only if the group is still there, with the
    offsets that it had `before`: another client may have recreated it. Brokers of
    release 1.1 answer before the deletion is replicated: if another broker becomes the coordinator at that moment, the
    group comes back.
    """
    asked = Asked(coordinators)
    tried: set[str] = set()

    async def ask(node: int, names: Sequence[str], timeout: float) -> Mapping[str, GroupCode | None]:
        answer = await cluster.ask(node, codec.DeleteGroupsRequest(groups_names=list(names)), timeout=timeout)
        return {each.group_id: _deleted(each, tried) for each in answer.results}

    left: Sequence[str] = groups
    async for timeout in tries(deadline, lambda: len(asked.found)):
        try:
            await asked.attempt(left, _GROUPS, ask, timeout)
        except WireError as error:
            asked.reason = str(error)
        tried |= asked.sent
        unsure = [group for group in groups if group in asked.sent and group not in asked.found]
        look = Deadline(max(LOOK, timeout))
        there = await describe(cluster, coordinators, unsure, look) if unsure else {}
        asked.found |= {
            group: None for group, it in there.items() if isinstance(it, NativeGroup) and it.state is NativeState.DEAD
        }
        unsure = [group for group in unsure if group not in asked.found]
        now = await fetch(cluster, coordinators, unsure, look) if unsure and before is not None else {}
        asked.found |= _recreated(now, before or {})
        unread = {group for group, it in (there | now).items() if isinstance(it, ZkgroupsException)}
        left = [group for group in groups if group not in asked.found and group not in unread]
        if all(group in asked.found for group in groups):
            break
    outcomes: dict[str, ZkgroupsException | None] = {
        group: asked.found[group] if group in asked.found else _unanswered(group, asked, deadline) for group in groups
    }
    refused = [group for group, error in outcomes.items() if isinstance(error, GroupInUseError)]
    return outcomes | await in_use(cluster, coordinators, refused, deadline)


def _recreated(now: Mapping[str, Committed | ZkgroupsException], before: Before) -> dict[str, ZkgroupsException]:
    """Return the error for each group with other offsets than before."""
    return {
        group: OutcomeUnknownError(
            f"group {group!r} may or may not have been deleted: it has other offsets now, so another client "
            "commits, too: stop it"
        )
        for group, it in now.items()
        if not isinstance(it, ZkgroupsException) and it != before.get(group, {})
    }


async def in_use(
    cluster: Cluster, coordinators: Coordinators, groups: Sequence[str], deadline: Deadline
) -> dict[str, ZkgroupsException | None]:
    """For groups that were refused because of active members, return the error with the names of the members."""
    found = await describe(cluster, coordinators, groups, Deadline(max(LOOK, deadline.seconds))) if groups else {}
    return {group: GroupInUseError(group, _members(it)) for group, it in found.items()}


def _members(group: NativeGroup | ZkgroupsException) -> list[str]:
    return [str(member) for member in group.members] if isinstance(group, NativeGroup) else []


def _deleted(each: Any, tried: set[str]) -> GroupCode | None:
    # An earlier request may have deleted it, with its answer lost.
    if each.error_code == Code.NONE or (each.error_code == Code.GROUP_ID_NOT_FOUND and each.group_id in tried):
        return None
    return GroupCode(each.error_code)


def _unanswered(group: str, asked: Asked, deadline: Deadline) -> ZkgroupsException:
    text = f"within {deadline.seconds:g} s: {asked.reason}"
    if group in asked.sent:
        return OutcomeUnknownError(f"group {group!r} may or may not have been deleted {text}")
    return NotConnectedError(f"no broker accepted the request to delete group {group!r} {text}")
