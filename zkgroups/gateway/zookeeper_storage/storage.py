"""The storage itself: work goes in, and its result comes back as an event."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from ...coordinator import storage
from ...coordinator.actions import Event, GroupMoved, WorkFinished
from ...coordinator.config import AssignmentBy, CoordinatorConfig
from ...coordinator.consumer_protocol import CONSUMER, Subscription, encode_assignment, encode_subscription
from ...coordinator.values import DescribedMember, FetchedOffsets, KafkaError
from ...core.rebalance.shared_plan import agreed_strategy
from ...core.znodes.group_description import GroupView, InstanceDescription, describe
from ...core.znodes.own_nodes import RouteState
from ...core.znodes.paths import coordinator
from ...core.znodes.registrations import host_of_instance, subscribed_topics
from ...core.znodes.states import GroupState, InstanceState
from ...core.znodes.topic_partition import TopicPartition, check_group
from ...core.znodes.values import Registration
from ...deadline import Deadline
from ...exceptions import (
    GroupMigratedError,
    GroupNotFoundError,
    InvalidNameError,
    InvalidOptionError,
    ZkgroupsException,
)
from ...zookeeper.admin.migration_marks import refuse_marked
from ...zookeeper.ownership.routes import GroupRoutes
from ...zookeeper.reading.group_reader import read_groups
from ...zookeeper.registry import Registry
from ...zookeeper.session.session import RegistryContext, context_of
from ..groups.coordinator_host import BrokerTopics
from ..protocol.addresses import GatewayAddress
from .elections import Elections, NotCoordinatorError, SessionMonitor, WorkQueues
from .group import GatewayGroup, GroupSettings, loss_of
from .members import TopicPartitions
from .offsets import existing_only, kafka_error_of, may_try_again, read_offsets, remove_offsets

# Groups in ZooKeeper, as Kafka's tools show them.
#
# Each registered instance is a member. Its client id is the name of its client (`scala`, `kazoo-go`, `pykafka` or
# `zkgroups`), its host is the one in its id, and its assignment is the partitions that it owns. A member of another
# gateway is shown with the client id and the host of its Kafka client. An instance whose registration cannot be read
# has no client id and no subscription. The states have the same names as Kafka's.


_NOT_MEMBERS: Final = (InstanceState.DEAD, InstanceState.LEAVING)


def stored_groups(
    context: RegistryContext, groups: Iterable[str], own: Mapping[str, Container[str]]
) -> dict[str, storage.StoredGroup]:
    """Describe the groups that exist, without this gateway's members. `own` has the ids of these members by group."""
    views = read_groups(context, filter(_is_group, groups), with_offsets=False)
    return {view.group: stored_group(view, own.get(view.group, ())) for view in views if view.exists}


def _is_group(name: str) -> bool:
    try:
        check_group(name)
    except InvalidNameError:
        return False
    return True


def stored_group(view: GroupView, own: Container[str] = ()) -> storage.StoredGroup:
    """Describe one group, without the members in `own`."""
    description = describe(view)
    registered = {each.id: each.registration for each in view.living if isinstance(each.registration, Registration)}
    members = tuple(_members(view, description.instances, own))
    protocol = agreed_strategy(registered) if description.state is GroupState.STABLE else ""
    return storage.StoredGroup(description.state, CONSUMER, protocol, members)


def _members(
    view: GroupView, instances: Iterable[InstanceDescription], own: Container[str]
) -> Iterator[DescribedMember]:
    for instance in instances:
        if instance.state in _NOT_MEMBERS or instance.id in own:
            continue
        assignment = encode_assignment(instance.owned)
        if not isinstance(registration := instance.registration, Registration):
            yield DescribedMember(instance.id, None, "", _host(view.group, instance.id), b"", assignment)
            continue
        topics = subscribed_topics(registration, view.partitions)
        yield DescribedMember(
            instance.id,
            None,
            registration.client_id or str(registration.dialect),
            registration.client_host or _host(view.group, instance.id),
            encode_subscription(Subscription(frozenset(topics))),
            assignment,
        )


