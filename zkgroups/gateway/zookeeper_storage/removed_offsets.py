"""Delete offsets for an administrator."""

from __future__ import annotations

from collections.abc import Sequence

from ...coordinator.storage.work import OffsetsRemoved
from ...coordinator.values.kafka_errors import KafkaError
from ...core.znodes.subscribed_topics import subscribed_topics
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import Registration
from ...exceptions import GroupInUseError
from ...zookeeper.group import Consumergroup
from ...zookeeper.reading.group_reader import read_groups
from ...zookeeper.session.registry_context import context_of


def remove_offsets(group: Consumergroup, partitions: Sequence[TopicPartition]) -> OffsetsRemoved:
    """Delete the offsets, if nobody is registered in the group.

    Otherwise refuse each with the error of a broker. A broker would delete offsets of topics to which nobody
    subscribes, but a transaction in ZooKeeper cannot check that nobody subscribes at this moment.
    """
    try:
        group.offsets.delete(partitions)
    except GroupInUseError:
        topics = _subscribed(group)
        return OffsetsRemoved(
            {
                at: KafkaError.GROUP_SUBSCRIBED_TO_TOPIC if at.topic in topics else KafkaError.NON_EMPTY_GROUP
                for at in partitions
            }
        )
    return OffsetsRemoved()


def _subscribed(group: Consumergroup) -> set[str]:
    """Return the topics of all registrations that can be read."""
    [view] = read_groups(context_of(group), [group.name], with_offsets=False)
    readable = (each.registration for each in view.instances if isinstance(each.registration, Registration))
    return {topic for registration in readable for topic in subscribed_topics(registration, view.partitions)}
