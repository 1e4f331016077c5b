"""Read the details of commits (`core/znodes/commit_details.py`): the metadata and the leader epoch of each offset."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.znodes.commit_details import CommitDetails, decode_details
from ...core.znodes.paths import GroupPaths
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import CommittedOffset, ForbiddenNode
from ..requests import bulk_read
from ..requests.node import Node
from ..session.registry_context import RegistryContext


def read_details(
    context: RegistryContext, paths: GroupPaths, offsets: Sequence[CommittedOffset]
) -> dict[TopicPartition, CommitDetails]:
    """Return the details of these offsets. Offsets without details are left out."""
    [topics] = bulk_read.children(context, [paths.details])
    if topics is None or not offsets:
        return {}
    some = offsets if isinstance(topics, ForbiddenNode) else [each for each in offsets if each.at.topic in topics]
    nodes = bulk_read.nodes(context, [paths.details_of(each.at) for each in some])
    return {
        each.at: decode_details(node.data, offset=each.offset, version=each.version)
        for each, node in zip(some, nodes, strict=True)
        if isinstance(node, Node)
    }
