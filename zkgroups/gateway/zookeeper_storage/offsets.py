"""Committed offsets of a gateway's groups, as members commit them and Kafka's clients read and delete them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ...coordinator.storage import OffsetsRemoved, OffsetsStored, Result, WorkFailed
from ...coordinator.values import CommittedValue, FetchedOffsets, KafkaError
from ...core.times import to_ms
from ...core.znodes.codecs import MAX_OFFSET
from ...core.znodes.own_nodes import CommitDetails
from ...core.znodes.registrations import subscribed_topics
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import (
    CommittedOffset,
    CurrentOffset,
    ForbiddenNode,
    MalformedNode,
    Registration,
    Topic,
    UnreadableNode,
)
from ...deadline import Deadline
from ...exceptions import (
    AccessError,
    ConflictError,
    GroupInUseError,
    GroupMigratedError,
    GroupNotFoundError,
    InvalidNameError,
    NotClaimedError,
    NotRegisteredError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    SessionLostError,
    UnavailableError,
    ZkgroupsException,
)
from ...zookeeper.admin.transaction_guards import NobodyRegistered
from ...zookeeper.group import Consumergroup
from ...zookeeper.offsets import OffsetWriter
from ...zookeeper.reading.group_reader import read_details, read_groups, read_topics
from ...zookeeper.registry import Registry
from ...zookeeper.requests.transaction import SessionFence
from ...zookeeper.session.session import RegistryContext, Session, context_of
from .elections import NotCoordinatorError
from .members import GatewayMember

# Kafka's error for each error of zkgroups.
#
# Clients repeat a request after COORDINATOR_NOT_AVAILABLE, and show the other errors to their users. So every
# temporary error is converted to COORDINATOR_NOT_AVAILABLE.


log = logging.getLogger("zkgroups.gateway")

_BY_TYPE: tuple[tuple[type[ZkgroupsException], KafkaError], ...] = (
    (NotCoordinatorError, KafkaError.NOT_COORDINATOR),
    (InvalidNameError, KafkaError.INVALID_GROUP_ID),
    (AccessError, KafkaError.GROUP_AUTHORIZATION_FAILED),
    (GroupInUseError, KafkaError.NON_EMPTY_GROUP),
    (GroupNotFoundError, KafkaError.GROUP_ID_NOT_FOUND),
    # Clients retry until the migration of the group has ended. Then they may find the group on the brokers.
    (GroupMigratedError, KafkaError.COORDINATOR_NOT_AVAILABLE),
    (UnavailableError, KafkaError.COORDINATOR_NOT_AVAILABLE),
    (ConflictError, KafkaError.COORDINATOR_NOT_AVAILABLE),
)


def kafka_error_of(error: Exception) -> KafkaError:
    """Return Kafka's error. An error without one is logged; if it is not from zkgroups, with its traceback."""
    for kind, found in _BY_TYPE:
        if isinstance(error, kind):
            return found
    log.error("the storage of the gateway failed: %s", error, exc_info=not isinstance(error, ZkgroupsException))
    return KafkaError.UNKNOWN_SERVER_ERROR


# Retry while ZooKeeper is not available, as long as the session may still live.


PAUSE: Final = 0.05
"""In seconds, before each retry: a server may also refuse requests while it is connected."""


def may_try_again(error: Exception, session: Session, deadline: Deadline) -> bool:
    """Wait for a connection, and return True if the same work may succeed now.

    A write whose outcome is unknown may be retried, too: all work here first reads whether it was carried out.
    """
    if not isinstance(error, UnavailableError) or isinstance(error, SessionLostError) or deadline.passed:
        return False
    time.sleep(PAUSE)
    with suppress(ZkgroupsException):
        return session.wait_connected(deadline)
    return False


# Delete offsets for an administrator.


def remove_offsets(group: Consumergroup, partitions: Sequence[TopicPartition]) -> OffsetsRemoved:
    """Delete the offsets, if nobody is registered in the group.

    Otherwise refuse each with the error of a broker. A broker would delete offsets of topics to which nobody
    subscribes, but a transaction in ZooKeeper cannot check that nobody subscribes at this moment.
    """
    try:
        group.offsets.delete(partitions)
    except GroupInUseError:
        topics = _subscribed(group)
        return OffsetsRemoved(
            {
                at: KafkaError.GROUP_SUBSCRIBED_TO_TOPIC if at.topic in topics else KafkaError.NON_EMPTY_GROUP
                for at in partitions
            }
        )
    return OffsetsRemoved()


def _subscribed(group: Consumergroup) -> set[str]:
    """Return the topics of all registrations that can be read."""
    [view] = read_groups(context_of(group), [group.name], with_offsets=False)
    readable = (each.registration for each in view.instances if isinstance(each.registration, Registration))
    return {topic for registration in readable for topic in subscribed_topics(registration, view.partitions)}


