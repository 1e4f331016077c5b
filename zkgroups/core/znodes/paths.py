"""Where everything lives in ZooKeeper, and which names may be part of a path. Nothing else in the code spells a path.

    /consumers/<group>/ids/<instance>                 ephemeral    registration
    /consumers/<group>/owners/<topic>/<partition>     ephemeral    who holds the partition
    /consumers/<group>/offsets/<topic>/<partition>    persistent   next message to read, decimal text
    /consumers/<group>/migration                      persistent   our own: the mark of a migration
    (`migration_mark.py`)
    /zkgroups/targets/<cluster>:<target>              ephemeral    our own: a lock of a migration (`locks.py`)
    /brokers/topics/<topic>                           persistent   Kafka's, read only
    /brokers/ids/<broker>                             ephemeral    Kafka's, read only

A chroot may stand before every path; kazoo adds it. Names are checked here, before any I/O, because nothing later does:
a name with a slash would silently nest, an empty one would mean its parent, and one that cannot be encoded ends kazoo's
connection thread.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ...exceptions import InvalidNameError

if TYPE_CHECKING:
    from .values import TopicPartition

CONSUMERS: Final = "/consumers"
BROKER_TOPICS: Final = "/brokers/topics"
BROKER_IDS: Final = "/brokers/ids"
TARGETS: Final = "/zkgroups/targets"


class Part(StrEnum):
    """The directories of a group."""

    IDS = "ids"
    OWNERS = "owners"
    OFFSETS = "offsets"


MIGRATION: Final = "migration"
"""The mark of a migration, in a group."""

MAX_PARTITION: Final = 2**31 - 1
"""Partition numbers are Java ints."""

MAX_NAME_BYTES: Final = 2**18
"""Two such names fit into one request of a megabyte; ZooKeeper itself sets no limit but that of a request."""

# What a ZooKeeper server refuses, tried one by one on 3.9. Beyond the basic plane it sees surrogates, which it refuses.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


def check_name(kind: str, name: object) -> str:
    """Return `name` if it can be one znode of a path; otherwise say which `kind` of name it is and what is wrong."""
    if not isinstance(name, str):
        raise InvalidNameError(kind, name, "is not text")
    if not name:
        raise InvalidNameError(kind, name, "is empty")
    if "/" in name:
        raise InvalidNameError(kind, name, "contains a slash")
    if name in {".", ".."}:
        raise InvalidNameError(kind, name, "is a relative path")
    if refused := _REFUSED.search(name):
        raise InvalidNameError(kind, name, f"contains {refused[0]!a}, which ZooKeeper refuses")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidNameError(kind, name[:40] + "...", f"is longer than {MAX_NAME_BYTES} bytes")
    return name


def check_group(name: object) -> str:
    """Return the name of a group, or refuse it."""
    return check_name("group", name)


def check_topic(name: object) -> str:
    """Return the name of a topic, or refuse it."""
    return check_name("topic", name)


def is_topic(name: str) -> bool:
    """Whether it can be the name of a topic."""
    try:
        check_topic(name)
    except InvalidNameError:
        return False
    return True


def check_instance(name: object) -> str:
    """Return the id of an instance, or refuse it."""
    return check_name("instance", name)


def check_partition(partition: object) -> int:
    """Return the number of a partition, or refuse it."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidNameError("partition", partition, "is not a number")
    if not 0 <= partition <= MAX_PARTITION:
        raise InvalidNameError("partition", partition, f"is not between 0 and {MAX_PARTITION}")
    return partition


@lru_cache(maxsize=2**16)  # most groups have the same few hundred numbers, thousands of times
def parse_partition(name: str) -> int | None:
    """The partition that a znode's name means, or None: `+1`, `01` and Arabic digits are names of something else.

    >>> parse_partition("7"), parse_partition("07"), parse_partition("99999999999")
    (7, None, None)
    """
    if not re.fullmatch("0|[1-9][0-9]{0,9}", name) or int(name) > MAX_PARTITION:
        return None
    return int(name)


def join(parent: str, *names: str) -> str:
    """The path of a znode below `parent`, whose names are already known to be good."""
    return "/".join((parent.rstrip("/"), *names))


def parent(path: str) -> str:
    """The path above, `/` at the top."""
    return path.rpartition("/")[0] or "/"


class GroupPaths:
    """The paths of one group; making it checks the group's name.

    >>> GroupPaths("billing").offset(TopicPartition("orders", 3))
    '/consumers/billing/offsets/orders/3'
    """

    __slots__ = ("group", "ids", "mark", "offsets", "owners", "root")

    def __init__(self, group: str) -> None:
        self.group = check_group(group)
        self.root = join(CONSUMERS, group)
        self.ids = join(self.root, Part.IDS)
        self.owners = join(self.root, Part.OWNERS)
        self.offsets = join(self.root, Part.OFFSETS)
        self.mark = join(self.root, MIGRATION)

    def instance(self, instance: str) -> str:
        """The registration of an instance."""
        return join(self.ids, check_instance(instance))

    def owner(self, at: TopicPartition) -> str:
        """The owner of a partition."""
        return join(self.owners, at.topic, str(at.partition))

    def owned_topic(self, topic: str) -> str:
        """The directory of a topic's owners."""
        return join(self.owners, check_topic(topic))

    def offset(self, at: TopicPartition) -> str:
        """The offset of a partition."""
        return join(self.offsets, at.topic, str(at.partition))

    def offset_topic(self, topic: str) -> str:
        """The directory of a topic's offsets."""
        return join(self.offsets, check_topic(topic))


def target_lock(cluster: str | None, target: str) -> str:
    """The lock of a target of migrations, in the Kafka cluster of that name."""
    return join(TARGETS, check_name("target", f"{cluster or ''}:{target}"))


def broker_topic(topic: str) -> str:
    """Kafka's own node of a topic."""
    return join(BROKER_TOPICS, check_topic(topic))
