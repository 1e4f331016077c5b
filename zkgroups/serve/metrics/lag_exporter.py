"""The names and labels of kafka-lag-exporter, for its dashboards and alerts."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from ..picture.values import GroupPicture, PartitionPicture
from .exposition import Family, Kind, SeriesNames, escaped, labels


def partition_labels(cluster: str, group: GroupPicture) -> list[str]:
    """Return the labels of each partition, with its owner."""
    head = f'{{cluster_name="{escaped(cluster)}",group="{escaped(group.name)}",topic="'
    members = {member.id: member for member in group.members}
    found = []
    for partition in group.partitions:
        member = members.get(partition.owner or "")
        host, client = (member.host or "", member.client_id or "") if member else ("", "")
        owner = f'",member_host="{escaped(host)}",consumer_id="{escaped(partition.owner or "")}",client_id="'
        at = partition.at
        found.append(f'{head}{escaped(at.topic)}",partition="{at.partition}{owner}{escaped(client)}"}} ')
    return found


def topic_labels(cluster: str, group: str, topic: str) -> str:
    """Return the labels of a topic of a group."""
    return labels(cluster_name=cluster, group=group, topic=topic)


def group_labels(cluster: str, group: str) -> str:
    """Return the labels of a group."""
    return labels(cluster_name=cluster, group=group)


def log_labels(cluster: str, topic: str, partition: int) -> str:
    """Return the labels of a partition."""
    return labels(cluster_name=cluster, topic=topic, partition=str(partition))


def _gauge(name: str, help: str) -> Family:
    return Family(name, Kind.GAUGE, help)


def _most(group: GroupPicture) -> int | None:
    return max((each.lag for each in group.partitions if each.lag is not None), default=None)


def _seconds(partition: PartitionPicture) -> float | None:
    return partition.time_lag


NAMES: Final = SeriesNames(
    partition_labels,
    topic_labels,
    group_labels,
    log_labels,
    partitions=(
        (
            _gauge("kafka_consumergroup_group_offset", "Last group consumed offset of a partition."),
            attrgetter("offset"),
        ),
        (_gauge("kafka_consumergroup_group_lag", "Group offset lag of a partition."), attrgetter("lag")),
        (_gauge("kafka_consumergroup_group_lag_seconds", "Group time lag of a partition."), _seconds),
    ),
    topics=(
        (
            _gauge("kafka_consumergroup_group_topic_sum_lag", "Sum of group offset lag across topic partitions."),
            attrgetter("lag"),
        ),
    ),
    groups=(
        (_gauge("kafka_consumergroup_group_max_lag", "Max group offset lag across topic partitions."), _most),
        (
            _gauge("kafka_consumergroup_group_max_lag_seconds", "Max group time lag across topic partitions."),
            attrgetter("time_lag"),
        ),
        (_gauge("kafka_consumergroup_group_sum_lag", "Sum of group offset lag."), attrgetter("lag")),
    ),
    logs=(
        (_gauge("kafka_partition_latest_offset", "Latest offset of a partition."), attrgetter("end")),
        (_gauge("kafka_partition_earliest_offset", "Earliest offset of a partition."), attrgetter("start")),
    ),
)
