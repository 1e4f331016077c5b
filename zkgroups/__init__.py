"""Kafka's legacy consumer groups in ZooKeeper: register, claim, commit and release, beside members in other languages.

>>> with Registry.connect(zookeeper) as registry:
...     with registry.group("billing").instance() as me:
...         _ = me.register(["orders"])
...         with me.claim(TopicPartition("orders", 0)) as claim:
...             committed = claim.fetch()
...             claim.commit((committed.offset if committed else 0) + 100)
...     print(registry.group("billing").offsets.fetch(TopicPartition("orders", 0)).offset)
100
"""

from ._version import VERSION as __version__
from .consumer.events import EventKind, MemberEvent, MemberStats
from .consumer.generation import Generation
from .consumer.lone_member import LoneMember
from .consumer.member import Member
from .core.doctor.findings import Checkup, Finding, Remove, Repair, Rewrite, Severity
from .core.rebalance.assignment import (
    Assignment,
    Assignor,
    Members,
    Stream,
    range_assignor,
    round_robin_assignor,
    sticky_assignor,
)
from .core.znodes.group_description import (
    BlockedPartition,
    GroupDescription,
    GroupState,
    InstanceDescription,
    InstanceState,
    Obstacle,
    PartitionDescription,
    RegisteredInstance,
)
from .core.znodes.values import (
    Broker,
    CommittedOffset,
    Dialect,
    ForbiddenNode,
    MalformedNode,
    OffsetRange,
    Owner,
    Pattern,
    Registration,
    StartAt,
    Topic,
    TopicPartition,
    UnevaluableRegistration,
    UnreadableNode,
)
from .zookeeper.claim import Claim, Claims
from .zookeeper.group import Consumergroup, Copied
from .zookeeper.instance import Instance
from .zookeeper.offsets import Offsets
from .zookeeper.registry import Registry
from .zookeeper.session.acl import Acl, AclPolicy
from .zookeeper.session.credentials import SessionCredentials
from .zookeeper.session.options import Digest, Sasl, ShortSessionWarning, Tls
from .zookeeper.watch import Change, ChangeKind, Watch, Watched

__all__ = [
    "Acl",
    "AclPolicy",
    "Assignment",
    "Assignor",
    "BlockedPartition",
    "Broker",
    "Change",
    "ChangeKind",
    "Checkup",
    "Claim",
    "Claims",
    "CommittedOffset",
    "Consumergroup",
    "Copied",
    "Dialect",
    "Digest",
    "EventKind",
    "Finding",
    "ForbiddenNode",
    "Generation",
    "GroupDescription",
    "GroupState",
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
    "round_robin_assignor",
    "sticky_assignor",
]
