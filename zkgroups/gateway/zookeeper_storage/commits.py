"""Commits of members and of simple consumers.

A member's commit is fenced twice: by its generation, and by its owner nodes in the transaction that writes the offsets.
A refused member gets ILLEGAL_GENERATION: it joins again, and continues at the committed offsets of its new partitions.

A simple consumer has no member id. It may commit while nobody is registered in the group, and while the group is not
moved to the brokers. The transaction checks both. An administrator who resets offsets sends the same request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ...coordinator.storage.work import OffsetsStored, Result, WorkFailed
from ...coordinator.values.kafka_errors import KafkaError
from ...coordinator.values.offset_values import CommittedValue
from ...core.znodes.offset_codec import MAX_OFFSET
from ...core.znodes.topic_partition import TopicPartition
from ...exceptions import (
    GroupInUseError,
    NotClaimedError,
    NotRegisteredError,
    OffsetConflictError,
    OffsetWouldGoBackError,
)
from ...zookeeper.admin.transaction_guards import NobodyRegistered
from ...zookeeper.group import Consumergroup
from ...zookeeper.offset_writer import OffsetWriter
from ...zookeeper.requests.transaction import SessionFence
from ...zookeeper.session.registry_context import context_of
from .members import GatewayMember
from .stored_offsets import details_of

ATTEMPTS: Final = 5
"""The number of attempts to write, if other clients keep writing the same offset."""

Values = Mapping[TopicPartition, CommittedValue]


def commit_as_member(member: GatewayMember, offsets: Values) -> OffsetsStored:
    """Commit the offsets of partitions that the member owns, and return the errors of all others.

    Raise `SessionLostError` if the session of the member has expired: then it owns no partitions any more.
    """
    errors = _invalid(offsets)
    conflicts = 0
    while left := {at: value for at, value in offsets.items() if at not in errors}:
        try:
            numbers = {at: value.offset for at, value in left.items()}
            member.instance.commit_for_client(numbers, details_of(left))
            break
        except NotClaimedError as error:
            errors |= dict.fromkeys((error.at, *error.also), KafkaError.ILLEGAL_GENERATION)
        except OffsetWouldGoBackError as error:
            errors |= dict.fromkeys((error.at, *error.also), KafkaError.ILLEGAL_GENERATION)
        except NotRegisteredError:
            errors |= dict.fromkeys(left, KafkaError.ILLEGAL_GENERATION)
        except OffsetConflictError as error:
            conflicts += 1
            if conflicts == ATTEMPTS:
                errors[error.at] = KafkaError.ILLEGAL_GENERATION
                conflicts = 0
    return OffsetsStored(errors)


def commit_without_member(group: Consumergroup, offsets: Values, fence: SessionFence | None) -> Result:
    """Commit offsets for a simple consumer. They may go back, because the client chooses them."""
    errors = _invalid(offsets)
    left = {at: value for at, value in offsets.items() if at not in errors}
    context = context_of(group)
    writer = OffsetWriter(group.paths, context, fence)
    for attempt in range(ATTEMPTS):
        try:
            numbers = {at: value.offset for at, value in left.items()}
            guard = NobodyRegistered(group.paths, context, unmarked=True)
            writer.write(numbers, {}, backward=True, guard=guard, details=details_of(left))
            break
        except GroupInUseError:
            return WorkFailed(KafkaError.UNKNOWN_MEMBER_ID)
        except OffsetConflictError:
            if attempt == ATTEMPTS - 1:
                raise
    return OffsetsStored(errors)


def refused(offsets: Iterable[TopicPartition], error: KafkaError) -> OffsetsStored:
    """Refuse all offsets."""
    return OffsetsStored(dict.fromkeys(offsets, error))


def _invalid(offsets: Values) -> dict[TopicPartition, KafkaError]:
    """Return an error for each value that is not an offset: it would stop or rewind the old clients."""
    return {at: KafkaError.UNKNOWN_SERVER_ERROR for at, value in offsets.items() if not 0 <= value.offset <= MAX_OFFSET}
