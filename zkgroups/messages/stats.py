"""What a consumer is doing, for health checks and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..consumer.events import MemberStats
from ..core.znodes.states import InstanceState
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import UnreadableNode
from ..exceptions import ZkgroupsException
from .runs import HandlerStats


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition that a consumer holds.

    - `position`: the offset of the next message that the consumer hands out; None before it has begun.
    - `lag`: the messages after `position`, as of the last fetch; None if that is not known.
    - `at_end`: True if the log has no message after `position`, as of the last fetch. A log may end with entries that
      are no messages, for example of a transaction. Then this is True only with the setting `enable.partition.eof` of
      confluent-kafka, and `lag` counts these entries.
    - `paused`: True after `Consumer.pause`.
    - `error`: why it cannot be read now. The consumer tries again, and reads its other partitions.
    """

    position: int | None
    lag: int | None
    at_end: bool
    paused: bool
    error: ZkgroupsException | None


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer at one moment. `Consumer.stats` returns it.

    - `state`: the state of its member, as other clients see it.
    - `messages`: messages handed out since the consumer was created.
    - `partitions`: the partitions that it holds.
    - `unreadable`: partitions that it has claimed, but leaves alone until somebody repairs their committed offsets.
    - `member`: the totals of its member.
    - `handlers`: the totals of `Consumer.run`; None before it was called.
    """

    state: InstanceState
    messages: int
    partitions: Mapping[TopicPartition, PartitionStats]
    member: MemberStats
    handlers: HandlerStats | None = None
    unreadable: Mapping[TopicPartition, UnreadableNode] = field(default_factory=dict)
