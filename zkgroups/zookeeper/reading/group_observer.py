"""What a member sees of its group: everything a plan is made from, with a watch on each of it.

A look is a few requests, however large the group is: the names of who is registered, all registrations, all topics,
each in bulk. How it is watched, and what makes it one moment, is told in `topics.py`.
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
from ..requests.request_size import MAX_REQUEST_BYTES
from ..requests.transaction import Set, TransactionFailed
from ..session.errors import translate
from ..session.registry_context import RegistryContext
from . import group_reader
from .topics import ATTEMPTS, Nodes, PartitionsOf, Tell, TopicSight

# The same nodes come with each look, of each member in this process.
_decoded = lru_cache(maxsize=1024)(group_reader.registered_instance)


class Sight(TopicSight):
    """One member's view. `tell` is called with a partition that may be free now, or with None for any other change."""

    def __init__(
        self, paths: GroupPaths, context: RegistryContext, tell: Tell, partitions: PartitionsOf | None = None
    ) -> None:
        super().__init__(context, tell, partitions)
        self._paths = paths
        self._awaited: dict[str, TopicPartition] = {}  # the lock guards this, too
        self._topics: list[str] = []  # of the last look: most likely the same are to be read again
        self._roster: Roster | None = None  # what was seen last, as long as nothing was heard since
        self._heard = self._seen = 0  # how often something was heard that it is made from, and how often by then
        for root in (paths.ids, paths.owners):
            self._hear_below(root)

    def on_change(self, path: str) -> None:
        """Strictly for the dispatcher: a watch has fired."""
        if not self._was_armed(path):
            return
        with self._lock:
            at = self._awaited.pop(path, None)
            if at is None and path != self._paths.owners:  # a new plan is made from what is there already
                self._heard += 1
        self._tell(at)

    # Looking

    def look(self, *, anew: bool = True) -> Roster:
        """Everything a plan is made from, as it was at one moment; unless `anew`, as it was seen before, if nothing was
        heard since."""
        if self._losses != self._dispatcher.losses:
            self._heard += 1
        self._forget_dead_watches()
        self._await_again()
        heard = self._heard
        if not anew and self._roster is not None and self._seen == heard:
            return self._roster
        for _ in range(ATTEMPTS):
            if (found := self._look_once()) is not None:
                self._roster, self._seen = found, heard
                return found
        raise NotConnectedError(f"group {self._paths.group} changes faster than it can be read")

    def _look_once(self) -> Roster | None:
        """None where something is younger than the moment at which the names were read."""
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
        if topics.absent:  # deleted perhaps just now, which leaves a trace in the list of names only
            _, topics_zxid = self._existing(self._ask_existing(), all_names=False)
        newest = max([ids_zxid, topics_zxid, topics.zxid, *(zxid for _instance, zxid in found)])
        if newest > moment:
            return None
        return Roster(newest, ids_zxid, instances, topics.partitions, topics.unreadable, topics.made)

    def _read_together(self, names: list[str]) -> tuple[list[tuple[RegisteredInstance, int]], Nodes]:
        """Who is registered, each with when that last changed, and the topics of the last look, in one request."""
        paths = [join(self._paths.ids, name) for name in names]
        nodes = bulk_read.nodes(self._context, paths + self._topic_paths(self._topics))
        registered = list(zip(names, islice(nodes, len(names)), strict=True))
        return [self._registered(name, node) for name, node in registered if node is not None], list(nodes)

    def _registered(self, name: str, node: Node | ForbiddenNode) -> tuple[RegisteredInstance, int]:
        if isinstance(node, Node):
            return _decoded(name, node), node.mzxid
        return RegisteredInstance(name, 0, node), 0

    # Waiting for partitions

    def await_free(self, partitions: Mapping[TopicPartition, str]) -> None:
        """Tell when the owner node of a partition, whose path is given, has gone; at once if it is not there.

        Where that cannot be asked for, and after a loss of the connection, it is with the next look.
        """
        with self._lock:
            self._awaited.update({path: at for at, path in partitions.items()})
        self._await_again()

    def _await_again(self) -> None:
        with self._lock:
            paths = [path for path in self._awaited if path not in self._armed]
        for path in self._arm(paths):
            self.on_change(path)

    # The common plan

    def plan(self) -> tuple[bytes, int, int]:
        """The plan that was written for all, its zxid, and the version to write over."""
        path = self._paths.owners
        self._arm([path])
        node = self._session.get(path, deadline=self._context.deadline())
        if node is None:
            return b"", 0, -1
        return node.data, node.mzxid, node.version

    def write_plan(self, plan: SharedPlan, version: int, session_id: int) -> bool:
        """Write a plan over the one that was read; False if another was written meanwhile."""
        data = encode_plan(plan)
        if len(data) > MAX_REQUEST_BYTES // 2:
            raise TooLargeError(f"a plan of {len(plan.assignment)} partitions has {len(data)} bytes")
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
