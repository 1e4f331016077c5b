"""Errors that arrive with messages: they stop a partition, or concern all brokers. Reported without any lock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ..core.znodes.topic_partition import TopicPartition, known_partition
from ..exceptions import UnreachableError, ZkgroupsException
from .client_log import Outage
from .client_settings import confluent
from .deliverer import Partitions
from .followed_member import FollowedMember

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_REACH: Final = "reach the brokers"


@dataclass(slots=True)
class Fetched:
    """The result of one fetch: the messages of each partition up to its first error."""

    messages: list[Message] = field(default_factory=list)
    failed: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    ends: set[TopicPartition] = field(default_factory=set)
    """Partitions whose log ends after these messages. Known only with the setting `enable.partition.eof`."""
    of_client: list[KafkaError] = field(default_factory=list)
    """Errors that concern no partition."""


def sorted_out(found: list[Message]) -> Fetched:
    """Separate messages from errors."""
    result, end = Fetched(), confluent().KafkaError._PARTITION_EOF
    for message in found:
        error, at = message.error(), place(message)
        if error is None:
            if at not in result.failed:
                result.messages.append(message)
                result.ends.discard(at)
        elif at is None:
            result.of_client.append(error)
        elif error.code() == end:
            result.ends.add(at)
        else:
            result.failed.setdefault(at, error)
    return result


def place(message: Message) -> TopicPartition | None:
    """Return the partition of a message; None for an error that concerns no partition."""
    return known_partition(message.topic(), message.partition())


class _Report(NamedTuple):
    what: str
    error: ZkgroupsException
    partitions: Partitions


class ErrorReports:
    """Collects errors, and reports them as those of the member: reporting runs callbacks, so no lock may be held."""

    def __init__(self, member: FollowedMember) -> None:
        self._member = member
        self._waiting: list[_Report] = []
        self._outage = Outage()
        self.pending = False
        """True if something is to be reported, perhaps the end of an outage."""

    def client_failed(self, error: KafkaError) -> None:
        """Note an error that concerns no partition. The client tries again by itself, many times a second."""
        self.pending = True
        if self._outage.failed(error):
            self._waiting.append(_Report(_REACH, UnreachableError(error.str()), frozenset()))

    def partition_failed(self, at: TopicPartition, error: ZkgroupsException) -> None:
        """Note an error of a partition."""
        self.pending = True
        self._waiting.append(_Report(f"read {at}", error, frozenset({at})))

    def report(self) -> None:
        """Report new errors."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._member.cannot(*each)

    def recovered(self, at: TopicPartition) -> None:
        """Report that a partition can be read again."""
        self._member.can(f"read {at}")

    def fetched(self, *, answered: bool) -> None:
        """Note a fetch, and whether brokers have answered it. Report the end of an outage."""
        if self._outage.ended(answered=answered):
            self._member.can(_REACH)
        self.pending = self._outage.begun
