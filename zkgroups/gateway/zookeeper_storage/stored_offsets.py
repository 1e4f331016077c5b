"""Committed offsets, as Kafka's clients fetch them."""

from __future__ import annotations

from collections.abc import Iterable

from ...coordinator.values.kafka_errors import KafkaError
from ...coordinator.values.offset_values import CommittedValue
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import CommittedOffset, CurrentOffset, ForbiddenNode
from ...exceptions import ZkgroupsException
from ...zookeeper.registry import Registry
from .kafka_errors import kafka_error_of

Offsets = dict[TopicPartition, CommittedValue]


def read_offsets(registry: Registry, group: str, wanted: tuple[TopicPartition, ...] | None) -> Offsets | KafkaError:
    """Read the offsets of these partitions, or with None all offsets of the group.

    A consumer asks for certain partitions, and starts where its own settings say if one has no offset. So an offset
    that cannot be read must be an error then: otherwise the consumer would skip or repeat messages. A tool asks for all
    offsets, and gets the readable ones.
    """
    try:
        offsets = registry.group(group).offsets
        if wanted is None:
            return {found.at: _value(found) for found in offsets if isinstance(found, CommittedOffset)}
        return _values(offsets.fetch_many(wanted).values())
    except ZkgroupsException as error:
        return kafka_error_of(error)


def _values(found: Iterable[CurrentOffset]) -> Offsets | KafkaError:
    values: Offsets = {}
    for each in found:
        if isinstance(each, ForbiddenNode):
            return KafkaError.GROUP_AUTHORIZATION_FAILED
        if isinstance(each, CommittedOffset):
            values[each.at] = _value(each)
        elif each is not None:
            return KafkaError.UNKNOWN_SERVER_ERROR
    return values


def _value(found: CommittedOffset) -> CommittedValue:
    return CommittedValue(found.offset, committed_at=found.committed_ms / 1000)
