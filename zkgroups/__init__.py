"""Kafka's legacy consumer groups in ZooKeeper: register, claim, commit and release, beside members in other languages.

>>> from zkgroups import Registry, TopicPartition
>>> with Registry.connect(zookeeper) as registry:
...     with registry.group("billing").instance() as me:
...         _ = me.register(["orders"])
...         with me.claim(TopicPartition("orders", 0)) as claim:
...             committed = claim.fetch()
...             claim.commit((committed.offset if committed else 0) + 100)
...     print(registry.group("billing").offsets.fetch(TopicPartition("orders", 0)).offset)
100

Where to begin. `help(zkgroups.Registry)` explains a name:

    Registry              connect to ZooKeeper; list, describe, check and repair groups
    Consumergroup         one group, `registry.group("billing")`: describe, watch, copy or delete it
    Offsets               `group.offsets`: read offsets, and change them as an administrator
    Instance              `group.instance()`: register, and claim partitions that you choose
    Claim, Claims         the claimed partitions: commit and release them
    Consumer              a consumer of messages, which shares partitions with other members
    Member, Generation    the same without a Kafka client: it shares partitions, and your program reads them
    LoneMember            a consumer of all partitions, without a group
    Watch, Change         the changes of a group as they happen
    GroupChanges          which of all groups have changed, as it happens
    read_snapshot         a snapshot of all offsets as an Arrow table, without Spark

    zkgroups.exceptions   all errors, as a tree
    zkgroups.aio          `Member` and `Consumer` for asyncio
    zkgroups.history      every change to groups, from ZooKeeper's transaction logs
    zkgroups.kafka        the brokers: log ranges for lag, offsets at a time, Kafka-native groups
    zkgroups.migration    move whole groups to Kafka's offsets, and back
    zkgroups.spark        groups as Spark tables; snapshots, audits and migrations of thousands of groups
    zkgroups.testing      temporary servers for tests

`help` cannot explain three types. An `UnreadableNode` is a `MalformedNode` or a `ForbiddenNode`. An `Assignor` is a
function from `Members` to an `Assignment`, which is a dict from each `TopicPartition` to the `Stream` that reads it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ._version import VERSION as __version__

if TYPE_CHECKING:
    from .consumer.events import EventKind, MemberEvent, MemberStats
    from .consumer.generation import Generation
    from .consumer.lone_member import LoneMember
    from .consumer.member import Member
    from .core.doctor.findings import Checkup, Finding, Remove, Repair, Rewrite, Severity
    from .core.kafka_values import OffsetRange
    from .core.rebalance.assignors import range_assignor, round_robin_assignor, sticky_assignor
    from .core.rebalance.members import Assignment, Assignor, Members, Stream
    from .core.znodes.group_description import (
        BlockedPartition,
        GroupDescription,
        InstanceDescription,
        Obstacle,
        PartitionDescription,
        RegisteredInstance,
    )
    from .core.znodes.states import GroupState, InstanceState
    from .core.znodes.topic_partition import TopicPartition
    from .core.znodes.values import (
        Broker,
        CommittedOffset,
        Dialect,
        ForbiddenNode,
        MalformedNode,
        Owner,
        Pattern,
        Registration,
        StartAt,
        Topic,
        UnevaluableRegistration,
        UnreadableNode,
    )
    from .messages.consumer import Consumer
    from .messages.reading import ConsumerStats, PartitionStats
    from .messages.runs import DeadLetter, HandlerStats
    from .snapshots.read_snapshot import read_snapshot
    from .zookeeper.admin.groups import Copied
    from .zookeeper.claim import Claim, Claims
    from .zookeeper.group import Consumergroup
    from .zookeeper.instance import Instance
    from .zookeeper.offsets import Offsets
    from .zookeeper.registry import Registry
    from .zookeeper.session.connection import ShortSessionWarning
    from .zookeeper.session.security import Acl, AclPolicy, Digest, Sasl, SessionCredentials, Tls
    from .zookeeper.watch import Change, ChangedGroups, ChangeKind, GroupChanges, Watch, Watched

__all__ = [
    "Acl",
    "AclPolicy",
    "Assignment",
    "Assignor",
    "BlockedPartition",
    "Broker",
    "Change",
    "ChangeKind",
    "ChangedGroups",
    "Checkup",
    "Claim",
    "Claims",
    "CommittedOffset",
    "Consumer",
    "ConsumerStats",
    "Consumergroup",
    "Copied",
    "DeadLetter",
    "Dialect",
    "Digest",
    "EventKind",
    "Finding",
    "ForbiddenNode",
    "Generation",
    "GroupChanges",
    "GroupDescription",
    "GroupState",
    "HandlerStats",
    "Instance",
    "InstanceDescription",
    "InstanceState",
    "LoneMember",
    "MalformedNode",
    "Member",
    "MemberEvent",
    "MemberStats",
    "Members",
    "Obstacle",
    "OffsetRange",
    "Offsets",
    "Owner",
    "PartitionDescription",
    "PartitionStats",
    "Pattern",
    "RegisteredInstance",
    "Registration",
    "Registry",
    "Remove",
    "Repair",
    "Rewrite",
    "Sasl",
    "SessionCredentials",
    "Severity",
    "ShortSessionWarning",
    "StartAt",
    "Stream",
    "Tls",
    "Topic",
    "TopicPartition",
    "UnevaluableRegistration",
    "UnreadableNode",
    "Watch",
    "Watched",
    "__version__",
    "range_assignor",
    "read_snapshot",
    "round_robin_assignor",
    "sticky_assignor",
]

_MODULES: Final = {
    ".consumer.events": (
        "EventKind",
        "MemberEvent",
        "MemberStats",
    ),
    ".consumer.generation": ("Generation",),
    ".consumer.lone_member": ("LoneMember",),
    ".consumer.member": ("Member",),
    ".core.doctor.findings": (
        "Checkup",
        "Finding",
        "Remove",
        "Repair",
        "Rewrite",
        "Severity",
    ),
    ".core.kafka_values": ("OffsetRange",),
    ".core.rebalance.assignors": (
        "range_assignor",
        "round_robin_assignor",
        "sticky_assignor",
    ),
    ".core.rebalance.members": (
        "Assignment",
        "Assignor",
        "Members",
        "Stream",
    ),
    ".core.znodes.group_description": (
        "BlockedPartition",
        "GroupDescription",
        "InstanceDescription",
        "Obstacle",
        "PartitionDescription",
        "RegisteredInstance",
    ),
    ".core.znodes.states": (
        "GroupState",
        "InstanceState",
    ),
    ".core.znodes.topic_partition": ("TopicPartition",),
    ".core.znodes.values": (
        "Broker",
        "CommittedOffset",
        "Dialect",
        "ForbiddenNode",
        "MalformedNode",
        "Owner",
        "Pattern",
        "Registration",
        "StartAt",
        "Topic",
        "UnevaluableRegistration",
        "UnreadableNode",
    ),
    ".messages.consumer": ("Consumer",),
    ".messages.reading": (
        "ConsumerStats",
        "PartitionStats",
    ),
    ".messages.runs": (
        "DeadLetter",
        "HandlerStats",
    ),
    ".snapshots.read_snapshot": ("read_snapshot",),
    ".zookeeper.admin.groups": ("Copied",),
    ".zookeeper.claim": (
        "Claim",
        "Claims",
    ),
    ".zookeeper.group": ("Consumergroup",),
    ".zookeeper.instance": ("Instance",),
    ".zookeeper.offsets": ("Offsets",),
    ".zookeeper.registry": ("Registry",),
    ".zookeeper.session.connection": ("ShortSessionWarning",),
    ".zookeeper.session.security": (
        "Acl",
        "AclPolicy",
        "Digest",
        "Sasl",
        "SessionCredentials",
        "Tls",
    ),
    ".zookeeper.watch": (
        "Change",
        "ChangedGroups",
        "ChangeKind",
        "GroupChanges",
        "Watch",
        "Watched",
    ),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562), so that a program loads only what it needs."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | set(__all__))
