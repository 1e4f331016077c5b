"""Observe a group for one of its members, and the topics of a cluster, by watches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, Final, TypeAlias

from kazoo.exceptions import BadVersionError, KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from ...core.rebalance.shared_plan import Roster, SharedPlan, encode_plan, has_patterns, topics_named
from ...core.znodes.codecs import decode_topic
from ...core.znodes.group_description import RegisteredInstance
from ...core.znodes.paths import BROKER_TOPICS, GroupPaths, broker_topic, join
from ...core.znodes.registrations import subscribed_topics
from ...core.znodes.topic_partition import TopicPartition, check_partition
from ...core.znodes.values import ForbiddenNode, Pattern, Registration, UnreadableNode
from ...deadline import Deadline
from ...exceptions import NoPermissionError, NotConnectedError, TooLargeError
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import MAX_REQUEST_BYTES, Set, TransactionFailed
from ..requests.watches import WatchDispatcher
from ..session.errors import translate
from ..session.session import PIPELINE, RegistryContext, TopicSource
from . import group_reader

# Observe topics and their partitions by watches.
#
# Watches are set before the nodes are read, and stay until they fire. So no change after a read is missed while the
# connection lasts. `notify` is called on kazoo's watch thread. It must not block, and must not call ZooKeeper.
#
# The result of a read is consistent: all of it existed at one moment. The nodes are read one after the other. If any
# of them was changed after the read began, everything is read again.


ATTEMPTS: Final = 20
"""How often to read again if nodes change during the read."""

# Each read of each member in this process returns the same bytes, mostly.
_decoded_topic = lru_cache(maxsize=64)(decode_topic)

PartitionsOf: TypeAlias = Callable[[str], Iterable[int]]
Notify: TypeAlias = Callable[[TopicPartition | None], object]
TopicNodes: TypeAlias = Sequence[Node | ForbiddenNode | None]


@dataclass(frozen=True, slots=True)
class ObservedTopics:
    """Topics as Kafka has registered them, at one moment. Missing topics are left out."""

    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    unreadable: Sequence[UnreadableNode] = ()
    created: Mapping[str, int] = field(default_factory=dict)
    """The zxid at which each topic was created. It differs for a recreated topic."""
    zxid: int = 0
    """The zxid of the last change of any of them."""
    some_missing: bool = False
    """True if at least one of them does not exist."""


class TopicObserver:
    """Observes the topics of one member. `notify` is called with None after any change.

    The partitions come from Kafka's nodes, or from a function: `partitions`, or the one of the registry. It is called
    with each read, because changes of its results cannot be watched.
    """

    def __init__(self, context: RegistryContext, notify: Notify, partitions: PartitionsOf | None = None) -> None:
        self._context = context
        self._session = context.session
        self._client = context.session.client
        self._notify = notify
        self._source = context.topics if partitions is None else _one_by_one(partitions)
        self._is_outside = False
        """True if this read takes the topics from the function."""
        self._dispatcher = WatchDispatcher.of(self._session)
        self._lock = threading.Lock()  # guards the watched paths
        self._watched: set[str] = set()
        self._losses = self._dispatcher.losses
        self._roots: set[str] = set()

    def close(self) -> None:
        """Stop observing. The next read begins again: watches that fire until then tell nobody."""
        for root in self._roots:
            self._dispatcher.remove(root, self)
        self._roots.clear()
        with self._lock:
            self._watched.clear()

    # Changes, on kazoo's threads

    def on_change(self, path: str) -> None:
        """Called by the watch dispatcher when a watch has fired."""
        if self._was_watched(path):
            self._notify(None)

    def _was_watched(self, path: str) -> bool:
        """Return True if this member watched the node. Other members of the same session have their own watches."""
        with self._lock:
            watched = path in self._watched
            self._watched.discard(path)
        return watched

    def on_connection(self) -> None:
        """Called by the watch dispatcher. After a reconnect, everything must be read again."""
        if self._client.connected:
            self._notify(None)

    def _listen_below(self, root: str) -> None:
        if root not in self._roots:
            self._roots.add(root)
            self._dispatcher.add(root, self)

    def topics(self, registration: Registration) -> ObservedTopics:
        """Return the topics that a registration subscribes to."""
        self._begin_read()
        by_pattern = registration.pattern is not Pattern.STATIC
        for _ in range(ATTEMPTS):
            before = int(self._client.last_zxid)
            names, zxid = self._existing(self._ask_existing(), all_names=by_pattern)
            wanted = sorted(subscribed_topics(registration, names))
            found = self._topics_of(wanted, self._read_topics(wanted))
            if found.zxid <= max(before, zxid):
                return found
        raise NotConnectedError(f"the topics changed during each of {ATTEMPTS} reads; try again later")

    def _begin_read(self) -> None:
        """Choose where the topics come from. After a lost connection, forget its watches."""
        self._is_outside = self._source is not None and self._source(()) is not None
        losses = self._dispatcher.losses
        if losses != self._losses:
            with self._lock:
                self._losses = losses
                self._watched.clear()

    def _ask_existing(self) -> Any:
        """Send a request for the time at which a topic was last created or deleted, without waiting for the answer."""
        return None if self._is_outside else self._client.exists_async(BROKER_TOPICS)

    def _existing(self, asked: Any, *, all_names: bool) -> tuple[list[str], int]:
        """Return the names of all topics if needed, and the zxid at which a topic was last created or deleted."""
        if all_names and self._is_outside and (found := self._asked(None)) is not None:
            return sorted(found), 0
        if all_names:
            self._listen_below(BROKER_TOPICS)
            return self._names(BROKER_TOPICS)
        if asked is None:
            return [], 0

        def send() -> Any:
            return self._client.exists_async(BROKER_TOPICS)

        try:
            stat = self._session.call_pending(asked, send, BROKER_TOPICS, self._context.deadline())
        except NoPermissionError:  # the topics themselves may be readable
            return [], 0
        return [], 0 if stat is None else stat.pzxid

    def _topic_paths(self, topics: Sequence[str]) -> list[str]:
        """Watch the nodes of these topics, and return their paths."""
        if self._is_outside:
            return []
        paths = [broker_topic(topic) for topic in topics]
        for path in paths:
            self._listen_below(path)
        self._watch(paths)
        return paths

    def _read_topics(self, topics: Sequence[str]) -> TopicNodes:
        return list(bulk_read.nodes(self._context, self._topic_paths(topics)))

    def _topics_of(self, topics: Sequence[str], nodes: TopicNodes) -> ObservedTopics:
        """Decode the nodes of these topics."""
        if self._is_outside:
            if (partitions := self._asked(topics)) is None:
                raise NotConnectedError("the source of the topics changed during the read; try again later")
            known = {topic: numbers for topic, numbers in partitions.items() if numbers is not None}
            return ObservedTopics({topic: _checked(numbers) for topic, numbers in known.items()})
        found = list(zip(topics, nodes, strict=True))
        there = {topic: node for topic, node in found if isinstance(node, Node)}
        denied = [node for _topic, node in found if isinstance(node, UnreadableNode)]
        read = {topic: _decoded_topic(node.path, topic, node.data) for topic, node in there.items()}
        return ObservedTopics(
            {topic: found.partitions for topic, found in read.items() if not isinstance(found, UnreadableNode)},
            [*denied, *(found for found in read.values() if isinstance(found, UnreadableNode))],
            {topic: node.czxid for topic, node in there.items()},
            max((node.mzxid for node in there.values()), default=0),
            some_missing=None in nodes,
        )

    def _asked(self, topics: Collection[str] | None) -> Mapping[str, Iterable[int] | None] | None:
        return None if self._source is None else self._source(topics)

    def _names(self, path: str) -> tuple[list[str], int]:
        """Return the names of a directory, and when they last changed. Watch it, even if it does not exist."""
        found = self._listed(path)
        if found is None and path not in self._watch([path]):  # it was created after the first read
            with self._lock:
                self._watched.discard(path)
            found = self._listed(path)
        return ([], 0) if found is None else (sorted(found[0]), found[1].pzxid)

    def _listed(self, path: str) -> Any:
        with self._lock:
            watch = None if path in self._watched else self._dispatcher.on_watch
            self._watched.add(path)
        send = self._client.get_children_async
        found = None
        try:
            found = self._session.call(
                lambda: send(path, watch=watch, include_data=True), path, self._context.deadline()
            )
        finally:
            if found is None:
                with self._lock:
                    self._watched.discard(path)
        return found

    def _watch(self, paths: Iterable[str]) -> list[str]:
        """Watch these nodes, even if they do not exist. Return the newly watched ones that do not exist."""
        with self._lock:
            unwatched = [path for path in dict.fromkeys(paths) if path not in self._watched]
            self._watched.update(unwatched)
        try:
            return self._watch_all(unwatched)
        except BaseException:  # some may be watched already: then they notify once more than necessary
            with self._lock:
                self._watched.difference_update(unwatched)
            raise

    def _watch_all(self, paths: list[str]) -> list[str]:
        deadline = self._context.deadline()
        missing: list[str] = []
        for start in range(0, len(paths), PIPELINE):
            window = paths[start : start + PIPELINE]
            answers = [(path, self._client.exists_async(path, watch=self._dispatcher.on_watch)) for path in window]
            missing += [path for path, answer in answers if not self._exists(path, answer, deadline)]
        return missing

    def _exists(self, path: str, answer: Any, deadline: Deadline) -> bool:
        try:
            return answer.get(timeout=deadline.remaining) is not None
        except NoAuthError:  # no watch was set, so the node is polled
            with self._lock:
                self._watched.discard(path)
            return True
        except (KazooException, KazooTimeoutError) as error:
            raise translate(error, path) from error


def _one_by_one(partitions: PartitionsOf) -> TopicSource:
    """Return the source for a user's function, which cannot list the names of all topics."""
    return lambda topics: None if topics is None else {topic: partitions(topic) for topic in topics}