# Committed offsets, as Kafka's clients fetch and delete them.


def read_offsets(registry: Registry, name: str, wanted: tuple[TopicPartition, ...] | None) -> FetchedOffsets:
    """Read the offsets of these partitions, or with None all offsets of the group.

    A consumer asks for certain partitions. If one has no offset, its own settings decide where it starts. So it must
    get an error if an offset cannot be read: otherwise it would skip or repeat messages. A tool asks for all offsets,
    and gets the readable ones.
    """
    try:
        group = registry.group(name)
        if wanted is None:
            return FetchedOffsets(KafkaError.NONE, _values(group, group.offsets))
        found = group.offsets.fetch_many(wanted)
        errors = {at: _error_of(each) for at, each in found.items() if isinstance(each, MalformedNode | ForbiddenNode)}
        return FetchedOffsets(KafkaError.NONE, _values(group, found.values()), errors)
    except ZkgroupsException as error:
        return FetchedOffsets(kafka_error_of(error))


def existing_only(found: Mapping[str, FetchedOffsets], context: RegistryContext) -> dict[str, FetchedOffsets]:
    """Leave out the offsets of partitions that do not exist, by group.

    A broker removes the offsets of a topic with the topic. Kafka's tools rely on that: they end at such an offset, and
    show no further group. In ZooKeeper the offsets remain. If nobody can say which topics exist, all are returned.
    """
    named = sorted({at.topic for fetched in found.values() for at in fetched.offsets})
    try:
        topics = dict(zip(named, read_topics(context, named), strict=True))
    except ZkgroupsException as error:
        log.info("could not find out which topics exist, so the offsets of deleted ones are shown, too: %s", error)
        return dict(found)

    def may_exist(at: TopicPartition) -> bool:
        topic = topics[at.topic]
        return at.partition in topic.partitions if isinstance(topic, Topic) else topic is not None

    return {
        group: replace(fetched, offsets={at: value for at, value in fetched.offsets.items() if may_exist(at)})
        for group, fetched in found.items()
    }


def details_of(offsets: Mapping[TopicPartition, CommittedValue]) -> dict[TopicPartition, CommitDetails]:
    """Return the details that clients committed. Most clients commit a leader epoch, few commit metadata."""
    return {
        at: CommitDetails(value.metadata, value.leader_epoch)
        for at, value in offsets.items()
        if value.metadata or value.leader_epoch >= 0
    }


def _error_of(found: UnreadableNode) -> KafkaError:
    log.warning("a client has asked for an offset that cannot be read: %s: %s", found.path, found.reason)
    is_forbidden = isinstance(found, ForbiddenNode)
    return KafkaError.GROUP_AUTHORIZATION_FAILED if is_forbidden else KafkaError.UNKNOWN_SERVER_ERROR


def _values(group: Consumergroup, found: Iterable[CurrentOffset]) -> dict[TopicPartition, CommittedValue]:
    offsets = [each for each in found if isinstance(each, CommittedOffset)]
    details = read_details(context_of(group), group.paths, offsets)
    return {each.at: _value(each, details.get(each.at, CommitDetails())) for each in offsets}


def _value(found: CommittedOffset, details: CommitDetails) -> CommittedValue:
    return CommittedValue(found.offset, details.metadata, details.leader_epoch, to_ms(found.committed_at) / 1000)


# Commits of members and of simple consumers.
#
# A member's commit is fenced twice: by its generation, and by its owner nodes in the transaction that writes the
# offsets. A refused member gets ILLEGAL_GENERATION: it joins again, and continues at the committed offsets of its new
# partitions.
#
# A simple consumer has no member id. It may commit while nobody is registered in the group, and while the group is
# not moved to the brokers. The transaction checks both. An administrator who resets offsets sends the same request.
#
# A commit of a negative offset deletes the committed offset. kafkajs resets offsets with -2. A broker would store the
# number, and clients would take it for no offset. Old clients could not read it.


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
            numbers = {at: None if value.offset < 0 else value.offset for at, value in left.items()}
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
    left = {at: value for at, value in offsets.items() if at not in errors and value.offset >= 0}
    deleted = [at for at, value in offsets.items() if value.offset < 0]
    context = context_of(group)
    writer = OffsetWriter(group.paths, context, fence)
    for attempt in range(ATTEMPTS):
        try:
            numbers = {at: value.offset for at, value in left.items()}
            guard = NobodyRegistered(group.paths, context, unmarked=True)
            writer.write(numbers, {}, backward=True, guard=guard, details=details_of(left))
            writer.delete(deleted, guard)
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
    """Return an error for each value that is too high for an offset: it would stop the old clients."""
    return {at: KafkaError.UNKNOWN_SERVER_ERROR for at, value in offsets.items() if value.offset > MAX_OFFSET}
