"""The states of groups and instances. They depend only on the znodes, so every observer sees the same ones."""

from __future__ import annotations

from enum import StrEnum


class GroupState(StrEnum):
    """The state of a group, named as in Kafka.

    Dead                 the group has no znode
    Empty                no instance is registered
    PreparingRebalance   instances are registered, but own nothing
    CompletingRebalance  some partitions are owned, others not
    Stable               every partition of every subscribed topic is owned by a live instance
    Unknown              the permission to read some registrations, owners or topics is missing
    """

    DEAD = "Dead"
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    UNKNOWN = "Unknown"


class InstanceState(StrEnum):
    """The state of an instance.

    Joining       registered, owns nothing, and a topic it subscribes to is not wholly owned
    AwaitingSync  owns something, and a topic it subscribes to is not wholly owned
    Stable        every partition of its topics has a live owner (perhaps another instance)
    Leaving       no longer registered, but still the owner of something
    Dead          its registration belongs to no session, and it owns nothing: it cannot be alive, and does not count
    Unknown       its registration cannot be read or evaluated, so it is unknown which partitions it should own
    """

    JOINING = "Joining"
    AWAITING_SYNC = "AwaitingSync"
    STABLE = "Stable"
    LEAVING = "Leaving"
    DEAD = "Dead"
    UNKNOWN = "Unknown"