def _checked(numbers: Iterable[int]) -> tuple[int, ...]:
    """Check the numbers of partitions that a function has returned."""
    return tuple(sorted({check_partition(number) for number in numbers}))


# Observe a group for one of its members: the roster that plans are computed from, the owners, and the shared plan.
#
# Reading the roster takes a few requests, regardless of the size of the group: the names of the instances, and then
# all registrations and topics in bulk. The rules for watches and consistent reads are those of the topics.


# Each read of each member in this process returns the same nodes, mostly.
_decoded = lru_cache(maxsize=1024)(group_reader.registered_instance)


class GroupObserver(TopicObserver):
    """Observes a group. `notify` is called with a partition that may be free, or with None for any other change."""

    def __init__(
        self, paths: GroupPaths, context: RegistryContext, notify: Notify, partitions: PartitionsOf | None = None
    ) -> None:
        super().__init__(context, notify, partitions)
        self._paths = paths
        self._awaited: dict[str, TopicPartition] = {}  # by the path of the owner; the lock guards this, too
        self._topics: list[str] = []  # of the last read; most likely the next read needs the same ones
        self._roster: Roster | None = None
        self._changes = self._roster_changes = 0  # counts changes that concern the roster, now and when it was read
        self._listen()

    def _listen(self) -> None:
        for root in (self._paths.ids, self._paths.owners):
            self._listen_below(root)

    def close(self) -> None:
        """Stop observing. The next read begins again: a member may come back to its group."""
        super().close()
        with self._lock:
            self._awaited.clear()
            self._changes += 1  # the roster may change unnoticed

    def on_change(self, path: str) -> None:
        """Called by the watch dispatcher when a watch has fired."""
        if not self._was_watched(path):
            return
        with self._lock:
            at = self._awaited.pop(path, None)
            if at is None and path != self._paths.owners:  # a new plan does not change the roster
                self._changes += 1
        self._notify(at)

    def read_roster(self, *, allow_cached: bool = False) -> Roster:
        """Return the data that a plan is computed from, as of one moment.

        With `allow_cached`, the last roster is returned if no watch has fired since.
        """
        self._listen()
        if self._losses != self._dispatcher.losses:
            self._changes += 1
        self._begin_read()
        self._watch_awaited()
        changes = self._changes
        if allow_cached and self._roster is not None and self._roster_changes == changes:
            return self._roster
        for _ in range(ATTEMPTS):
            if (roster := self._read_once()) is not None:
                self._roster, self._roster_changes = roster, changes
                return roster
        raise NotConnectedError(f"group {self._paths.group} changed during each of {ATTEMPTS} reads; try again later")

    def _read_once(self) -> Roster | None:
        """Read the roster. Return None if any node was changed after the names were read."""
        before = int(self._client.last_zxid)
        names, ids_zxid = self._names(self._paths.ids)
        existing = self._ask_existing()
        moment = max(before, ids_zxid)
        found, nodes = self._read_together(names)
        instances = [instance for instance, _zxid in found]
        all_names, topics_zxid = self._existing(existing, all_names=has_patterns(instances))
        wanted = topics_named(instances, all_names)
        topics = self._topics_of(wanted, nodes if wanted == self._topics else self._read_topics(wanted))
        self._topics = wanted
        if topics.some_missing:  # a topic may have been deleted just now, which only the list of names shows
            _, topics_zxid = self._existing(self._ask_existing(), all_names=False)
        newest = max([ids_zxid, topics_zxid, topics.zxid, *(zxid for _instance, zxid in found)])
        if newest > moment:
            return None
        return Roster(newest, ids_zxid, instances, topics.partitions, topics.unreadable, topics.created)

    def _read_together(self, names: list[str]) -> tuple[list[tuple[RegisteredInstance, int]], TopicNodes]:
        """Read the registrations, each with the zxid of its last change, together with the topics of the last read."""
        paths = [join(self._paths.ids, name) for name in names]
        nodes = bulk_read.nodes(self._context, paths + self._topic_paths(self._topics))
        registered = list(zip(names, islice(nodes, len(names)), strict=True))
        return [self._registered(name, node) for name, node in registered if node is not None], list(nodes)

    def _registered(self, name: str, node: Node | ForbiddenNode) -> tuple[RegisteredInstance, int]:
        if isinstance(node, Node):
            return _decoded(name, node), node.mzxid
        return RegisteredInstance(name, 0, node), 0

    def watch_owners(self, partitions: Mapping[TopicPartition, str]) -> None:
        """Notify when an owner node is deleted, or at once if it does not exist. The values are the nodes' paths.

        A watch that cannot be set now, or is lost with the connection, is set by the next read of the roster.
        """
        with self._lock:
            self._awaited.update({path: at for at, path in partitions.items()})
        self._watch_awaited()

    def _watch_awaited(self) -> None:
        with self._lock:
            paths = [path for path in self._awaited if path not in self._watched]
        for path in self._watch(paths):
            self.on_change(path)

    # The shared plan

    def read_plan(self) -> tuple[bytes, int, int]:
        """Return the shared plan, its zxid, and the version to pass to `write_plan`."""
        path = self._paths.owners
        self._watch([path])
        node = self._session.get(path, deadline=self._context.deadline())
        if node is None:
            return b"", 0, -1
        return node.data, node.mzxid, node.version

    def write_plan(self, plan: SharedPlan, version: int, session_id: int) -> bool:
        """Replace the plan that was read. Return False if another member has replaced it since."""
        data = encode_plan(plan)
        if len(data) > MAX_REQUEST_BYTES // 2:
            raise TooLargeError(
                f"the shared plan of {len(plan.assignment)} partitions has {len(data)} bytes, "
                f"but the limit is {MAX_REQUEST_BYTES // 2}: use the strategy range or roundrobin, which needs no plan"
            )
        path, deadline = self._paths.owners, self._context.deadline()
        if version < 0:
            self._session.ensure_path(
                path, acl=self._context.acls.directories, session_id=session_id, deadline=deadline
            )
            return False
        try:
            self._session.transact([Set(path, data, version)], session_id=session_id, deadline=deadline)
        except TransactionFailed as failure:
            if isinstance(failure.error, BadVersionError | NoNodeError):
                return False
            raise translate(failure.error, path) from failure.error
        return True
