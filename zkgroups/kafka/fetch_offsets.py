"""Reading the committed offsets of many groups: many groups per request since release 3.0, one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from ..core.kafka_values import NativeOffset
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline
from ..input_errors import ZkgroupsException
from .coordinators import Coordinators
from .group_requests import GroupCode, ask_groups
from .wire import codec
from .wire.cluster import Cluster
from .wire.error_codes import Code

_MANY: Final = 8
"""Since this version of OffsetFetch, a request is about many groups."""
_ALL_IS_NULL: Final = 2
"""Since this version, the list of topics for all offsets is null. It was empty before."""
_GROUPS: Final = 100

# Thousands of groups have offsets for the same partitions.
_at = lru_cache(maxsize=1 << 16)(TopicPartition)

Committed = Mapping[TopicPartition, NativeOffset]


async def fetch(
    cluster: Cluster, coordinators: Coordinators, groups: Sequence[str], deadline: Deadline
) -> dict[str, Committed | ZkgroupsException]:
    """Return the committed offsets of each group, sorted by partition, or the error."""

    async def ask(node: int, names: Sequence[str], timeout: float) -> Mapping[str, Committed | GroupCode]:
        if len(names) > 1 and ((await cluster.versions(node)).best(codec.OFFSET_FETCH) or 0) < _MANY:
            found: dict[str, Committed | GroupCode] = {}
            for name in names:
                found |= await ask(node, [name], timeout)
            return found
        version, answer = await cluster.exchange(node, codec.OFFSET_FETCH, _build(names), timeout=timeout)
        return dict(_read(names, version, codec.decode(codec.OffsetFetchRequest(), version, answer)))

    return await ask_groups(coordinators, groups, _GROUPS, ask, deadline)


def _build(names: Sequence[str]) -> Any:
    def build(version: int, correlation_id: int, client_id: str) -> bytes:
        if version >= _MANY:
            group = codec.OffsetFetchRequest.OffsetFetchRequestGroup
            request = codec.OffsetFetchRequest(groups=[group(group_id=name, topics=None) for name in names])
        else:
            request = codec.OffsetFetchRequest(group_id=names[0], topics=None if version >= _ALL_IS_NULL else [])
        return codec.encode(request, version, correlation_id, client_id)

    return build


def _read(names: Sequence[str], version: int, answer: Any) -> Iterator[tuple[str, Committed | GroupCode]]:
    if version >= _MANY:
        for each in answer.groups:
            yield each.group_id, _offsets(each.group_id, each.error_code, each.topics)
    elif len(names) == 1:
        yield names[0], _offsets(names[0], answer.error_code if version >= _ALL_IS_NULL else 0, answer.topics)


def _offsets(group: str, code: int, topics: Iterable[Any]) -> Committed | GroupCode:
    found: dict[TopicPartition, NativeOffset] = {}
    if code != Code.NONE:
        return GroupCode(code)
    for topic in sorted(topics, key=lambda each: str(each.name)):
        name = topic.name
        rows = [
            (each.partition_index, each.committed_offset, each.metadata, each.committed_leader_epoch, each.error_code)
            for each in topic.partitions
        ]
        for partition, offset, metadata, epoch, error in sorted(rows, key=itemgetter(0)):
            if error != Code.NONE:
                return GroupCode(error)
            if offset >= 0:  # negative: no offset
                at = _at(name, partition)
                found[at] = NativeOffset(group, at, offset, metadata or None, None if epoch < 0 else epoch)
    return found
