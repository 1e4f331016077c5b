"""The errors of committed offsets on the brokers, as typed errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import (
    NoPermissionError,
    NotClaimedError,
    NotConnectedError,
    OutcomeUnknownError,
    RefusedError,
    ZkgroupsException,
)
from .client_settings import confluent

TAKEN: Final = "was given to another member on the brokers: stop working on it"

_LOG_IN: Final = "log in as a user whom the ACLs of the brokers allow, with settings in `kafka`"


def not_read(error: Any, at: TopicPartition) -> ZkgroupsException:
    """Return the error of a request for committed offsets."""
    if _is_forbidden(error):
        return NoPermissionError(f"the committed offset of {at} on the brokers", cure=_LOG_IN)
    return NotConnectedError(f"the brokers have not returned the committed offset of {at}: {error.str()}")


def refused_to_member(error: Any, partitions: Sequence[TopicPartition]) -> ZkgroupsException:
    """Return the error of a commit that a member of a group on the brokers has sent."""
    first, *others = partitions
    if _is_of_members(error):
        return NotClaimedError(first, TAKEN, also=others)
    return _not_committed(error, first)


def refused_to_simple_consumer(error: Any, group: str, at: TopicPartition) -> ZkgroupsException:
    """Return the error of a commit that came from outside of the group on the brokers."""
    if _is_of_members(error):
        return RefusedError(
            f"group {group!r} has members on the brokers, so these accept no commits of consumers in ZooKeeper: stop "
            "those members, or give one of the two groups another name"
        )
    return _not_committed(error, at)


def _not_committed(error: Any, at: TopicPartition) -> ZkgroupsException:
    if _is_forbidden(error):
        return NoPermissionError(f"the committed offset of {at} on the brokers", cure=_LOG_IN)
    kinds = confluent().KafkaError
    may_be_carried_out = (kinds.REQUEST_TIMED_OUT, kinds._TIMED_OUT, kinds._TRANSPORT, kinds._IN_PROGRESS)
    text = f"{at}: the brokers did not accept a commit: {error.str()}"
    return OutcomeUnknownError(text) if error.code() in may_be_carried_out else NotConnectedError(text)


def _is_forbidden(error: Any) -> bool:
    kinds = confluent().KafkaError
    return error.code() in (kinds.TOPIC_AUTHORIZATION_FAILED, kinds.GROUP_AUTHORIZATION_FAILED)


def _is_of_members(error: Any) -> bool:
    """True if the group has members, or other members than this one. These may have the partitions."""
    kinds = confluent().KafkaError
    return error.code() in (
        kinds.ILLEGAL_GENERATION,
        kinds.UNKNOWN_MEMBER_ID,
        kinds.REBALANCE_IN_PROGRESS,
        kinds.FENCED_INSTANCE_ID,
        kinds._ASSIGNMENT_LOST,
    )
