"""A member that reports each generation on its own thread, before anybody can take it from the queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..consumer.events import EventKind, Partitions
from ..consumer.generation import Generation
from ..consumer.member import Member
from ..consumer.membership import MemberOffsets, Membership
from ..consumer.options import Options
from ..consumer.rebalance_loop import Handed
from ..core.znodes.topic_partition import TopicPartition, known_partition
from ..core.znodes.values import ONLY_ZOOKEEPER, Registration, Side
from ..exceptions import UnreachableError, ZkgroupsException
from ..zookeeper.group import Consumergroup
from ..zookeeper.ownership.routes import GroupRoutes
from ..zookeeper.session.session import context_of
from .broker_offsets import BrokerOffsets, OffsetOptions, SideReports
from .fetcher import Outage, confluent
from .native_membership import NativeMembership
from .offsets_on_brokers import BrokerCopy, OffsetsOnBrokers, OffsetsWithCopy, ZooKeeperCopy

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message


_COPY: Final = "copy offsets to the brokers"

log = logging.getLogger("zkgroups.consumer")


class FollowedMember(Member):
    """`begun` receives each generation when it begins, and `news` is called when the queue has something.

    `await_callback` waits for the result of a callback that is a coroutine function; by default in a loop of its own.
    """

    def __init__(
        self,
        *arguments: Any,
        begun: Callable[[Generation], object],
        news: Callable[[], object],
        settings: Mapping[str, Any],
        offsets: OffsetOptions,
        commits: bool,
        await_callback: Callable[[Any], object] | None = None,
        **options: Any,
    ) -> None:
        self._settings = settings
        self._offset_options = offsets
        self._sides = offsets.sides
        self._commits = commits
        self._begun = begun
        self._news = news
        self._other_wait = await_callback
        super().__init__(*arguments, **options)

    _moves = True

    def _on_brokers(
        self, membership: Membership, routes: GroupRoutes, registration: Registration, options: Options
    ) -> Callable[[], NativeMembership]:
        return lambda: NativeMembership(
            context_of(self.group),
            self.group.name,
            membership.id,
            registration,
            routes=routes,
            settings=self._settings,
            options=options,
            tell=self._tell_changed,
            stats=self._stats,
        )

    def _offsets_of(self, group: Consumergroup) -> MemberOffsets:
        sides, writes = self._sides, self._commits
        if sides == ONLY_ZOOKEEPER:
            return super()._offsets_of(group)
        brokers = BrokerOffsets(self._settings, group.name, context_of(group).timeout)
        reports = SideReports(
            sides.truth,
            differ=lambda at, text: self._loop._callbacks.event(EventKind.DIFFER, at, text),
            cannot=lambda error, at: self.cannot(_COPY, error, at),
            can=lambda: self.can(_COPY),
        )
        if sides.truth is Side.ZOOKEEPER:
            return OffsetsWithCopy(group, BrokerCopy(brokers, reports, writes=writes))
        copy = ZooKeeperCopy(group, reports, writes=writes) if sides.both else None
        return OffsetsOnBrokers(group, brokers, copy, initial=self._offset_options.initial, writes=writes)

    def _offer(self, found: Handed) -> None:
        if isinstance(found, Generation):
            self._begun(found)
        super()._offer(found)

    def _queue_changed(self) -> None:
        self._news()

    def _await_callback(self, awaitable: Any) -> None:
        if self._other_wait is not None:
            self._other_wait(awaitable)
        else:
            super()._await_callback(awaitable)

    @property
    def alive(self) -> bool:
        """True while all claims are certain to be held."""
        return self._membership.alive

    @property
    def closed(self) -> bool:
        """True after the member has left, for whatever reason."""
        return self._closed

    @property
    def on_own_thread(self) -> bool:
        """True for the thread of the member, which runs the callbacks."""
        return threading.current_thread() is self._thread

    def cannot(self, what: str, error: Exception, partitions: frozenset[TopicPartition]) -> None:
        """Report a failed step as the member reports its own: in the log once, and to `on_event`."""
        self._loop._callbacks.failed(what, error, partitions)

    def can(self, what: str) -> None:
        """Report that a step works again."""
        self._loop._callbacks.worked(what)


# Errors that arrive with messages: they stop a partition, or concern all brokers. Reported without any lock.


_REACH: Final = "reach the brokers"


@dataclass(slots=True)
class Fetched:
    """The result of one fetch: the messages of each partition up to its first error."""

    messages: list[Message] = field(default_factory=list)
    failed: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """The log end of each partition that has no more messages. Control records may come before the end."""
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
                result.ends.pop(known(message), None)
        elif at is None:
            result.of_client.append(error)
        elif error.code() == end:
            result.ends[at] = message.offset() or 0
        else:
            result.failed.setdefault(at, error)
    return result


def place(message: Message) -> TopicPartition | None:
    """Return the partition of a message; None for an error that concerns no partition."""
    return known_partition(message.topic(), message.partition())


def known(message: Message) -> TopicPartition:
    """Return the partition of a message without an error."""
    at = place(message)
    assert at is not None, "a message without an error has a partition"
    return at


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
