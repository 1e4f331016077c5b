"""Which topics there are and which partitions they have, with a watch on each of it.

Watches are set before anything is read, and stay until they fire: so nothing that happens after a look is missed, while
the connection lasts. kazoo's thread only takes note of what has fired; `tell` is called on it and must do no more.

What a look returns was all there at one moment. Nodes are read one after the other, so that is found out: nothing may
be younger than the moment at which the look began, else everything is read again.
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
from ...core.znodes.subscription import subscribed_topics
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
"""Looks in a row that may find something changed while they look."""

# The same bytes come with each look, of each member in this process.
_decoded = lru_cache(maxsize=64)(decode_topic)

PartitionsOf: TypeAlias = Callable[[str], Iterable[int]]
Tell: TypeAlias = Callable[[TopicPartition | None], object]
Nodes: TypeAlias = Sequence[Node | ForbiddenNode | None]


@dataclass(frozen=True, slots=True)
class Topics:
    """What Kafka says of some topics, as it was at one moment; one that it does not have is not here."""

    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    unreadable: Sequence[UnreadableNode] = ()
    made: Mapping[str, int] = field(default_factory=dict)
    """The zxid that made each: another one is another topic, whatever its name."""
    zxid: int = 0
    """Of the last change among them."""
    absent: bool = False
    """Whether some of them are not there."""


class TopicSight:
    """The topics of one member. `tell` is called with None when something has changed.

    Partitions come from Kafka's nodes, or from a function; nobody hears when what that says is another, so it is asked
    with each look.
    """

    def __init__(self, context: RegistryContext, tell: Tell, partitions: PartitionsOf | None = None) -> None:
        self._context = context
        self._session = context.session
        self._client = context.session.client
        self._tell = tell
        self._partitions = partitions
        self._dispatcher = WatchDispatcher.of(self._session)
        self._lock = threading.Lock()  # guards what is armed
        self._armed: set[str] = set()
        self._losses = self._dispatcher.losses
        self._roots: set[str] = set()

    def close(self) -> None:
        """Hear nothing more."""
        for root in self._roots:
            self._dispatcher.remove(root, self)
        self._roots.clear()

    # Hearing, on kazoo's threads

    def on_change(self, path: str) -> None:
        """Strictly for the dispatcher: a watch has fired."""
        if self._was_armed(path):
            self._tell(None)

    def _was_armed(self, path: str) -> bool:
        """Whether this member has asked for it: others of the same session hear what they have asked for."""
        with self._lock:
            armed = path in self._armed
            self._armed.discard(path)
        return armed

    def on_connection(self) -> None:
        """Strictly for the dispatcher: the connection was lost, or is back, which is the time to look at everything."""
        if self._client.connected:
            self._tell(None)

    def _hear_below(self, root: str) -> None:
        if root not in self._roots:
            self._roots.add(root)
            self._dispatcher.add(root, self)

    # Looking

    def topics(self, registration: Registration) -> Topics:
        """The topics that a registration chooses, as they were at one moment."""
        self._forget_dead_watches()
        by_pattern = registration.pattern is not Pattern.STATIC
        for _ in range(ATTEMPTS):
            before = int(self._client.last_zxid)
            names, zxid = self._existing(self._ask_existing(), all_names=by_pattern)
            wanted = sorted(subscribed_topics(registration, names))
            found = self._topics_of(wanted, self._read_topics(wanted))
            if found.zxid <= max(before, zxid):
                return found
        raise NotConnectedError("topics change faster than they can be read")

    def _forget_dead_watches(self) -> None:
        """They die with the connection."""
        losses = self._dispatcher.losses
        if losses != self._losses:
            with self._lock:
                self._losses = losses
                self._armed.clear()

    def _ask_existing(self) -> Any:
        """Ask when a topic last came or went; the answer is on its way while other things are asked."""
        return None if self._partitions is not None else self._client.exists_async(BROKER_TOPICS)

    def _existing(self, asked: Any, *, all_names: bool) -> tuple[list[str], int]:
        """The names of all topics where a pattern can choose, and when one last came or went."""
        if all_names:
            self._hear_below(BROKER_TOPICS)
            return self._names(BROKER_TOPICS)
        if asked is None:
            return [], 0
        answers = iter([asked])

        def ask() -> Any:  # the answer that is on its way; after a loss of the connection, another
            return next(answers, None) or self._client.exists_async(BROKER_TOPICS)

        try:
            stat = self._session.call(ask, BROKER_TOPICS, self._context.deadline())
        except NoPermissionError:  # the topics themselves may be read
            return [], 0
        return [], 0 if stat is None else stat.pzxid

    def _topic_paths(self, topics: Sequence[str]) -> list[str]:
        """Where to read what Kafka says of these topics; they are watched from now on."""
        if self._partitions is not None:
            return []
        paths = [broker_topic(topic) for topic in topics]
        for path in paths:
            self._hear_below(path)
        self._arm(paths)
        return paths

    def _read_topics(self, topics: Sequence[str]) -> Nodes:
        return list(bulk_read.nodes(self._context, self._topic_paths(topics)))

    def _topics_of(self, topics: Sequence[str], nodes: Nodes) -> Topics:
        """The partitions of these topics, what cannot be read, and when each was made and last changed."""
        if self._partitions is not None:
            return Topics({topic: _checked(self._partitions(topic)) for topic in topics})
        found = list(zip(topics, nodes, strict=True))
        there = {topic: node for topic, node in found if isinstance(node, Node)}
        denied = [node for _topic, node in found if isinstance(node, UnreadableNode)]
        read = {topic: _decoded(node.path, topic, node.data) for topic, node in there.items()}
        return Topics(
            {topic: found.partitions for topic, found in read.items() if not isinstance(found, UnreadableNode)},
            [*denied, *(found for found in read.values() if isinstance(found, UnreadableNode))],
            {topic: node.czxid for topic, node in there.items()},
            max((node.mzxid for node in there.values()), default=0),
            absent=None in nodes,
        )

    # Watching

    def _names(self, path: str) -> tuple[list[str], int]:
        """The names below a directory, and when they last changed; it is watched, whether it is there or not."""
        found = self._listed(path)
        if found is None and path not in self._arm([path]):  # it has come meanwhile
            with self._lock:
                self._armed.discard(path)
            found = self._listed(path)
        return ([], 0) if found is None else (sorted(found[0]), found[1].pzxid)

    def _listed(self, path: str) -> Any:
        with self._lock:
            watch = None if path in self._armed else self._dispatcher.on_watch
            self._armed.add(path)
        ask = self._client.get_children_async
        found = None
        try:
            found = self._session.call(
                lambda: ask(path, watch=watch, include_data=True), path, self._context.deadline()
            )
        finally:
            if found is None:
                with self._lock:
                    self._armed.discard(path)
        return found

    def _arm(self, paths: Iterable[str]) -> list[str]:
        """Watch these nodes, whether they are there or not; those that are newly watched and not there are returned."""
        with self._lock:
            missing = [path for path in dict.fromkeys(paths) if path not in self._armed]
            self._armed.update(missing)
        try:
            return self._watch_all(missing)
        except BaseException:  # some may be watched: then they fire once more than need be
            with self._lock:
                self._armed.difference_update(missing)
            raise

    def _watch_all(self, paths: list[str]) -> list[str]:
        deadline = self._context.deadline()
        absent: list[str] = []
        for start in range(0, len(paths), PIPELINE):
            window = paths[start : start + PIPELINE]
            answers = [(path, self._client.exists_async(path, watch=self._dispatcher.on_watch)) for path in window]
            absent += [path for path, answer in answers if not self._is_there(path, answer, deadline)]
        return absent

    def _is_there(self, path: str, answer: Any, deadline: Deadline) -> bool:
        try:
            return answer.get(timeout=deadline.remaining) is not None
        except NoAuthError:  # then there is no watch, and it is looked at now and then
            with self._lock:
                self._armed.discard(path)
            return True
        except (KazooException, KazooTimeoutError) as error:
            raise translate(error, path) from error


def _checked(numbers: Iterable[int]) -> tuple[int, ...]:
    """What a function of the user's says."""
    return tuple(sorted({check_partition(number) for number in numbers}))
