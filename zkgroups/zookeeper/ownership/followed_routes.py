"""The routes of groups, as one gateway or one consumer knows them (`core/znodes/group_route.py`).

It watches the directory of all routes, and keeps all routes in memory. They may be out of date, which is safe:

- If it does not know yet that a group was moved to the brokers, the mark of the group refuses its members.
- If it does not know yet that a group is moved back, it uses the brokers only while its own node below the route
  exists: its permit. The group is not in ZooKeeper again before this node is deleted, by its owner or with its session.

The permit is created when it is needed. It is deleted when the group is no longer on the brokers, and nothing in
progress needs it. For a gateway, this is the last commit of a simple consumer, which a broker would accept later, too.
For a consumer, it is its membership in the group on the brokers.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from secrets import token_hex
from weakref import WeakSet

from ...core.znodes.group_route import GroupRoute, RouteState
from ...core.znodes.paths import ROUTES
from ...deadline import uptime
from ...exceptions import AccessError
from ..requests.watch_dispatcher import WatchDispatcher
from ..session.registry_context import RegistryContext
from .route_nodes import create_permit, delete_permit, permits_of, read_routes, version_of_routes

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
