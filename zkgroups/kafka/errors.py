"""Conversion of confluent_kafka's errors to zkgroups errors, with the cause chained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import (
    AuthenticationError,
    GroupInUseError,
    GroupNotFoundError,
    NoPermissionError,
    NotConnectedError,
    TooLargeError,
    UnknownPartitionError,
)
from ..input_errors import ZkgroupsException

_STATE: Final = re.compile(r" \(after \d+ms in state [^)]*\)$")

NOT_ACCEPTED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
"""The login was refused."""

_NOT_ALLOWED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)

# The group has active members. Brokers use the errors for unknown members then.
_IN_USE: Final = frozenset(
    {
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.NON_EMPTY_GROUP,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)

_TOO_LARGE: Final = frozenset({KafkaError.INVALID_COMMIT_OFFSET_SIZE, KafkaError.OFFSET_METADATA_TOO_LARGE})

_RETRIABLE: Final = frozenset(
    {
        # The connection.
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._FAIL,
        KafkaError._RESOLVE,
        KafkaError._RETRY,
        KafkaError._SSL,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        # The leader of a partition, or what we know of it: the brokers' own list of topics was asked just before.
        KafkaError._NOENT,
        KafkaError._UNKNOWN_BROKER,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        # The coordinator of a group.
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)


def is_retriable(error: KafkaError) -> bool:
    """Return whether the same request may succeed later."""
    return error.code() in _RETRIABLE


def error_of(error: KafkaException) -> KafkaError:
    """Return the error that an exception of confluent_kafka contains."""
    found = error.args[0]
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(found))


def words(error: KafkaError) -> str:
    """Return the text of an error, without the details for developers of librdkafka."""
    return _STATE.sub("", error.str())


def translate(
    error: KafkaError, what: str, *, group: str | None = None, at: TopicPartition | None = None
) -> ZkgroupsException:
    """Return the public error for an error of confluent_kafka. `what` names the group, partition or request."""
    if group is not None and error.code() in _IN_USE:
        return GroupInUseError(group, ())
    if group is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
        return GroupNotFoundError(group)
    if at is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return UnknownPartitionError(at)
    if error.code() in _TOO_LARGE:
        return TooLargeError(f"{what}: {words(error)}")
    if error.code() in NOT_ACCEPTED:
        return AuthenticationError(f"{what}: {words(error)}")
    if error.code() in _NOT_ALLOWED:
        return NoPermissionError(what)
    if is_retriable(error):
        return NotConnectedError(f"no answer in time about {what}: {words(error)}")
    return ZkgroupsException(f"{what}: {error.name()} {words(error)}".rstrip())


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Convert errors of confluent_kafka that are raised in the block."""
    try:
        yield
    except KafkaException as error:
        raise translate(error_of(error), what) from error
