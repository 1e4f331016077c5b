"""Committed offsets, as Kafka's clients fetch and delete them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...coordinator.values.kafka_errors import KafkaError
from ...coordinator.values.offset_values import CommittedValue
from ...core.times import to_ms
from ...core.znodes.commit_details import CommitDetails
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import CommittedOffset, CurrentOffset, ForbiddenNode
from ...exceptions import ZkgroupsException
from ...zookeeper.group import Consumergroup
from ...zookeeper.reading.commit_details import read_details
from ...zookeeper.registry import Registry
from ...zookeeper.session.registry_context import context_of
from .kafka_errors import kafka_error_of

Offsets = dict[TopicPartition, CommittedValue]


def read_offsets(registry: Registry, name: str, wanted: tuple[TopicPartition, ...] | None) -> Offsets | KafkaError:
    """Read the offsets of these partitions, or with None all offsets of the group.

    A consumer asks for certain partitions. If one has no offset, its own settings decide where it starts. So it must
    get an error if an offset cannot be read: otherwise it would skip or repeat messages. A tool asks for all offsets,
    and gets the readable ones.
    """
    try:
        group = registry.group(name)
        if wanted is None:
            return _values(group, group.offsets)
        found = group.offsets.fetch_many(wanted).values()
        return _error_in(found) or _values(group, found)
    except ZkgroupsException as error:
        return kafka_error_of(error)


def details_of(offsets: Mapping[TopicPartition, CommittedValue]) -> dict[TopicPartition, CommitDetails]:
    """Return the details that clients committed. Most clients commit a leader epoch, few commit metadata."""
    return {
        at: CommitDetails(value.metadata, value.leader_epoch)
        for at, value in offsets.items()
        if value.metadata or value.leader_epoch >= 0
    }


def _error_in(found: Iterable[CurrentOffset]) -> KafkaError:
    for each in found:
        if isinstance(each, ForbiddenNode):
            return KafkaError.GROUP_AUTHORIZATION_FAILED
        if each is not None and not isinstance(each, CommittedOffset):
            return KafkaError.UNKNOWN_SERVER_ERROR
    return KafkaError.NONE


def _values(group: Consumergroup, found: Iterable[CurrentOffset]) -> Offsets:
    offsets = [each for each in found if isinstance(each, CommittedOffset)]
    details = read_details(context_of(group), group.paths, offsets)
    return {each.at: _value(each, details.get(each.at, CommitDetails())) for each in offsets}


def _value(found: CommittedOffset, details: CommitDetails) -> CommittedValue:
    return CommittedValue(found.offset, details.metadata, details.leader_epoch, to_ms(found.committed_at) / 1000)
