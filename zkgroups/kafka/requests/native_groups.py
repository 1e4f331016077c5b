"""Groups on the brokers, in bulk: list them, read their states and members, and delete them or their offsets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from ...core.kafka_values import NativeGroup, NativeMember, NativeOffset, NativeState
from ...core.znodes.topic_partition import TopicPartition
from ...deadline import Deadline
from ...exceptions import GroupInUseError, NotConnectedError, OutcomeUnknownError
from ...input_errors import ZkgroupsException
from ..errors import error as error_of
from ..errors import is_temporary, is_temporary_of_leader
from ..wire import codec
from ..wire.cluster import Cluster, Topic
from ..wire.connection import Code
from ..wire.errors import NotSentError, WireError
from .fetch_offsets import Before, Committed, fetch
from .group_requests import (
    LOOK,
    Asked,
    Coordinators,
    GroupCode,
    ask_groups,
    metadata,
    send_all,
    timed_out,
    tries,
    versions,
)

# Groups on the brokers, in bulk: reading their states and members, and deleting them.


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


# All groups of a cluster: each coordinator lists its own.


_TOPIC: Final = "__consumer_offsets"
"""The leaders of its partitions are the coordinators."""
_MOVED: Final = Code.words(Code.COORDINATOR_NOT_AVAILABLE)

States = dict[str, NativeState | None]


async def list_groups(cluster: Cluster, deadline: Deadline) -> States:
    """Return the state of every group; None from brokers before 2.6, which do not list states.

    Raise NotConnectedError unless all coordinators answer. Since release 4.0, a coordinator that has just taken
    over groups may not list them yet.
    """
    found = _List(cluster)
    async for timeout in tries(deadline):
        if await found.attempt(deadline, timeout):
            return dict(sorted(found.groups.items()))
    reason = found.reason or _MOVED
    raise NotConnectedError(f"not all brokers listed their groups within {deadline.seconds:g} s: {reason}")


class _List:
    """The groups that brokers have listed so far."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.groups: States = {}
        self.reason = ""

    async def attempt(self, deadline: Deadline, timeout: float) -> bool:
        """Ask every coordinator. Return True if all answered, and no group can have moved meanwhile."""
        try:
            return await self._attempt(deadline, timeout)
        except NotConnectedError:
            if self.reason:  # this attempt had only the rest of the time, so its error tells less
                return False
            raise

    async def _attempt(self, deadline: Deadline, timeout: float) -> bool:
        coordinators = await self._coordinators(deadline)
        answered: set[int] = set()

        async def send(node: int, timeout: float) -> None:
            if await self._ask(node, timeout):
                answered.add(node)

        batches = {node: [timeout] for node in set(coordinators) if node >= 0}
        for failure in (await send_all(batches, send)).values():
            if not isinstance(failure, WireError):
                raise failure
            if not self.reason or not timed_out(failure):
                self.reason = str(failure)
        return answered == set(coordinators) and coordinators == await self._coordinators(deadline)

    async def _coordinators(self, deadline: Deadline) -> list[int]:
        """Return the leader of each partition; all brokers if this user may not see the topic, or it is missing."""
        found = await metadata(self._cluster, [_TOPIC], deadline)
        leaders = found.topics.get(_TOPIC, Topic({})).leaders
        return [leaders[partition] for partition in sorted(leaders)] or sorted(found.brokers)

    async def _ask(self, node: int, timeout: float) -> bool:
        request = codec.ListGroupsRequest(states_filter=[], types_filter=[])
        answer = await self._cluster.ask(node, request, timeout=timeout)
        if is_temporary(answer.error_code):
            self.reason = Code.words(answer.error_code)
            return False
        if answer.error_code != Code.NONE:
            raise error_of(answer.error_code, f"the list of groups of broker {node}")
        self.groups |= {
            each.group_id: state_of(each.group_state) if each.group_state else None for each in answer.groups
        }
        return True


# Deleting single offsets of groups on the brokers, since release 2.4.


Outcomes = Mapping[TopicPartition, ZkgroupsException | None]


async def can_delete_offsets(cluster: Cluster, deadline: Deadline) -> bool:
    """Return whether a broker supports the request. All brokers do, unless they are just being upgraded."""
    return (await versions(cluster, deadline)).best(codec.OFFSET_DELETE) is not None


