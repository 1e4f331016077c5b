"""`TopicPartition`, the value that names a partition everywhere, and which names are possible."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple, Self

from ...input_errors import InvalidNameError

# Which names can be part of a znode path. Names are checked before any I/O, because nothing later checks them.
#
# A name with a slash would silently nest, an empty name would mean its parent, and a name that cannot be encoded
# would end kazoo's connection thread.


MAX_PARTITION: Final = 2**31 - 1
"""Partition numbers are Java ints."""

MAX_NAME_BYTES: Final = 2**18
"""Two such names fit into one request of a megabyte. ZooKeeper itself only limits the size of a request."""

# The characters that a ZooKeeper 3.9 server refuses, tried one by one. It sees characters beyond the basic plane as
# surrogates, and refuses those. One pattern for both would take a millisecond to compile.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE: Final = re.compile("[\ud800-\uf8ff\ufff0-\U0010ffff]")


def check_name(kind: str, name: object) -> str:
    """Return `name` if it can be the name of one znode; otherwise raise `InvalidNameError` for this kind of name."""
    if not isinstance(name, str):
        raise InvalidNameError(kind, name, "is not text")
    if not name:
        raise InvalidNameError(kind, name, "has no characters")
    if "/" in name:
        raise InvalidNameError(kind, name, "contains a slash")
    if name in {".", ".."}:
        raise InvalidNameError(kind, name, "is a relative path")
    if refused := _CONTROL.search(name) or _SURROGATE.search(name):
        raise InvalidNameError(kind, name, f"contains {refused[0]!a}, which ZooKeeper refuses")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidNameError(kind, name[:40] + "...", f"is longer than {MAX_NAME_BYTES} bytes")
    return name


def check_group(name: object) -> str:
    """Return the name of a group, or raise `InvalidNameError`."""
    return check_name("group", name)


def check_topic(name: object) -> str:
    """Return the name of a topic, or raise `InvalidNameError`."""
    return check_name("topic", name)


def is_topic(name: str) -> bool:
    """True if `name` is a valid topic name."""
    return _is_name("topic", name)


def is_group(name: str) -> bool:
    """True if `name` is a valid group name."""
    return _is_name("group", name)


def _is_name(kind: str, name: str) -> bool:
    try:
        check_name(kind, name)
    except InvalidNameError:
        return False
    return True


def check_instance(name: object) -> str:
    """Return the id of an instance, or raise `InvalidNameError`."""
    return check_name("instance", name)


def check_partition(partition: object) -> int:
    """Return the number of a partition, or raise `InvalidNameError`."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidNameError("partition", partition, "is not a number")
    if not 0 <= partition <= MAX_PARTITION:
        raise InvalidNameError("partition", partition, f"is not between 0 and {MAX_PARTITION}")
    return partition


@lru_cache(maxsize=2**16)  # most groups have the same few hundred numbers, thousands of times
def parse_partition(name: str) -> int | None:
    """Return the partition number that a znode is named after; None for other names, such as `+1` and `01`.

    >>> parse_partition("7"), parse_partition("07"), parse_partition("99999999999")
    (7, None, None)
    """
    if not re.fullmatch("0|[1-9][0-9]{0,9}", name) or int(name) > MAX_PARTITION:
        return None
    return int(name)


# `TopicPartition`, the value that names a partition everywhere.


class _Fields(NamedTuple):
    topic: str
    partition: int


class TopicPartition(_Fields):
    """One partition of one topic: its name, and the number of the partition. A tuple, so that millions are fast.

    Raises `InvalidNameError` if one of them is invalid.

    >>> sorted([TopicPartition("b", 2), TopicPartition("a", 10), TopicPartition("a", 9)])[-1]
    TopicPartition(topic='b', partition=2)
    >>> print(TopicPartition("orders", 0))
    orders/0
    """

    __slots__ = ()

    def __new__(cls, topic: str, partition: int) -> Self:
        return cls.checked(check_topic(topic), check_partition(partition))

    @classmethod
    def checked(cls, topic: str, partition: int) -> Self:
        """Create a partition from a name and a number that were checked before. Faster, for millions of them."""
        return tuple.__new__(cls, (topic, partition))

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def known_partition(topic: str | None, partition: int | None) -> TopicPartition | None:
    """Return a partition whose name and number were checked before; None if one of them is not known."""
    return None if topic is None or partition is None else _known(topic, partition)


_known = lru_cache(maxsize=2**16)(TopicPartition.checked)  # most groups have the same partitions


def check_at(at: object) -> TopicPartition:
    """Return `at`, or raise `InvalidNameError` if it is not a `TopicPartition`."""
    if not isinstance(at, TopicPartition):
        raise InvalidNameError("partition", at, "is not a TopicPartition")
    return at
