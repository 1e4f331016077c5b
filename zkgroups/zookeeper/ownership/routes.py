"""The routes of groups and the nodes of their coordinators, as one gateway or one consumer knows them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any
from weakref import WeakSet

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ...core.znodes.own_nodes import GroupRoute, RouteState, decode_route
from ...core.znodes.paths import COORDINATORS, ROUTES, coordinator, join, route_path
from ...core.znodes.topic_partition import check_group
from ...core.znodes.values import UnreadableNode
from ...deadline import uptime
from ...exceptions import AccessError, InvalidNameError, SessionLostError
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import Check, Create, Delete, Operation, TransactionFailed
from ..requests.watches import WatchDispatcher
from ..session.errors import translate
from ..session.session import RegistryContext

# The nodes of the gateways that coordinate groups (`core/znodes/own_nodes.py`): create, delete and read them.
#
# A node is an ephemeral node of the session of its gateway. It is never written again, so its version stays 0.


_VERSION = 0


def check_coordinator(group: str) -> Check:
    """Return the operation that makes a transaction fail if the group has no coordinator.

    The transaction must be pinned to the session of the gateway: a node of another session would have the same version.
    """
    return Check(coordinator(group), _VERSION)


def create_coordinator(context: RegistryContext, group: str, data: bytes, session_id: int) -> Node | None:
    """Create the node of a group. If another gateway has created it, return its node.

    A node without a session has no gateway, and is replaced.
    """
    path, session = coordinator(group), context.session
    create = Create(path, data, True, context.acls.ephemerals)
    before: Sequence[Operation] = ()
    while True:
        try:
            session.transact([*before, create], session_id=session_id, deadline=context.deadline())
            return None
        except TransactionFailed as failure:
            if isinstance(failure.error, NoNodeError) and isinstance(failure.operation, Create):
                acl, deadline = context.acls.directories, context.deadline()
                session.ensure_path(COORDINATORS, acl=acl, session_id=session_id, deadline=deadline)
            elif not isinstance(failure.error, NodeExistsError | NoNodeError | BadVersionError):
                raise translate(failure.error, path) from failure.error
        found = session.get(path, deadline=context.deadline())
        if found is not None and found.session:
            return None if (found.session, found.data) == (session_id, data) else found
        before = () if found is None else (Delete(path, found.version),)


def delete_coordinator(context: RegistryContext, group: str, data: bytes, session_id: int) -> None:
    """Delete the node that this session has created with these data, unless it does not exist any more.

    An earlier attempt may have deleted it, although its outcome is unknown. Then the node belongs to another gateway.
    """
    session, delete = context.session, Delete(coordinator(group), _VERSION)
    try:
        session.catch_up(deadline=context.deadline())
        found = session.get(delete.path, deadline=context.deadline())
        if found is not None and (found.session, found.data) == (session_id, data):
            session.transact([delete], session_id=session_id, deadline=context.deadline())
    except SessionLostError:
        return  # ZooKeeper has deleted it
    except TransactionFailed as failure:
        if not isinstance(failure.error, NoNodeError | BadVersionError):
            raise translate(failure.error, delete.path) from failure.error


def read_coordinators(context: RegistryContext, groups: Iterable[str]) -> dict[str, Node]:
    """Return the nodes of these groups. Groups without a coordinator are left out."""
    names = list(groups)
    found = zip(names, bulk_read.nodes(context, map(coordinator, names)), strict=True)
    return {name: node for name, node in found if isinstance(node, Node) and node.session}


# The routes of groups (`core/znodes/own_nodes.py`), as a gateway uses them: read all, and permits to forward.
#
# A permit is the ephemeral node of a gateway below a route. It is created for one version of the route.


def version_of_routes(context: RegistryContext, watch: Callable[[Any], object]) -> tuple[int, int] | None:
    """Return a value that changes with each change of a route, and watch for the next change. None without routes."""
    client = context.session.client
    stat = context.session.call(lambda: client.exists_async(ROUTES, watch=watch), ROUTES, context.deadline())
    return None if stat is None else (stat.czxid, stat.version)


def read_routes(context: RegistryContext) -> dict[str, tuple[GroupRoute | UnreadableNode, int]]:
    """Return all routes by group, each with the version of its node."""
    names = context.session.children(ROUTES, deadline=context.deadline()) or []
    groups = [*_valid(names)]
    found = zip(groups, bulk_read.nodes(context, map(route_path, groups)), strict=True)
    return {
        group: (decode_route(node.path, node.data) if isinstance(node, Node) else node, node.version)
        for group, node in found
        if node is not None
    }


def create_permit(
    context: RegistryContext, group: str, name: str, data: bytes, *, session_id: int, version: int
) -> bool:
    """Create the permit of a gateway in this session. Return False if the route has another version."""
    session, route = context.session, route_path(group)
    create = Create(join(route, name), data, True, context.acls.ephemerals)
    operations: list[Operation] = [Check(route, version), create]
    try:
        session.transact(operations, session_id=session_id, deadline=context.deadline())
    except TransactionFailed as failure:
        if isinstance(failure.error, BadVersionError | NoNodeError):
            return False
        found = session.get(create.path, deadline=context.deadline())
        if not isinstance(failure.error, NodeExistsError) or found is None or found.session != session_id:
            raise translate(failure.error, create.path) from failure.error
    # The reply may have been lost. Then only reads have shown the node, and they prove no session.
    session.prove(session_id, deadline=context.deadline())
    return True


def delete_permit(context: RegistryContext, group: str, name: str, session_id: int) -> None:
    """Delete the permit that this session has created, unless it does not exist any more."""
    delete = Delete(join(route_path(group), name))
    try:
        context.session.transact([delete], session_id=session_id, deadline=context.deadline())
    except SessionLostError:
        return  # ZooKeeper has deleted it
    except TransactionFailed as failure:
        if not isinstance(failure.error, NoNodeError):
            raise translate(failure.error, delete.path) from failure.error


def permits_of(context: RegistryContext, group: str, session_id: int) -> list[str]:
    """Return the names of the permits for a group that belong to this session."""
    route = route_path(group)
    names = context.session.children(route, deadline=context.deadline()) or []
    nodes = bulk_read.nodes(context, [join(route, name) for name in names])
    return [
        name for name, node in zip(names, nodes, strict=True) if isinstance(node, Node) and node.session == session_id
    ]


def _valid(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        try:
            yield check_group(name)
        except InvalidNameError:
            continue


# The routes of groups, as one gateway or one consumer knows them (`core/znodes/own_nodes.py`).
#
# It watches the directory of all routes, and keeps all routes in memory. They may be out of date, which is safe:
#
# - If it does not know yet that a group was moved to the brokers, the mark of the group refuses its members.
# - If it does not know yet that a group is moved back, it uses the brokers only while its own node below the route
#   exists: its permit. The group is not in ZooKeeper again before this node is deleted, by its owner or with its
#   session.
#
# The permit is created when it is needed. It is deleted when the group is no longer on the brokers, and nothing in
# progress needs it. For a gateway, this is the last commit of a simple consumer, which a broker would accept later,
# too. For a consumer, it is its membership in the group on the brokers.


Changed = Callable[[str, RouteState | None], object]


@dataclass(frozen=True, slots=True)
class _Known:
    state: RouteState
    version: int
    since: float
    """When this gateway learned of the state."""


@dataclass(frozen=True, slots=True)
class _Permit:
    """The permit of this gateway for one group."""

    session_id: int
    version: int
    """The version of the route for which it was created. `_UNKNOWN` if it is not certain that it exists."""


_UNKNOWN = -1


class GroupRoutes:
    """The groups with routes. Any thread may call all methods; `refresh` and `close`, one thread at a time.

    `holder` names the holder of the permits in messages, for example "the gateway at host1".
    """

    def __init__(self, context: RegistryContext, holder: str, log: logging.Logger) -> None:
        self._context = context
        self._session = context.session
        self._name = token_hex(8)
        self._data = holder.encode()
        self._log = log
        self._dispatcher = WatchDispatcher.of(self._session)
        self._wake: Callable[[], object] = lambda: None
        self._changed: Changed = lambda _group, _state: None
        self._seen: tuple[int, int] | None = None
        self._lock = threading.Lock()  # guards the fields below, and is never held during a request
        self._routes: Mapping[str, _Known] = {}
        self._permits: dict[str, _Permit] = {}
        self._wanted: set[str] = set()
        self._in_flight: Counter[str] = Counter()
        _ALL.add(self)

    def open(self, wake: Callable[[], object], changed: Changed) -> None:
        """Begin to watch. `wake` asks for a call of `refresh`. It must not block, and must not call ZooKeeper.

        `changed` is called by `refresh` for each route that has changed.
        """
        self._wake, self._changed = wake, changed
        self._dispatcher.add(ROUTES, self)
        wake()

    def close(self) -> None:
        """Stop watching, and delete the permits of this gateway."""
        self._dispatcher.remove(ROUTES, self)
        with self._lock:
            permits, self._permits = self._permits, {}
        try:
            for group, permit in permits.items():
                delete_permit(self._context, group, self._name, permit.session_id)
        finally:
            self._session.stop_proofs(self)

    # Watches, on kazoo's threads

    def on_change(self, _path: str) -> None:
        """Called by the watch dispatcher when the directory of the routes has changed."""
        self._wake()

    def on_connection(self) -> None:
        """Called by the watch dispatcher: a lost connection loses the watch, too."""
        self._wake()

    # For requests of clients: these methods send nothing

    def state(self, group: str) -> RouteState | None:
        """Return the state of a group. None: it is in ZooKeeper."""
        known = self._routes.get(group)
        return None if known is None else known.state

    def age(self, group: str) -> float:
        """Return for how many seconds the gateway has known the state of a group."""
        known = self._routes.get(group)
        return 0.0 if known is None else uptime() - known.since

    def may_forward(self, group: str) -> bool:
        """True if requests may be forwarded to the brokers now. Otherwise this is prepared, and clients must retry."""
        with self._lock:
            known, permit = self._routes.get(group), self._permits.get(group)
            if known is None or known.state is not RouteState.KAFKA:
                return False
            if permit is not None and permit.version == known.version and self._session.alive(permit.session_id):
                return True
            self._wanted.add(group)
        self._wake()
        return False

    def holds_permit(self, group: str) -> bool:
        """True if the permit for a group exists for certain: the group is not in ZooKeeper again."""
        with self._lock:
            permit = self._permits.get(group)
        return permit is not None and permit.version != _UNKNOWN and self._session.alive(permit.session_id)

    def begin_use(self, group: str) -> bool:
        """Like `may_forward`. If True, the permit stays until `end_use`."""
        with self._lock:
            self._in_flight[group] += 1
        if self.may_forward(group):
            return True
        self.end_use(group)
        return False

    def end_use(self, group: str) -> None:
        """Note that a broker has answered a commit."""
        with self._lock:
            self._in_flight[group] -= 1
            if self._in_flight[group]:
                return
            del self._in_flight[group]
        if self.state(group) is not RouteState.KAFKA:
            self._wake()

    # Reading and writing

    def refresh(self) -> None:
        """Read the routes if any has changed, and create or delete the permits of this gateway."""
        version = version_of_routes(self._context, self._dispatcher.on_watch)
        if version != self._seen:
            self._replace({} if version is None else self._read())
            self._seen = version
        self._delete_old()
        with self._lock:
            wanted, self._wanted = self._wanted, set()
        for group in wanted:
            self._create(group)

    def delete_leftovers(self, group: str) -> None:
        """Delete the permits for a group that an earlier process has left behind in a session that was resumed.

        That process has ended, so it uses the brokers no more. But its permits would stay as long as the session.
        """
        if (resumed := self._session.resumed) is None:
            return
        in_use = {each._name for each in list(_ALL)}
        for name in permits_of(self._context, group, resumed):
            if name not in in_use:
                delete_permit(self._context, group, name, resumed)

    def _read(self) -> dict[str, _Known]:
        found = {}
        for group, (route, version) in read_routes(self._context).items():
            if isinstance(route, GroupRoute):
                found[group] = _Known(route.state, version, uptime())
            else:
                self._log.error("group %s waits, because its route cannot be read: %s", group, route.reason)
                found[group] = _Known(RouteState.MOVING_TO_KAFKA, version, uptime())
        return found

    def _replace(self, found: Mapping[str, _Known]) -> None:
        before = self._routes
        same = {name for name, known in before.items() if name in found and found[name].state is known.state}
        with self._lock:
            self._routes = {
                name: replace(known, since=before[name].since) if name in same else known
                for name, known in found.items()
            }
        for name in sorted((before.keys() | found.keys()) - same):
            state = self.state(name)
            self._log.info("group %s is %s", name, state or "in ZooKeeper")
            self._changed(name, state)

    def _create(self, group: str) -> None:
        """Create a permit, unless the route has changed: then the watch reports the change."""
        known = self._routes.get(group)
        if known is None or known.state is not RouteState.KAFKA:
            return
        session_id = self._session.require_id(self._context.deadline())
        with self._lock:  # before the request: if its outcome is unknown, the node is deleted later
            before = self._permits.get(group)  # a commit may still be in flight with it
            self._permits[group] = _Permit(session_id, _UNKNOWN)
        try:
            created = create_permit(
                self._context, group, self._name, self._data, session_id=session_id, version=known.version
            )
        except AccessError as error:
            self._log.warning("group %s waits, because its permit in %s cannot be written: %s", group, ROUTES, error)
            created = False
        with self._lock:
            if created:
                self._permits[group] = _Permit(session_id, known.version)
                self._session.start_proofs(self, session_id)
            elif before is not None:
                self._permits[group] = before
            else:
                del self._permits[group]

    def _delete_old(self) -> None:
        """Delete the permits of groups that are no longer on the brokers."""
        with self._lock:
            old = {
                group: permit
                for group, permit in self._permits.items()
                if not self._in_flight[group] and not self._is_valid(group, permit)
            }
        for group, permit in old.items():
            delete_permit(self._context, group, self._name, permit.session_id)
            with self._lock:
                del self._permits[group]
                if not self._permits:
                    self._session.stop_proofs(self)

    def _is_valid(self, group: str, permit: _Permit) -> bool:
        known = self._routes.get(group)
        return known is not None and (known.state, known.version) == (RouteState.KAFKA, permit.version)


_ALL: WeakSet[GroupRoutes] = WeakSet()
"""Those of this process."""
