"""The names and labels of kafka_exporter, for its dashboards and alerts."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from ..picture.values import GroupPicture
from .exposition import Family, Kind, SeriesNames, escaped, labels


def partition_labels(_cluster: str, group: GroupPicture) -> list[str]:
    """Return the labels of each partition. The part that a topic's partitions share is formatted once."""
    head = f'{{consumergroup="{escaped(group.name)}",topic="'
    topic, prefix, found = None, "", []
    for partition in group.partitions:
        at = partition.at
        if at.topic != topic:
            topic = at.topic
            prefix = f'{head}{escaped(topic)}",partition="'
        found.append(f'{prefix}{at.partition}"}} ')
    return found


def topic_labels(_cluster: str, group: str, topic: str) -> str:
    """Return the labels of a topic of a group."""
    return labels(consumergroup=group, topic=topic)


def group_labels(_cluster: str, group: str) -> str:
    """Return the labels of a group."""
    return labels(consumergroup=group)


def log_labels(_cluster: str, topic: str, partition: int) -> str:
    """Return the labels of a partition."""
    return labels(topic=topic, partition=str(partition))


def _gauge(name: str, help: str) -> Family:
    return Family(name, Kind.GAUGE, help)


NAMES: Final = SeriesNames(
    partition_labels,
    topic_labels,
    group_labels,
    log_labels,
    partitions=(
        (
            _gauge("kafka_consumergroup_current_offset", "Committed offset of a group in a partition."),
            attrgetter("offset"),
        ),
        (_gauge("kafka_consumergroup_lag", "Log end minus committed offset."), attrgetter("lag")),
    ),
    topics=(
        (
            _gauge("kafka_consumergroup_current_offset_sum", "Committed offsets of a group in a topic, added up."),
            attrgetter("offset"),
        ),
        (
            _gauge("kafka_consumergroup_lag_sum", "Sum of the known lags of a group in a topic, in messages."),
            attrgetter("lag"),
        ),
    ),
    groups=((_gauge("kafka_consumergroup_members", "Registered instances that may be alive."), attrgetter("living")),),
    logs=(
        (_gauge("kafka_topic_partition_current_offset", "Log end of a partition."), attrgetter("end")),
        (_gauge("kafka_topic_partition_oldest_offset", "Log start of a partition."), attrgetter("start")),
    ),
    all_topics=(
        (
            _gauge("kafka_topic_partitions", "Partitions of a topic."),
            lambda topic: len(topic.logs) or None,
        ),
    ),
)

BUILD_INFO: Final = _gauge("kafka_exporter_build_info", "Always 1. Dashboards of kafka_exporter look for it.")