def _host(group: str, id: str) -> str:
    """Return the host of an instance as Kafka shows it, with a slash before an address that was not looked up."""
    host = host_of_instance(group, id)
    return "" if host is None else f"/{host}"


log = logging.getLogger("zkgroups.gateway")

_GROUP_THREADS: Final = 8
"""Threads for the work of groups. They wait for ZooKeeper most of the time."""
_READING_THREADS: Final = 2
"""Threads for lists and descriptions of many groups, which must not delay the commits of members."""
_EXPIRING: Final = (
    storage.StoreOffsets | storage.ReadOffsets | storage.ListStored | storage.DescribeStored | storage.LocateGroups
)
"""Work that is left out if it begins too late, because the client no longer waits, and asks again."""
_FIRST_SECOND: Final = 1_767_225_600
"""The beginning of 2026."""
_LAST_START: Final = 2**30
"""The highest number of a first generation. Numbers of generations have 31 bits."""


def _first_generation() -> int:
    """Return the seconds since 2026, which are usually above the generations of earlier gateways.

    If the clocks of gateways differ, a number may be used again. That is harmless: a request with a generation also has
    a member id. A coordinator knows only the ids that it has given itself, and refuses all others. A negative number
    would not be harmless: commits with it do not come from members.
    """
    return min(max(int(time.time()) - _FIRST_SECOND, 0), _LAST_START)


def coordinator_config(*, storage_timeout: float = 15.0, report_commits: bool = False) -> CoordinatorConfig:
    """Return the settings for a coordinator with this storage.

    The coordinator assigns the partitions, because members of other clients take part. Offsets are never deleted
    because of their age: the old clients never did that.
    """
    return CoordinatorConfig(
        assignment_by=AssignmentBy.COORDINATOR,
        preferred_protocols=("range",),
        only_consumers=True,
        leader_name="zkgroups-gateway",
        storage_timeout=storage_timeout,
        offset_retention=None,
        report_commits=report_commits,
    )


