"""Elections between gateways: a group has one coordinator, the gateway whose node exists.

1. A gateway creates the node of a group before it answers for the group (`win`). If another gateway has created it, the
   clients are sent there.
2. The node belongs to the session of the gateway, as the members of the group do. A transaction that registers members
   checks the node, and is carried out in this session or not at all. Claims and commits check the registrations. So a
   gateway that was suspended for too long writes nothing for a group that has another coordinator.
3. A gateway stops answering for a group as soon as its session may have expired (`may_be_lost`). ZooKeeper deletes the
   node later than that.
4. A group without members is released after a while, and all groups are released when the gateway closes. If the
   outcome of a release is unknown, the gateway reads the node before it deletes it or answers for the group again.

Another client may delete the node. Then two gateways can have members in the group until the next check
(`take_replaced`). They share the partitions with each other, as with other clients.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from secrets import token_hex
from typing import Final

from ...core.znodes.own_nodes import CoordinatorNode, decode_coordinator, encode_coordinator
from ...core.znodes.paths import COORDINATORS
from ...deadline import Deadline, uptime
from ...exceptions import ConflictError, NoPermissionError, SessionLostError
from ...zookeeper.ownership.routes import check_coordinator, create_coordinator, delete_coordinator, read_coordinators
from ...zookeeper.requests.transaction import SessionFence
from ...zookeeper.session.session import RegistryContext
from ..protocol.addresses import GatewayAddress

# Run tasks on a few threads: tasks of one key in order, tasks of different keys at the same time.


log = logging.getLogger("zkgroups.gateway")

Task = Callable[[], object]


class WorkQueues:
    """One queue for each key that has tasks, and threads that carry them out. A task should handle its own errors."""

    def __init__(self, name: str, threads: int) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Hashable, deque[Task]] = {}
        self._ready: SimpleQueue[Hashable] = SimpleQueue()
        """The keys whose first task can be carried out. None ends a thread."""
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"zkgroups-gateway-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, key: Hashable, task: Task) -> bool:
        """Add a task to the queue of a key. The key must not be None. Return False if the queues are closed."""
        with self._lock:
            if self._closed:
                return False
            if (queue := self._queues.get(key)) is not None:
                queue.append(task)
                return True
            self._queues[key] = deque([task])
        self._ready.put(key)
        return True

    def close(self, timeout: float) -> None:
        """Finish the tasks that were added before, and end the threads. Wait no longer than the timeout."""
        with self._lock:
            self._closed = True
            idle = not self._queues
        if idle:
            self._end()
        deadline = Deadline(timeout)
        for thread in self._threads:
            thread.join(deadline.remaining)

    def _end(self) -> None:
        for _ in self._threads:
            self._ready.put(None)

    def _run(self) -> None:
        while (key := self._ready.get()) is not None:
            with self._lock:
                task = self._queues[key].popleft()
            try:
                task()
            except Exception:
                log.exception("unexpected error in the storage of the gateway")
            self._next(key)

    def _next(self, key: Hashable) -> None:
        """Let any thread carry out the next task of this key."""
        with self._lock:
            more = bool(self._queues[key])
            if not more:
                del self._queues[key]
            finished = self._closed and not self._queues
        if more:
            self._ready.put(key)
        elif finished:
            self._end()


class NotCoordinatorError(ConflictError):
    """Another gateway coordinates the group."""

    def __init__(self, group: str, other: CoordinatorNode) -> None:
        super().__init__(f"group {group!r} is coordinated by the gateway at {other.host or 'an unknown address'}")


@dataclass(slots=True)
class _Won:
    session_id: int
    used_at: float
    is_leaving: bool = False
    """True from the begin of a release on. If its outcome is unknown, another gateway may have the group by now."""


class Elections:
    """The groups that this gateway coordinates. Any thread may call all methods; for one group, one at a time.

    Without an address there are no elections: every gateway answers for all groups.
    """

    def __init__(self, context: RegistryContext, address: GatewayAddress | None) -> None:
        self._context = context
        self._session = context.session
        self._data = b"" if address is None else encode_coordinator(_node_of(address))
        self._lock = threading.Lock()  # guards the fields below, and is never held during a request
        self._won: dict[str, _Won] = {}
        self._lost: set[str] = set()
        """Groups that were lost, and that the coordinator may still have in memory."""

    @property
    def are_held(self) -> bool:
        """False if every gateway answers for all groups."""
        return bool(self._data)

    # Win and lose

    def win(self, group: str) -> None:
        """Become the coordinator of a group, or remain it. Raise `NotCoordinatorError` if another gateway has it."""
        if not self.are_held:
            return
        session_id = self._session.require_id(self._context.deadline())
        with self._lock:
            won = self._won.get(group)
            if won is not None and won.session_id == session_id and self._is_certain(won):
                won.used_at = uptime()
                return
        self._create_node(group, session_id)
        # The reply may have been lost. Then only reads have shown the node, and they prove no session.
        self._session.prove(session_id, deadline=self._context.deadline())
        with self._lock:
            if group in self._won and self._won[group].session_id != session_id:
                self._lost.add(group)  # its members belong to the former session
            self._won[group] = _Won(session_id, uptime())
            self._session.start_proofs(self, session_id)

    def _is_certain(self, won: _Won) -> bool:
        return not won.is_leaving and self._session.alive(won.session_id)

    def _create_node(self, group: str, session_id: int) -> None:
        try:
            other = create_coordinator(self._context, group, self._data, session_id)
        except NoPermissionError as error:
            log.warning(
                "clients cannot join group %s, because the gateway may not write below %s: %s",
                group,
                COORDINATORS,
                error,
            )
            raise
        if other is not None:
            raise NotCoordinatorError(group, decode_coordinator(other.data))

    def may_be_lost(self, group: str) -> bool:
        """True if this gateway was elected, and its session may have expired since. Sends no request."""
        with self._lock:
            won, is_lost = self._won.get(group), group in self._lost
        return is_lost or (won is not None and not self._session.alive(won.session_id))

    def forget_loss(self, group: str) -> None:
        """Note that the coordinator has no group of this name in memory any more."""
        with self._lock:
            self._lost.discard(group)

    def take_lost(self) -> list[str]:
        """Return the groups whose session may have expired, and give them up."""
        return self._take({name: won for name, won in self._all().items() if not self._session.alive(won.session_id)})

    def take_replaced(self) -> list[str]:
        """Return the groups whose nodes another client has deleted or replaced, and give them up."""
        known = {name: won for name, won in self._all().items() if not won.is_leaving}
        found = {name: (node.session, node.data) for name, node in read_coordinators(self._context, known).items()}
        return self._take({name: won for name, won in known.items() if found.get(name) != (won.session_id, self._data)})

    def _take(self, lost: Mapping[str, _Won]) -> list[str]:
        with self._lock:
            self._lost |= lost.keys()
        self._forget(lost)
        return list(lost)

    def release(self, group: str) -> None:
        """Delete the node, so that any gateway can coordinate the group. Call it again after an error."""
        with self._lock:
            won = self._won.get(group)
            if won is not None:
                won.is_leaving = True
        if won is not None:
            delete_coordinator(self._context, group, self._data, won.session_id)
            self._forget({group: won})

    def _all(self) -> dict[str, _Won]:
        with self._lock:
            return dict(self._won)

    def _forget(self, lost: Mapping[str, _Won]) -> None:
        """Forget these groups, unless they were won again meanwhile."""
        with self._lock:
            for name, won in lost.items():
                if self._won.get(name) is won:
                    del self._won[name]
            if not self._won:
                self._session.stop_proofs(self)

    def won(self, *, unused_for: float = 0.0) -> list[str]:
        """Return the groups that this gateway coordinates, and has not used for `unused_for` seconds."""
        limit = uptime() - unused_for
        return [name for name, won in self._all().items() if won.used_at <= limit]

    def fence(self, group: str) -> SessionFence | None:
        """Return the fence for writes; None without elections. Raise `SessionLostError` if the group was lost."""
        if not self.are_held:
            return None
        with self._lock:
            won = self._won.get(group)
        if won is None:
            raise SessionLostError(f"this gateway no longer coordinates group {group!r}: its members must join again")
        return SessionFence(won.session_id, (check_coordinator(group),))

    def elsewhere(self, groups: Iterable[str]) -> dict[str, CoordinatorNode]:
        """Return the groups that other gateways coordinate."""
        if not self.are_held:
            return {}
        own_groups = {name for name, won in self._all().items() if self._is_certain(won)}
        unknown = [name for name in groups if name not in own_groups]
        own = (self._session.id, self._data)
        found = read_coordinators(self._context, unknown).items()
        return {name: decode_coordinator(node.data) for name, node in found if (node.session, node.data) != own}


def _node_of(address: GatewayAddress) -> CoordinatorNode:
    """Return the contents of the nodes of one gateway. The id is new each time."""
    return CoordinatorNode(token_hex(8), address.host, address.ports.first, address.ports.last)


# A thread that checks whether the session of a gateway's members may have expired.
#
# kazoo reports an expired session only when a server answers again. Until then the members would continue to work,
# while other clients claim their partitions. So a session also counts as lost if it was not proved for too long, as
# for every instance (`docs/guarantees.md`).


PERIOD: Final = 0.2
"""In seconds: how often the sessions are checked."""
SOON: Final = 1.0
"""In seconds: how often unfinished assignments and deregistrations are retried."""


class SessionMonitor:
    """Calls `check` several times a second, `retry` every second, and `reconcile` from time to time."""

    def __init__(
        self,
        check: Callable[[], object],
        retry: Callable[[], object],
        reconcile: Callable[[], object],
        reconcile_every: float,
    ) -> None:
        self._check = check
        self._periods = {retry: SOON, reconcile: reconcile_every}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zkgroups-gateway-monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        due = {task: uptime() + period for task, period in self._periods.items()}
        while not self._ended.wait(PERIOD):
            try:
                self._check()
                for task, period in self._periods.items():
                    if uptime() >= due[task]:
                        due[task] = uptime() + period
                        task()
            except Exception:
                log.exception("unexpected error in the monitor of the gateway's session")
