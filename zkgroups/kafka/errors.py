"""Errors in the answers of brokers: which of them are temporary, and the errors that users see."""

from __future__ import annotations

from typing import Final

from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import (
    BrokersTooOldError,
    GroupInUseError,
    GroupNotFoundError,
    NoPermissionError,
    NotConnectedError,
    TooLargeError,
    UnknownPartitionError,
)
from ..input_errors import ZkgroupsException
from .wire.error_codes import Code

# The group has active members. To brokers, a request from outside the group then comes from an unknown member.
_IN_USE: Final = frozenset(
    {
        Code.FENCED_INSTANCE_ID,
        Code.FENCED_MEMBER_EPOCH,
        Code.GROUP_SUBSCRIBED_TO_TOPIC,
        Code.ILLEGAL_GENERATION,
        Code.NON_EMPTY_GROUP,
        Code.REBALANCE_IN_PROGRESS,
        Code.STALE_MEMBER_EPOCH,
        Code.UNKNOWN_MEMBER_ID,
    }
)
_TOO_LARGE: Final = frozenset({Code.INVALID_COMMIT_OFFSET_SIZE, Code.OFFSET_METADATA_TOO_LARGE})
_NOT_ALLOWED: Final = frozenset(
    {Code.TOPIC_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED}
)
_COORDINATOR: Final = frozenset(
    {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}
)
_LEADER: Final = frozenset(
    {
        Code.BROKER_NOT_AVAILABLE,
        Code.FENCED_LEADER_EPOCH,
        Code.KAFKA_STORAGE_ERROR,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.OFFSET_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.UNKNOWN_TOPIC_ID,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_ANYWHERE: Final = frozenset({Code.NETWORK_EXCEPTION, Code.REQUEST_TIMED_OUT, Code.THROTTLING_QUOTA_EXCEEDED})


_LOG_IN: Final = "log in as a user whom the ACLs of the brokers allow, with --command-config (in Python `properties`)"


def is_temporary(code: int) -> bool:
    """Return whether a request about a group may succeed if it is sent again."""
    return code in _COORDINATOR or code in _ANYWHERE


def is_temporary_of_leader(code: int) -> bool:
    """Return whether a request about a partition may succeed if it is sent again."""
    return code in _LEADER or code in _ANYWHERE


def error(code: int, what: str, *, group: str | None = None, at: TopicPartition | None = None) -> ZkgroupsException:
    """Return the error for a code in an answer. The message names `what` the request was about."""
    if group is not None and code in _IN_USE:
        return GroupInUseError(group, ())
    if group is not None and code == Code.GROUP_ID_NOT_FOUND:
        return GroupNotFoundError(group)
    if at is not None and code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownPartitionError(at)
    if code in _TOO_LARGE:
        return TooLargeError(f"the broker refused a request about {what}: {Code.words(code)}")
    if code in _NOT_ALLOWED:
        return NoPermissionError(what, cure=_LOG_IN)
    if code in (Code.UNSUPPORTED_VERSION, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT):
        return BrokersTooOldError(f"the broker is too old for a request about {what}: {Code.words(code)}")
    if is_temporary(code) or is_temporary_of_leader(code):
        return NotConnectedError(f"the brokers could not answer a request about {what} in time: {Code.words(code)}")
    return ZkgroupsException(f"the broker refused a request about {what}: {Code.words(code)}")
