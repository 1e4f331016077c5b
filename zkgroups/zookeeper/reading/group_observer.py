"""Observe a group for one of its members: the roster that plans are computed from, the owners, and the shared plan.

Reading the roster takes a few requests, regardless of the size of the group: the names of the instances, and then all
registrations and topics in bulk. The rules for watches and consistent reads are those of `topic_observer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice

from kazoo.exceptions import BadVersionError, NoNodeError

from ...core.rebalance.roster import Roster, has_patterns, topics_named
from ...core.rebalance.shared_plan import SharedPlan, encode_plan
from ...core.znodes.group_view import RegisteredInstance
from ...core.znodes.paths import GroupPaths, join
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import ForbiddenNode
from ...exceptions import NotConnectedError, TooLargeError
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.request_limit import MAX_REQUEST_BYTES
from ..requests.transaction import Set, TransactionFailed
from ..session.errors import translate
from ..session.registry_context import RegistryContext
from . import group_reader
from .topic_observer import ATTEMPTS, Notify, PartitionsOf, TopicNodes, TopicObserver

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

    # Reading

    def read_roster(self, *, allow_cached: bool = False) -> Roster:
        """Return the data that a plan is computed from, as of one moment.

        With `allow_cached`, the last roster is returned if no watch has fired since.
        """
        self._listen()
        if self._losses != self._dispatcher.losses:
            self._changes += 1
        self._forget_dead_watches()
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

    # Owners

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
