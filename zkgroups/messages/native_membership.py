"""The membership of a consumer whose group was moved to the brokers. Its fence is the generation of the brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..consumer.events import EventKind, MemberStats
from ..consumer.generation import Generation, Offsets
from ..consumer.group_notes import unreadable_nodes
from ..consumer.membership import GroupLook, Holder, Partitions, is_cut_off, with_short_timeout
from ..consumer.options import Options
from ..core.rebalance.planner_election import AwaitedPlan
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, CurrentOffset, Registration
from ..exceptions import NotClaimedError, NotConnectedError
from ..zookeeper.ownership.followed_routes import GroupRoutes
from ..zookeeper.reading.topic_observer import TopicObserver
from ..zookeeper.session.registry_context import RegistryContext
from .client_log import CLIENT_LOG
from .native_client import NativeClient

_STRATEGIES: Final = ("range", "roundrobin")
"""Clients of all languages support them, so clients of other kinds can share the group on the brokers."""

_NOT_HELD: Final = "is not held on the brokers any more: stop working on it"


class NativeMembership:
    """Has the methods of `Membership`, for a member of a group on the brokers.

    The member needs a permit in ZooKeeper as long as it is in the group (`zookeeper/ownership/followed_routes.py`).
    """

    awaited: AwaitedPlan | None = None
    connected = True
    """The client waits for brokers by itself."""

    def __init__(
        self,
        context: RegistryContext,
        group: str,
        id: str,
        registration: Registration,
        *,
        routes: GroupRoutes,
        settings: Mapping[str, Any],
        options: Options,
        tell: Callable[[Partitions | None], object],
        stats: MemberStats,
    ) -> None:
        self.group_name = group
        self.id = id
        self.holders: dict[TopicPartition, Holder] = {}
        context = with_short_timeout(context)
        self.timeout = context.timeout
        self._session = context.session
        self._registration = registration
        self._routes = routes
        self._settings = native_settings(settings, group, id, options)
        self._patience = 2 * options.release_timeout + context.timeout
        self._tell = tell
        self._stats = stats
        self._observer = TopicObserver(context, lambda _at: tell(None), options.partitions)
        self._client: NativeClient | None = None
        self._subscribed: frozenset[str] | None = None
        self._held: Partitions = frozenset()

    def __str__(self) -> str:
        return f"{self.id!r} of group {self.group_name!r} on the brokers"

    @property
    def alive(self) -> bool:
        """True if the group is certain not to be in ZooKeeper again, and the brokers have taken nothing away."""
        return self._client is not None and not self._client.lost and self._routes.holds_permit(self.group_name)

    @property
    def cut_off(self) -> bool:
        """True if the connection to ZooKeeper was closed for good."""
        return is_cut_off(self._session)

    # Registration

    def register(self) -> None:
        """Get a permit, and create a client. It joins the group after the first look at the topics."""
        self._leave()
        if not self._routes.begin_use(self.group_name):
            self._routes.refresh()
            if not self._routes.begin_use(self.group_name):
                raise NotConnectedError(f"group {self.group_name!r} is being moved: waiting until that is finished")
        try:
            self._client = NativeClient(
                self._settings,
                changed=lambda: self._tell(None),
                released=lambda: not self._held,
                may_stay=lambda: self._routes.holds_permit(self.group_name),
                patience=self._patience,
                timeout=self.timeout,
            )
        except BaseException:
            self._routes.end_use(self.group_name)
            raise

    def deregister(self) -> None:
        """Leave the group."""
        self._leave()

    def _leave(self) -> None:
        self._held, self._subscribed = frozenset(), None
        if self._client is None:
            return
        if not self._client.close(self.timeout):
            raise NotConnectedError(f"the brokers have not let {self} leave within {self.timeout:g} s")
        self._client = None
        self._routes.end_use(self.group_name)

    def wait_connected(self) -> None:
        """Do nothing: the client waits for brokers by itself."""

    def close(self) -> None:
        """Stop observing topics, and leave the group if that has not happened."""
        self._observer.close()
        if self._client is not None:
            self._client.close(self.timeout)

    # Planning: the brokers do it

    def look(self) -> GroupLook:
        """Subscribe to the topics that exist now. Return the partitions that the brokers have assigned."""
        self._stats.looks += 1
        client = self._joined()
        found = self._observer.topics(self._registration)
        topics = frozenset(found.partitions)
        notes = {EventKind.MALFORMED: unreadable_nodes(found.unreadable)}
        if topics != self._subscribed:
            client.subscribe(topics)
            self._subscribed = topics
        return GroupLook(client.assignments, dict.fromkeys(client.assigned, 0), self._held, {}, notes)

    def _joined(self) -> NativeClient:
        if self._client is None:
            raise NotConnectedError(f"{self} is not in its group")
        return self._client

    def skip(self, _awaited: AwaitedPlan) -> list[str]:
        """Return nothing: no plan is awaited."""
        return []

    def claim(self, partitions: Partitions) -> Partitions:
        """Take the partitions that are still assigned."""
        client = self._joined()
        self._held |= partitions  # first: a revocation from now on waits until they are released
        granted = partitions & client.assigned
        self._held -= partitions - granted
        return granted

    def release(self, partitions: Partitions) -> None:
        """Release these partitions. The rebalance on the brokers goes on when all are released."""
        self._held -= partitions

    def await_free(self, partitions: Partitions) -> None:
        """Do nothing: the brokers assign partitions when they are free."""

    # Offsets

    def writer(self, _partitions: Partitions) -> Callable[[Offsets, Offsets], None]:
        """Return a function that commits offsets to the brokers."""
        client = self._joined()
        assignment = client.assignments

        def write(offsets: Offsets, _back_from: Offsets) -> None:
            if client is not self._client or not self.alive:
                first, *others = sorted(offsets)
                raise NotClaimedError(first, _NOT_HELD, also=others)
            client.commit(offsets, assignment=assignment)

        return write

    def commit_marked(self, generation: Generation, among: Partitions) -> None:
        """Commit the marked offsets of these partitions."""
        generation._commit_marked(among)

    def forget_offsets(self, partitions: Partitions) -> None:
        """Do nothing: a commit to the brokers compares no offsets."""

    def committed(self, partitions: Partitions) -> dict[TopicPartition, CurrentOffset]:
        """Read the committed offsets of these partitions from the brokers."""
        return {
            at: None if offset is None else CommittedOffset(self.group_name, at, offset)
            for at, offset in self._joined().committed(sorted(partitions)).items()
        }

    def topic_zxid(self, topic: str) -> int | None:
        """Return None: the brokers delete the offsets of a deleted topic."""

    def stream(self, _at: TopicPartition) -> int:
        """Return 0: on the brokers, a member has one stream."""
        return 0


def native_settings(settings: Mapping[str, Any], group: str, id: str, options: Options) -> dict[str, Any]:
    """Return the settings of a client that is a member of the group on the brokers, and fetches nothing."""
    strategies = [name for name in options.strategies() if name in _STRATEGIES] or [*_STRATEGIES]
    own = {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "error_cb": lambda _error: None,  # the client that fetches reports the same errors
        "group.id": group,
        "partition.assignment.strategy": ",".join(strategies),
    }
    users = {name: value for name, value in settings.items() if name not in ("stats_cb", "throttle_cb")}
    return {"client.id": id, "logger": CLIENT_LOG, **users, **own}
