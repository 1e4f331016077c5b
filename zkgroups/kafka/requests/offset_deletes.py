"""Deleting single offsets of groups on the brokers, since release 2.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ...core.kafka_values import NativeOffset
from ...core.znodes.topic_partition import TopicPartition
from ...deadline import Deadline
from ...exceptions import OutcomeUnknownError
from ...input_errors import ZkgroupsException
from ..errors import error as error_of
from ..errors import is_temporary
from ..wire import codec
from ..wire.cluster import Cluster
from ..wire.error_codes import Code
from ..wire.errors import NotSentError
from .coordinators import Coordinators
from .fetch_offsets import Before, fetch
from .group_requests import GroupCode, ask_groups
from .metadata import versions

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
