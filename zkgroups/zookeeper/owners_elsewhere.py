"""Owners that pykafka members name by other paths."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import Owner
from .group import Consumergroup


def owners_elsewhere(group: Consumergroup, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Owner]:
    """Return the owners of these partitions whose nodes have other paths, so that a claim would succeed beside them."""
    asked = set(partitions)
    return {
        owner.at: owner
        for owner in group.owners()
        if isinstance(owner, Owner) and owner.at in asked and owner.path != group.paths.owner(owner.at)
    }
