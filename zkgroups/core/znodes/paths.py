"""Where everything lives in ZooKeeper. No other module spells out a path.

    /consumers/<group>/ids/<instance>                 ephemeral    registration
    /consumers/<group>/owners/<topic>/<partition>     ephemeral    owner of the partition
    /consumers/<group>/offsets/<topic>/<partition>    persistent   committed offset: next message to read, decimal text
    /consumers/<group>/migration                      persistent   zkgroups only: migration mark (`own_nodes.py`)
    /consumers/<group>/details/<topic>/<partition>    persistent   zkgroups only: details of a commit through a gateway
    /zkgroups/targets/<cluster>:<target>              ephemeral    zkgroups only: lock of a migration target
    /zkgroups/moved/<layout>/<group>                  persistent   zkgroups only: mark of a group outside of /consumers
    /zkgroups/coordinators/<group>                    ephemeral    zkgroups only: the gateway that coordinates a group
    /zkgroups/routes/<group>                          persistent   zkgroups only: the group is on the brokers
    /zkgroups/routes/<group>/<gateway>                ephemeral    zkgroups only: a gateway that forwards the group
    /brokers/topics/<topic>                           persistent   Kafka's, read only
    /brokers/ids/<broker>                             ephemeral    Kafka's, read only
    /cluster/id                                       persistent   Kafka's, read only

A chroot may stand before every path; kazoo adds it. Names are checked in `topic_partition.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from .topic_partition import check_group, check_instance, check_name, check_topic

if TYPE_CHECKING:
    from .topic_partition import TopicPartition

CONSUMERS: Final = "/consumers"
BROKER_TOPICS: Final = "/brokers/topics"
BROKER_IDS: Final = "/brokers/ids"
CLUSTER_ID: Final = "/cluster/id"
TARGETS: Final = "/zkgroups/targets"
MOVED: Final = "/zkgroups/moved"
COORDINATORS: Final = "/zkgroups/coordinators"
ROUTES: Final = "/zkgroups/routes"


class Part(StrEnum):
    """The three directories of a group."""

    IDS = "ids"
    OWNERS = "owners"
    OFFSETS = "offsets"


MIGRATION: Final = "migration"
"""The name of the migration mark in a group."""


DETAILS: Final = "details"
"""The name of the directory of commit details in a group (`own_nodes.py`)."""


def join(parent: str, *names: str) -> str:
    """Return the path of a znode below `parent`. The names must be valid."""
    return "/".join((parent.rstrip("/"), *names))


def parent(path: str) -> str:
    """Return the parent path; `/` for a path at the top."""
    return path.rpartition("/")[0] or "/"


def mark_path(group: str) -> str:
    """Return the path of the migration mark of a group. Faster than `GroupPaths`, for thousands of groups."""
    return join(CONSUMERS, check_group(group), MIGRATION)


def layout_mark_path(layout: str, group: str) -> str:
    """Return the path of the mark of a group whose offsets have another layout, at this location.

    >>> layout_mark_path("storm:/kafkastorm", "orders")
    '/zkgroups/moved/storm:%2Fkafkastorm/orders'
    """
    return join(MOVED, check_name("layout", layout.replace("%", "%25").replace("/", "%2F")), check_group(group))


class GroupPaths:
    """The paths of one group. Raises `InvalidNameError` if the group name is invalid.

    >>> GroupPaths("billing").offset(TopicPartition("orders", 3))
    '/consumers/billing/offsets/orders/3'
    """

    __slots__ = ("details", "group", "ids", "mark", "offsets", "owners", "root")

    def __init__(self, group: str) -> None:
        self.group = check_group(group)
        self.root = join(CONSUMERS, group)
        self.ids = join(self.root, Part.IDS)
        self.owners = join(self.root, Part.OWNERS)
        self.offsets = join(self.root, Part.OFFSETS)
        self.mark = join(self.root, MIGRATION)
        self.details = join(self.root, DETAILS)

    def instance(self, instance: str) -> str:
        """The path of an instance's registration."""
        return join(self.ids, check_instance(instance))

    def owner(self, at: TopicPartition) -> str:
        """The path of a partition's owner node."""
        return join(self.owners, at.topic, str(at.partition))

    def owned_topic(self, topic: str) -> str:
        """The directory of a topic's owner nodes."""
        return join(self.owners, check_topic(topic))

    def offset(self, at: TopicPartition) -> str:
        """The path of a partition's committed offset."""
        return join(self.offsets, at.topic, str(at.partition))

    def details_of(self, at: TopicPartition) -> str:
        """The path of the details of a partition's last commit through a gateway."""
        return join(self.details, at.topic, str(at.partition))

    def offset_topic(self, topic: str) -> str:
        """The directory of a topic's offsets."""
        return join(self.offsets, check_topic(topic))


def target_lock(cluster: str | None, target: str) -> str:
    """The path of the lock of a migration target in the Kafka cluster of that name."""
    return join(TARGETS, check_name("target", f"{cluster or ''}:{target}"))


def coordinator(group: str) -> str:
    """The path of the node of the gateway that coordinates a group."""
    return join(COORDINATORS, check_group(group))


def route_path(group: str) -> str:
    """The path of the route of a group (`own_nodes.py`)."""
    return join(ROUTES, check_group(group))


def broker_topic(topic: str) -> str:
    """The path of Kafka's node of a topic."""
    return join(BROKER_TOPICS, check_topic(topic))