class ZooKeeperStorage:
    """Keeps the groups of a coordinator in ZooKeeper. Make the settings of the coordinator with `coordinator_config`.

    `on_event` gets the events for the coordinator: results of work, and changes that other clients make. It is called
    on the threads of this storage, so it must be thread-safe, and must not block:

        storage = ZooKeeperStorage(registry, lambda event: loop.call_soon_threadsafe(process, event), read_only=True)

    With `read_only`, nothing is ever written: the coordinator lists and describes groups, and returns their offsets.
    All other requests get GROUP_AUTHORIZATION_FAILED. Every client knows this error, does not repeat the request, and
    shows the name of the group. It means that a client may see a group, but not take part in it.

    With an `address`, gateways elect one coordinator for each group (`elections.py`). Clients of the other gateways get
    the address of the coordinator. Without one, each gateway treats the members of the others as other clients.

    The partitions of topics come from ZooKeeper, or from `brokers` that keep their topics elsewhere: then the registry
    asks them, too.

    The storage keeps `routes` up to date until it is closed. The members of a group that gets a route leave.

    The members belong to the session of the registry. It must not have a `session_file`: a later process would resume
    the session together with the old members, although their clients join again as new members.

    `close` releases and deregisters all members, and ends the threads. It does not close the registry.
    """

    def __init__(
        self,
        registry: Registry,
        on_event: Callable[[Event], object],
        *,
        read_only: bool = False,
        settings: GroupSettings | None = None,
        address: GatewayAddress | None = None,
        routes: GroupRoutes | None = None,
        brokers: BrokerTopics | None = None,
    ) -> None:
        self._registry = registry
        self._topics = None if brokers is None else TopicPartitions(context_of(registry), brokers)
        if self._topics is not None:
            registry.read_topics_from(self._topics)
        self._context = context_of(registry)
        if self._context.session.is_resumable and not read_only:
            raise InvalidOptionError("session_file", True, "a gateway needs a new session each time: leave it out")
        self._on_event = on_event
        self._read_only = read_only
        self._settings = GroupSettings() if settings is None else settings
        self._elections = Elections(self._context, None if read_only else address)
        self._lock = threading.Lock()  # guards the three fields below, and is never held during a call
        self._groups: dict[str, GatewayGroup] = {}
        self._woken: set[str] = set()
        self._is_refreshing = False
        self._is_ending = False
        self._group_queues = WorkQueues("group", _GROUP_THREADS)
        self._read_queues = WorkQueues("read", _READING_THREADS)
        self._upkeep_queues = WorkQueues("upkeep", 1)  # so that no list of a client delays the routes
        self._routes = GroupRoutes(self._context, "", log) if routes is None else routes
        self._routes.open(self._refresh_routes, self._route_changed)
        self._monitor = SessionMonitor(
            self._check_sessions, self._retry, self._reconcile, self._settings.reconcile_every
        )

    def start(self, work_id: int, work: storage.Work) -> storage.Result | None:
        """Put work into the queue of its group. Its result comes as an event."""
        queues, key = self._group_queues, self._group_of(work)
        if key is None:
            queues, key = self._read_queues, f"work {work_id}"
        deadline = Deadline(self._context.timeout)

        def task() -> None:
            if isinstance(work, _EXPIRING) and deadline.passed:
                result: storage.Result | None = storage.WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE)
            else:
                result = self._result_of(work_id, work, deadline)
            if result is not None:
                self._send(WorkFinished(work_id, result))

        return None if queues.put(key, task) else storage.WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE)

    def may_be_lost(self, name: str) -> bool:
        """True if another gateway may have become the coordinator of this group."""
        return self._elections.may_be_lost(name)

    def let_leave(self) -> bool:
        """Let the members of all groups commit and leave. Return whether none is left."""
        if not self._is_ending:
            self._is_ending = True
            for group in self._known_groups():
                self._wake(group.name)
        return not any(len(group.members) or group.members.leaving for group in self._known_groups())

    def close(self) -> None:
        """Finish the work that was started, let all members leave, and end the threads. Later work fails at once."""
        self._monitor.close()
        for group in self._known_groups():
            self._group_queues.put(group.name, group.leave)
        for name in self._elections.won():
            self._group_queues.put(name, partial(self._release, name))
        self._upkeep_queues.put("routes", self._routes.close)
        for queues in (self._group_queues, self._read_queues, self._upkeep_queues):
            queues.close(self._context.timeout)

    def __enter__(self) -> ZooKeeperStorage:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _group_of(self, work: storage.Work) -> str | None:
        """Return the group whose work must stay in order. None for reads of many groups."""
        match work:
            case storage.ListStored() | storage.DescribeStored():
                return None
            case storage.LocateGroups(names):
                return names[0] if len(names) == 1 else None
            case storage.ReadOffsets(groups):
                return next(iter(groups)) if len(groups) == 1 else None
            case _:
                return work.group

    def _send(self, event: Event) -> None:
        try:
            self._on_event(event)
        except Exception:
            log.exception("the gateway could not process an event of its storage")

    def _result_of(self, work_id: int, work: storage.Work, deadline: Deadline) -> storage.Result | None:
        while True:
            try:
                return self._carry_out(work_id, work)
            except NotCoordinatorError as error:
                log.info("%s", error)
                if (name := self._group_of(work)) is not None:
                    self._lose(name)
                return storage.WorkFailed(KafkaError.NOT_COORDINATOR)
            except Exception as error:
                if not may_try_again(error, self._context.session, deadline):
                    if isinstance(error, GroupMigratedError) and self._routes.state(error.group) is None:
                        log.warning("%s; until then its clients wait", error)
                    return storage.WorkFailed(kafka_error_of(error))

    def _carry_out(self, work_id: int, work: storage.Work) -> storage.Result | None:
        """Carry out work. None if the result comes later."""
        match work:
            case storage.ListStored():
                return storage.StoredListed(stored_groups(self._context, self._registry.groups(), self._own_ids()))
            case storage.LocateGroups(names):
                if not self._context.session.connected:  # otherwise the other requests of this client would wait, too
                    return storage.WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE)
                return storage.GroupsLocated(self._elections.elsewhere(names), self._elections.are_held)
            case storage.DescribeStored(names):
                elsewhere = self._elections.elsewhere(names)
                here = [name for name in names if name not in elsewhere]
                described = stored_groups(self._context, here, self._own_ids())
                return storage.StoredDescribed(described | dict.fromkeys(elsewhere, KafkaError.NOT_COORDINATOR))
            case storage.ReadOffsets(wanted):
                return self._read_offsets(wanted)
            case _ if self._read_only:
                return storage.WorkFailed(KafkaError.GROUP_AUTHORIZATION_FAILED)
            case _:
                return self._write(work_id, work)

    def _read_offsets(self, wanted: Mapping[str, tuple[TopicPartition, ...] | None]) -> storage.OffsetsRead:
        elsewhere = self._elections.elsewhere(wanted)
        here = {name: some for name, some in wanted.items() if name not in elsewhere}
        found = {name: read_offsets(self._registry, name, some) for name, some in here.items()}
        if self._topics is not None:  # otherwise this may be the wrong ZooKeeper for topics
            found |= existing_only({name: found[name] for name, some in here.items() if some is None}, self._context)
        return storage.OffsetsRead(found | dict.fromkeys(elsewhere, FetchedOffsets(KafkaError.NOT_COORDINATOR)))

    def _write(
        self,
        work_id: int,
        work: storage.LoadGroup
        | storage.PerformAssignment
        | storage.StoreGeneration
        | storage.ReleaseMembers
        | storage.StoreOffsets
        | storage.RemoveOffsets
        | storage.ExpireOffsets
        | storage.RemoveGroup,
    ) -> storage.Result | None:
        if isinstance(
            work, storage.PerformAssignment | storage.StoreOffsets | storage.RemoveOffsets | storage.RemoveGroup
        ):
            self._elections.win(work.group)
        match work:
            case storage.LoadGroup(name):
                return self._load(name)
            case storage.PerformAssignment():
                self._group(work.group).assign(work_id, work)
                return None
            case storage.StoreGeneration():
                stored = self._group(work.group).store_generation(work)
                self._forget_unused(work.group)
                return stored
            case storage.ReleaseMembers():
                return self._group(work.group).remove(work)
            case storage.StoreOffsets():
                try:
                    return self._group(work.group).store_offsets(work)
                finally:
                    self._forget_unused(work.group)
            case storage.RemoveOffsets(name, partitions):
                return remove_offsets(self._registry.group(name), partitions)
            case storage.ExpireOffsets(name):
                return storage.OffsetsExpired(sum(1 for _offset in self._registry.group(name).offsets))
            case storage.RemoveGroup(name):
                return self._remove(name)

    def _load(self, name: str) -> storage.GroupLoaded:
        group = self._registry.group(name)
        with self._lock:
            known = self._groups.get(name)
        if known is not None:
            known.drop_members()  # the coordinator no longer knows them
        refuse_marked(group.paths, self._context)
        if (other := self._elections.elsewhere([name]).get(name)) is not None:
            raise NotCoordinatorError(name, other)
        if exists := group.exists():
            self._elections.win(name)
        self._elections.forget_loss(name)
        return storage.GroupLoaded(exists, _first_generation(), CONSUMER)

    def _remove(self, name: str) -> storage.Result:
        try:
            self._registry.group(name).delete()
        except GroupNotFoundError:
            log.debug("group %s had no node", name)
        return storage.GroupRemoved()

    def _must_leave(self, name: str) -> bool:
        return self._is_ending or self._routes.state(name) is not None

    def _known_groups(self) -> list[GatewayGroup]:
        with self._lock:
            return list(self._groups.values())

    def _own_ids(self) -> dict[str, frozenset[str]]:
        return {group.name: group.members.ids for group in self._known_groups()}

    def _group(self, name: str) -> GatewayGroup:
        with self._lock:
            if (known := self._groups.get(name)) is not None:
                return known
            group = self._registry.group(name)
            wake = partial(self._wake, name)
            found = self._groups[name] = GatewayGroup(
                group, self._settings, self._elections, partial(self._must_leave, name), send=self._send, wake=wake
            )
            return found

    def _forget_unused(self, name: str) -> None:
        """Forget a group without members. Only the work queue of the group calls this."""
        with self._lock:
            group = self._groups.get(name)
            if group is None or len(group.members) or group.is_unfinished:
                return
            del self._groups[name]
        group.stop_observing()

    def _wake(self, name: str) -> None:
        """Let a group check its nodes soon. Any thread may call it."""
        with self._lock:
            if name in self._woken:
                return
            self._woken.add(name)
        self._group_queues.put(name, partial(self._check_group, name))

    def _check_group(self, name: str) -> None:
        with self._lock:
            self._woken.discard(name)
            group = self._groups.get(name)
        if group is not None:
            group.check()
            self._forget_unused(name)

    def _refresh_routes(self) -> None:
        """Read the routes soon. Any thread may call it."""
        with self._lock:
            if self._is_refreshing:
                return
            self._is_refreshing = True
        self._upkeep_queues.put("routes", self._read_routes)

    def _read_routes(self) -> None:
        with self._lock:
            self._is_refreshing = False
        try:
            self._routes.refresh()
        except ZkgroupsException as error:
            log.info("could not read the routes of groups, retrying: %s", error)

    def _route_changed(self, name: str, state: RouteState | None) -> None:
        """Let the members leave a group that is moved. When it is on the brokers, give it up."""
        self._wake(name)
        if state is RouteState.KAFKA:
            self._lose(name)
            self._group_queues.put(name, partial(self._release, name))

    # The session

    def _check_sessions(self) -> None:
        """Give up the groups and the members whose session may have expired."""
        lost = set(self._elections.take_lost())
        for group in self._known_groups():
            if (session_id := group.session_id) is not None and not self._context.session.alive(session_id):
                group.session_id = None
                lost.add(group.name)
        for name in sorted(lost):
            log.warning("the session of the members of group %s may have expired: they must join again", name)
            self._lose(name)

    def _lose(self, name: str) -> None:
        """Remove all members of a group. Any thread may call it."""
        with self._lock:
            group = self._groups.get(name)
        if group is not None:
            self._group_queues.put(name, group.drop_members)
        self._send(loss_of(name, self._elections))

    def _retry(self) -> None:
        for group in self._known_groups():
            if group.is_unfinished:
                self._wake(group.name)

    def _reconcile(self) -> None:
        for name in self._elections.won(unused_for=self._settings.release_after):
            self._group_queues.put(name, partial(self._release_if_unused, name))
        self._upkeep_queues.put("elections", self._give_up_replaced)
        if self._topics is not None:
            self._read_queues.put("topics", self._topics.refresh)
        self._refresh_routes()
        for group in self._known_groups():
            if group.session_id is not None:
                self._group_queues.put(group.name, group.reconcile)

    def _give_up_replaced(self) -> None:
        try:
            replaced = self._elections.take_replaced()
        except ZkgroupsException as error:
            log.info("could not read the coordinators of groups, trying again later: %s", error)
            return
        for name in replaced:
            log.warning("another client has deleted or replaced %s: all members must join again", coordinator(name))
            self._lose(name)

    def _release_if_unused(self, name: str) -> None:
        """Let any gateway coordinate a group that has no members here."""
        with self._lock:
            group = self._groups.get(name)
        is_used = group is not None and (len(group.members) or group.is_unfinished)
        if not is_used and name in self._elections.won(unused_for=self._settings.release_after):
            self._release(name)
            self._send(GroupMoved(name))

    def _release(self, name: str) -> None:
        try:
            self._elections.release(name)
        except ZkgroupsException as error:
            log.info("could not release group %s for other gateways: %s", name, error)