async def delete_offsets(
    cluster: Cluster,
    coordinators: Coordinators,
    offsets: Mapping[str, Iterable[TopicPartition]],
    deadline: Deadline,
    before: Before | None = None,
) -> dict[str, Outcomes]:
    """Delete offsets. Return None or the error for each: an offset that does not exist is deleted, too.

    So a request whose answer was lost is sent again, but not for offsets that differ from those `before`.
    """
    wanted = {group: sorted(set(those)) for group, those in offsets.items()}
    tried: set[str] = set()

    async def ask(node: int, names: Sequence[str], timeout: float) -> Mapping[str, Outcomes | GroupCode]:
        [group] = names
        kept: Outcomes = {}
        if before is not None and group in tried:
            kept = await _kept(cluster, coordinators, group, wanted[group], before.get(group, {}), timeout)
        tried.add(group)
        left = [at for at in wanted[group] if at not in kept]
        if not left:
            return {group: kept}
        found = _read(group, left, await cluster.ask(node, _request(group, left), timeout=timeout))
        return {group: found if isinstance(found, GroupCode) else {**found, **kept}}

    found = await ask_groups(coordinators, [group for group, those in wanted.items() if those], 1, ask, deadline)
    outcomes: dict[str, Outcomes] = {}
    for group, those in wanted.items():
        it = found.get(group, {})
        outcomes[group] = dict.fromkeys(those, it) if isinstance(it, ZkgroupsException) else it
    return outcomes


async def _kept(
    cluster: Cluster,
    coordinators: Coordinators,
    group: str,
    those: Iterable[TopicPartition],
    before: Mapping[TopicPartition, NativeOffset],
    timeout: float,
) -> Outcomes:
    """Return the error for each offset that another client has committed since."""
    now = (await fetch(cluster, coordinators, [group], Deadline(timeout)))[group]
    if isinstance(now, ZkgroupsException):
        raise NotSentError(str(now))
    return {
        at: OutcomeUnknownError(
            f"the offset of {at} of group {group!r} may or may not have been deleted: it is {now[at].offset} now, "
            "so another client commits, too: stop it"
        )
        for at in those
        if at in now and now[at] != before.get(at)
    }


def _request(group: str, those: Iterable[TopicPartition]) -> Any:
    kind = codec.OffsetDeleteRequest.OffsetDeleteRequestTopic
    topics = [
        kind(name=name, partitions=[kind.OffsetDeleteRequestPartition(partition_index=at.partition) for at in each])
        for name, each in groupby(those, key=lambda at: at.topic)
    ]
    return codec.OffsetDeleteRequest(group_id=group, topics=topics)


def _read(group: str, those: Iterable[TopicPartition], answer: Any) -> Outcomes | GroupCode:
    """Return the outcome of each partition; a code if the whole group is to be asked about again."""
    if answer.error_code == Code.GROUP_ID_NOT_FOUND:  # without a group, there is no offset either
        return dict.fromkeys(those)
    if answer.error_code != Code.NONE:
        return GroupCode(answer.error_code)
    codes = {
        (topic.name, each.partition_index): each.error_code for topic in answer.topics for each in topic.partitions
    }
    found: dict[TopicPartition, ZkgroupsException | None] = {}
    for at in those:
        code = codes.get((at.topic, at.partition), Code.REQUEST_TIMED_OUT)
        if is_temporary(code):
            return GroupCode(code)
        found[at] = None if code == Code.NONE else error_of(code, f"{at} of group {group!r}", group=group, at=at)
    return found


# How long brokers keep the offsets of an unused group: a setting of each broker.


_SETTING: Final = "offsets.retention.minutes"
_NUMBER: Final = re.compile("[0-9]{1,18}")
_BROKER: Final = 4
"""The type of the resource in requests about settings."""


async def offsets_retention(cluster: Cluster, deadline: Deadline) -> float | None:
    """Return the shortest retention of all brokers in seconds; None if no broker reports it.

    Brokers before 0.11 do not report settings, and others only to users with permission.
    """
    left = set((await metadata(cluster, [], deadline)).brokers)
    answers: dict[int, int | None] = {}

    async def send(node: int, timeout: float) -> None:
        code, minutes = await _ask(cluster, node, timeout)
        if not is_temporary_of_leader(code):
            answers[node] = minutes

    async for timeout in tries(deadline):
        failed = await send_all({node: [timeout] for node in left}, send)
        # A broker that does not report settings answers with a permanent error.
        left -= answers.keys() | {node for node, error in failed.items() if not isinstance(error, WireError)}
        if not left:
            break
    found = [minutes for minutes in answers.values() if minutes is not None]
    return min(found) * 60.0 if found else None


async def _ask(cluster: Cluster, node: int, timeout: float) -> tuple[int, int | None]:
    """Ask one broker, because each knows only its own settings. Return the error code, and the minutes."""
    kind = codec.DescribeConfigsRequest
    resource = kind.DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(node), configuration_keys=[_SETTING]
    )
    answer = await cluster.ask(node, kind(resources=[resource]), timeout=timeout)
    for result in answer.results:
        for setting in result.configs:
            if setting.name == _SETTING and _NUMBER.fullmatch(setting.value or ""):
                return Code.NONE, int(setting.value)
        return result.error_code, None
    return Code.NONE, None
