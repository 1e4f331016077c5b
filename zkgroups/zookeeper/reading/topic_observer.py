"""Observe topics and their partitions by watches.

Watches are set before the nodes are read, and stay until they fire. So no change after a read is missed while the
connection lasts. `notify` is called on kazoo's watch thread. It must not block, and must not call ZooKeeper.

The result of a read is consistent: all of it existed at one moment. The nodes are read one after the other. If any of
them was changed after the read began, everything is read again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

from kazoo.exceptions import KazooException, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError

from ...core.znodes.broker_codec import decode_topic
from ...core.znodes.names import check_partition
from ...core.znodes.paths import BROKER_TOPICS, broker_topic
from ...core.znodes.subscribed_topics import subscribed_topics
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import ForbiddenNode, Pattern, Registration, UnreadableNode
from ...deadline import Deadline
from ...exceptions import NoPermissionError, NotConnectedError
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.watch_dispatcher import WatchDispatcher
from ..session.errors import translate
from ..session.registry_context import RegistryContext
from ..session.session import PIPELINE

ATTEMPTS: Final = 20
"""How often to read again if nodes change during the read."""

# Each read of each member in this process returns the same bytes, mostly.
_decoded = lru_cache(maxsize=64)(decode_topic)

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

    The partitions come from Kafka's nodes, or from the function `partitions`. The function is called with each read,
    because changes of its results cannot be watched.
    """

    def __init__(self, context: RegistryContext, notify: Notify, partitions: PartitionsOf | None = None) -> None:
        self._context = context
        self._session = context.session
        self._client = context.session.client
        self._notify = notify
        self._partitions = partitions
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

    # Reading

    def topics(self, registration: Registration) -> ObservedTopics:
        """Return the topics that a registration subscribes to."""
        self._forget_dead_watches()
        by_pattern = registration.pattern is not Pattern.STATIC
        for _ in range(ATTEMPTS):
            before = int(self._client.last_zxid)
            names, zxid = self._existing(self._ask_existing(), all_names=by_pattern)
            wanted = sorted(subscribed_topics(registration, names))
            found = self._topics_of(wanted, self._read_topics(wanted))
            if found.zxid <= max(before, zxid):
                return found
        raise NotConnectedError(f"the topics changed during each of {ATTEMPTS} reads; try again later")

    def _forget_dead_watches(self) -> None:
        """After a lost connection, forget its watches."""
        losses = self._dispatcher.losses
        if losses != self._losses:
            with self._lock:
                self._losses = losses
                self._watched.clear()

    def _ask_existing(self) -> Any:
        """Send a request for the time at which a topic was last created or deleted, without waiting for the answer."""
        return None if self._partitions is not None else self._client.exists_async(BROKER_TOPICS)

    def _existing(self, asked: Any, *, all_names: bool) -> tuple[list[str], int]:
        """Return the names of all topics if needed, and the zxid at which a topic was last created or deleted."""
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
        if self._partitions is not None:
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
        if self._partitions is not None:
            return ObservedTopics({topic: _checked(self._partitions(topic)) for topic in topics})
        found = list(zip(topics, nodes, strict=True))
        there = {topic: node for topic, node in found if isinstance(node, Node)}
        denied = [node for _topic, node in found if isinstance(node, UnreadableNode)]
        read = {topic: _decoded(node.path, topic, node.data) for topic, node in there.items()}
        return ObservedTopics(
            {topic: found.partitions for topic, found in read.items() if not isinstance(found, UnreadableNode)},
            [*denied, *(found for found in read.values() if isinstance(found, UnreadableNode))],
            {topic: node.czxid for topic, node in there.items()},
            max((node.mzxid for node in there.values()), default=0),
            some_missing=None in nodes,
        )

    # Watching

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


def _checked(numbers: Iterable[int]) -> tuple[int, ...]:
    """Check the result of a user's function."""
    return tuple(sorted({check_partition(number) for number in numbers}))
