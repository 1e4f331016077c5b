"""What a member sees of its group: everything a plan is made from, with a watch on each of it.

A look is a few requests, however large the group is: the names of who is registered, all registrations, all topics,
each in bulk. Watches are set before anything is read, and stay until they fire: so nothing that happens after a look is
missed, while the connection lasts. kazoo's thread only takes note of what has fired; `tell` is called on it and must do
no more.

What a look returns was all there at one moment. Nodes are read one after the other, so that is found out: nothing may
be younger than the moment at which the names were read, else everything is read again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kazoo.exceptions import BadVersionError, KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from ..core.agreement import Plan, Roster, decode_plan, encode_plan, has_patterns, topics_named
from ..core.codec import decode_topic
from ..core.describe import RegisteredInstance
from ..core.model import DeniedNode, MalformedNode, TopicPartition
from ..core.paths import BROKER_TOPICS, GroupPaths, broker_topic, join
from ..exceptions import NotConnectedError, TooLargeError
from . import bulk, view
from .deadline import Deadline
from .ear import Ear
from .errors import translate
from .handle import Handle
from .node import Node
from .session import PIPELINE
from .transaction import MAX_REQUEST_BYTES, Set, TransactionFailed

ATTEMPTS: Final = 20
"""Looks in a row that may find something changed while they look."""

Partitions = Callable[[str], Iterable[int]]


class Sight:
    """One member's view. `tell` is called with a partition that may be free now, or with None for any other change."""

    def __init__(
        self,
        paths: GroupPaths,
        handle: Handle,
        tell: Callable[[TopicPartition | None], object],
        partitions: Partitions | None = None,
    ) -> None:
        self._paths = paths
        self._handle = handle
        self._session = handle.session
        self._client = handle.session.client
        self._tell = tell
        self._partitions = partitions
        self._ear = Ear.of(self._session)
        self._lock = threading.Lock()  # guards the two below
        self._armed: set[str] = set()
        self._awaited: dict[str, TopicPartition] = {}
        self._losses = self._ear.losses
        self._roots = {paths.ids, paths.owners}
        for root in self._roots:
            self._ear.add(root, self)

    def close(self) -> None:
        """Hear nothing more."""
        for root in self._roots:
            self._ear.remove(root, self)

    # Hearing, on kazoo's threads

    def hear(self, path: str) -> None:
        """Strictly for the ear: a watch has fired."""
        with self._lock:
            self._armed.discard(path)
            at = self._awaited.pop(path, None)
        self._tell(at)

    def wake(self) -> None:
        """Strictly for the ear: the connection was lost, or is back, which is the time to look at everything."""
        if self._client.connected:
            self._tell(None)

    # Looking

    def look(self) -> Roster:
        """Everything a plan is made from, as it was at one moment."""
        self._forget_dead_watches()
        for _ in range(ATTEMPTS):
            if (found := self._look_once()) is not None:
                return found
        raise NotConnectedError(f"group {self._paths.group} changes faster than it can be read")

    def _forget_dead_watches(self) -> None:
        """They die with the connection."""
        losses = self._ear.losses
        if losses != self._losses:
            with self._lock:
                self._losses = losses
                self._armed.clear()
                awaited = dict(self._awaited)
            self.await_free({at: path for path, at in awaited.items()})

    def _look_once(self) -> Roster | None:
        """None where something is younger than the moment at which the names were read."""
        before = int(self._client.last_zxid)
        names, ids_zxid = self._names(self._paths.ids)
        moment = max(before, ids_zxid)
        found = [self._registered(name, node) for name, node in self._read(self._paths.ids, names) if node is not None]
        instances = [instance for instance, _zxid in found]
        existing, topics_zxid = self._topics(all_names=has_patterns(instances))
        partitions, unreadable, zxids = self._partitions_of(topics_named(instances, existing))
        newest = max([ids_zxid, topics_zxid, *(zxid for _instance, zxid in found), *zxids])
        if newest > moment:
            return None
        return Roster(newest, ids_zxid, instances, partitions, unreadable)

    def _names(self, path: str) -> tuple[list[str], int]:
        """The names below a directory, and when they last changed; it is watched."""
        with self._lock:
            watch = None if path in self._armed else self._ear.on_watch
            self._armed.add(path)
        ask = self._client.get_children_async
        found = None
        try:
            found = self._session.call(lambda: ask(path, watch=watch, include_data=True), path, self._handle.deadline())
        finally:
            if found is None:
                with self._lock:
                    self._armed.discard(path)
        if found is None:
            self._arm([path])
            return [], 0
        return sorted(found[0]), found[1].pzxid

    def _read(self, directory: str, names: list[str]) -> Iterable[tuple[str, Node | DeniedNode | None]]:
        return zip(names, bulk.nodes(self._handle, [join(directory, name) for name in names]), strict=True)

    def _registered(self, name: str, node: Node | DeniedNode) -> tuple[RegisteredInstance, int]:
        if isinstance(node, Node):
            return view.registered_instance(name, node), node.mzxid
        return RegisteredInstance(name, 0, node), 0

    def _topics(self, *, all_names: bool) -> tuple[list[str], int]:
        """The names of all topics where a pattern can choose, and when one last came or went."""
        if self._partitions is not None and not all_names:
            return [], 0
        if all_names:
            self._hear_below(BROKER_TOPICS)
            return self._names(BROKER_TOPICS)
        deadline = self._handle.deadline()
        stat = self._session.call(lambda: self._client.exists_async(BROKER_TOPICS), BROKER_TOPICS, deadline)
        return [], 0 if stat is None else stat.pzxid

    def _partitions_of(self, topics: list[str]) -> tuple[dict[str, tuple[int, ...]], list[MalformedNode], list[int]]:
        """The partitions of these topics, what cannot be read, and when each last changed."""
        if self._partitions is not None:
            return {topic: tuple(sorted(set(self._partitions(topic)))) for topic in topics}, [], []
        paths = [broker_topic(topic) for topic in topics]
        for path in paths:
            self._hear_below(path)
        self._arm(paths)
        found: dict[str, tuple[int, ...]] = {}
        unreadable: list[MalformedNode] = []
        zxids: list[int] = []
        for topic, node in zip(topics, bulk.nodes(self._handle, paths), strict=True):
            if isinstance(node, Node):
                zxids.append(node.mzxid)
                read = decode_topic(node.path, topic, node.data)
                if isinstance(read, MalformedNode):
                    unreadable.append(read)
                else:
                    found[topic] = read.partitions
            elif node is not None:
                unreadable.append(node)
        return found, unreadable, zxids

    def _hear_below(self, root: str) -> None:
        if root not in self._roots:
            self._roots.add(root)
            self._ear.add(root, self)

    def _arm(self, paths: Iterable[str]) -> None:
        """Watch these nodes, whether they are there or not."""
        with self._lock:
            missing = [path for path in paths if path not in self._armed]
            self._armed.update(missing)
        self._watch_all(missing)

    # Waiting for partitions

    def await_free(self, partitions: Mapping[TopicPartition, str]) -> None:
        """Tell when the owner node of a partition, whose path is given, has gone; at once if it is not there.

        It is asked for again with the first look after a loss of the connection.
        """
        with self._lock:
            self._awaited.update({path: at for at, path in partitions.items()})
        for path in self._watch_all(list(partitions.values())):
            self.hear(path)

    def _watch_all(self, paths: list[str]) -> list[str]:
        """Watch these nodes, and return those that are not there."""
        deadline = self._handle.deadline()
        absent: list[str] = []
        for start in range(0, len(paths), PIPELINE):
            window = paths[start : start + PIPELINE]
            answers = [(path, self._client.exists_async(path, watch=self._ear.on_watch)) for path in window]
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

    # The common plan

    def plan(self) -> tuple[Plan | None, int, int]:
        """The plan that was written for all, its zxid, and the version to write the next one over."""
        path = self._paths.owners
        self._arm([path])
        node = self._session.get(path, deadline=self._handle.deadline())
        if node is None:
            return None, 0, -1
        return decode_plan(node.data), node.mzxid, node.version

    def write_plan(self, plan: Plan, version: int, session_id: int) -> bool:
        """Write a plan over the one that was read; False if another was written meanwhile."""
        data = encode_plan(plan)
        if len(data) > MAX_REQUEST_BYTES // 2:
            raise TooLargeError(f"a plan of {len(plan.assignment)} partitions has {len(data)} bytes")
        path, deadline = self._paths.owners, self._handle.deadline()
        if version < 0:
            self._session.ensure(path, acl=self._handle.acls.directories, session_id=session_id, deadline=deadline)
            return False
        try:
            self._session.transact([Set(path, data, version)], session_id=session_id, deadline=deadline)
        except TransactionFailed as failure:
            if isinstance(failure.error, BadVersionError | NoNodeError):
                return False
            raise translate(failure.error, path) from failure.error
        return True
