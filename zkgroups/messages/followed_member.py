"""A member that reports each generation on its own thread, before anybody can take it from the queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..consumer.any_membership import GroupPlace
from ..consumer.events import EventKind, MemberStats
from ..consumer.followed_group import FollowedGroup
from ..consumer.generation import Generation
from ..consumer.member import Member
from ..consumer.member_offsets import MemberOffsets
from ..consumer.membership import Membership, with_short_timeout
from ..consumer.options import Options
from ..consumer.rebalance_loop import Handed
from ..core.znodes.offset_sides import ONLY_ZOOKEEPER, Side
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import Registration
from ..zookeeper.group import Consumergroup
from ..zookeeper.ownership.followed_routes import GroupRoutes
from ..zookeeper.session.registry_context import context_of
from .broker_copy import BrokerCopy
from .broker_offsets import BrokerOffsets
from .native_membership import NativeMembership
from .offset_options import OffsetOptions
from .offsets_on_brokers import OffsetsOnBrokers, OffsetsWithCopy
from .side_reports import SideReports
from .zookeeper_copy import ZooKeeperCopy

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

    def _place(
        self, membership: Membership, registration: Registration, options: Options, stats: MemberStats
    ) -> GroupPlace:
        context, group = with_short_timeout(context_of(self.group)), self.group.name
        routes = GroupRoutes(context, f"member {membership.id}", log)

        def on_brokers() -> NativeMembership:
            return NativeMembership(
                context,
                group,
                membership.id,
                registration,
                routes=routes,
                settings=self._settings,
                options=options,
                tell=self._tell_changed,
                stats=stats,
            )

        return FollowedGroup(
            group, routes, in_zookeeper=membership, on_brokers=on_brokers, wake=lambda: self._loop.wake()
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
