"""Reading the committed offsets of many groups: many groups per request since release 3.0, one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..core.kafka_values import NativeOffset
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline
from ..input_errors import ZkgroupsException
from .coordinators import Coordinators
from .fetch_answers import MANY, read
from .fetch_shapes import Shapes
from .group_requests import GroupCode, ask_groups
from .wire import codec
from .wire.cluster import Cluster

_ALL_IS_NULL: Final = 2
"""Since this version, the list of topics for all offsets is null. It was empty before."""
_GROUPS: Final = 50

Committed = Mapping[TopicPartition, NativeOffset]


async def fetch(
    cluster: Cluster, coordinators: Coordinators, groups: Sequence[str], deadline: Deadline
) -> dict[str, Committed | ZkgroupsException]:
    """Return the committed offsets of each group, sorted by partition, or the error."""
    shapes = Shapes()

    async def ask(node: int, names: Sequence[str], timeout: float) -> Mapping[str, Committed | GroupCode]:
        if len(names) > 1 and ((await cluster.versions(node)).best(codec.OFFSET_FETCH) or 0) < MANY:
            found: dict[str, Committed | GroupCode] = {}
            for name in names:
                found |= await ask(node, [name], timeout)
            return found
        version, answer = await cluster.exchange(node, codec.OFFSET_FETCH, _build(names), timeout=timeout)
        return read(names, version, answer, shapes)

    return await ask_groups(coordinators, groups, _GROUPS, ask, deadline)


def _build(names: Sequence[str]) -> Any:
    def build(version: int, correlation_id: int, client_id: str) -> bytes:
        if version >= MANY:
            group = codec.OffsetFetchRequest.OffsetFetchRequestGroup
            request = codec.OffsetFetchRequest(groups=[group(group_id=name, topics=None) for name in names])
        else:
            request = codec.OffsetFetchRequest(group_id=names[0], topics=None if version >= _ALL_IS_NULL else [])
        return codec.encode(request, version, correlation_id, client_id)

    return build
