"""The ZooKeeper session of one kazoo client: reads that survive a reconnect, and transactions pinned to the session.

Reads are repeated after a lost connection until the deadline. Transactions are carried out in one session or not at
all (`requests/run_transaction.py`). kazoo's errors become public ones (`errors.py`).

A session counts as alive only while it is proved (`lifetime.py`). kazoo reports an expired session only
when a server answers again. `alive` also becomes False by the local clock (rule 7).
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, TypeAlias
from weakref import WeakSet

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, KazooException, NodeExistsError, NoNodeError, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KeeperState
from kazoo.security import OPEN_ACL_UNSAFE

from ...deadline import Deadline, uptime
from ...exceptions import (
    AuthenticationError,
    InvalidOptionError,
    NoPermissionError,
    NotConnectedError,
    NotFoundError,
    ReadOnlyError,
)
from ..kazoo_compat import internals
from ..kazoo_compat.closing import Endpoints
from ..kazoo_compat.requests import correct_request_queue
from ..kazoo_compat.safe_decoding import DamagedAnswer, read_safely
from ..requests.node import Node
from ..requests.transaction import RequestLimit
from .errors import CLOSED, LOSSES, REJECTED, translate, translate_of_read, translated
from .lifetime import ObservedLifetime, ProofSender

if TYPE_CHECKING:
    from ..requests.transaction import Operation


# Wait until a node is deleted.
#
# kazoo keeps watchers in a set and cannot remove one, so a watcher for each wait would stay forever after a timeout.
# Here one callable watches for all waits of a session.


class DeletionWaits:
    """All waits of one session for the deletion of a node."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards the waits, and is never held during a call
        self._waits: dict[str, list[_Wait]] = {}

    def wait(self, path: str, exists: Callable[[Callable[[Any], None]], bool], deadline: Deadline) -> bool:
        """Wait until the node is deleted once. Return False if it still exists at the deadline.

        `exists` asks the server for the node, and sets the watcher that is passed to it.
        """
        wait = _Wait()
        with self._lock:
            self._waits.setdefault(path, []).append(wait)
        try:
            while True:
                wait.woken.clear()
                if not exists(self._on_event) or wait.deleted:
                    return True
                if not wait.woken.wait(deadline.remaining):
                    return False
        finally:
            self._remove(path, wait)

    def _remove(self, path: str, wait: _Wait) -> None:
        with self._lock:
            self._waits[path].remove(wait)
            if not self._waits[path]:
                del self._waits[path]

    def wake_all(self) -> None:
        """Let all waits ask the server again."""
        with self._lock:
            for wait in itertools.chain(*self._waits.values()):
                wait.woken.set()

    def _on_event(self, event: Any) -> None:
        """Called on kazoo's watch thread, so it only wakes. A path of None means that the connection was lost."""
        with self._lock:
            paths = list(self._waits) if event.path is None else [event.path]
            for wait in [wait for path in paths for wait in self._waits.get(path, ())]:
                wait.deleted = wait.deleted or event.type == EventType.DELETED
                wait.woken.set()


class _Wait:
    __slots__ = ("deleted", "woken")

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.deleted = False


PIPELINE: Final = 64
"""How many single requests to send before waiting for the first answer."""

_FIRST_USE = threading.RLock()


class Session:
    """The session of one client. All objects that use the same kazoo client share it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        read_safely(client)
        self._observed = ObservedLifetime(client)
        self._proofs = ProofSender(client, self._observed)
        self._state_changed = threading.Condition()
        self._deletions = DeletionWaits()
        self.read_only = False
        """True if the connection was opened for reading only."""
        self.is_resumable = False
        """True if the session is kept in a file, for a later process."""
        self.resumed: int | None = None
        """The id of the session, if it was resumed from a file."""
        self.reads_many: dict[Endpoints, bool] = {}
        """Whether the server is known to answer many reads in one request (`requests/multiread.py`)."""
        self.limit = RequestLimit()
        correct_request_queue(client)
        client.add_listener(self._on_state)
        _ALL.add(self)

    @classmethod
    def of(cls, client: Any) -> Session:
        """Return the session of a client. The first call creates it and stores it on the client."""
        if not isinstance(client, KazooClient):
            raise InvalidOptionError(
                "client", client, "it must be a KazooClient; for an address: Registry.connect(hosts)"
            )
        with _FIRST_USE:
            found: Session | None = getattr(client, "_zkgroups_session", None)
            if found is None:
                found = client._zkgroups_session = cls(client)
        return found

    def after_fork(self) -> None:
        """In a fork: replace the locks, whose threads do not exist there, and forget the parent's session."""
        self._state_changed = threading.Condition()
        self._deletions = DeletionWaits()
        self._proofs.forget()

    @property
    def client(self) -> Any:
        """The kazoo client."""
        return self._client

    @property
    def id(self) -> int | None:
        """The id of the session. None before the first session and after it has expired."""
        return internals.session_id(self._client)

    def require_id(self, deadline: Deadline) -> int:
        """Return the id of the session. Wait for a session if there is none at the moment."""
        while (session_id := self.id) is None:
            if not self.wait_connected(deadline):
                raise NotConnectedError(f"could not connect to {self.servers} within {deadline.seconds:g} s")
        return session_id

    @property
    def servers(self) -> str:
        """The servers in the form that `Registry.connect` accepts."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._client.hosts)

    @property
    def chroot(self) -> str:
        """The prefix of every path. Empty without a chroot."""
        return str(self._client.chroot)

    @property
    def granted_timeout(self) -> float | None:
        """The smallest timeout that the session was granted. None if the client was connected before this object."""
        return self._observed.granted

    def granted_to(self, session_id: int) -> float | None:
        """Return the smallest timeout that this session was granted, or None if it is not the current one."""
        return self._observed.granted_to(session_id)

    def resume(self, session_id: int, password: bytes, *, timeout: float) -> None:
        """Before the client is started: resume that session, which was granted this timeout at its creation."""
        internals.set_session(self._client, session_id, password)
        self._observed.resume(session_id, timeout)

    @property
    def request_limit(self) -> int:
        """The size of the largest request to send, in bytes, as far as this session has learned."""
        return self.limit.bytes(self.id)

    @property
    def server_is_read_only(self) -> bool:
        """True if the server has no quorum and answers reads only."""
        return bool(self._client.client_state == KeeperState.CONNECTED_RO)

    @property
    def requests_sent(self) -> int:
        """How many requests were sent on this connection."""
        return internals.last_xid(self._client)

    def alive(self, session_id: int) -> bool:
        """Return True if that session is the current one and was proved recently enough."""
        return uptime() < self.certain_until(session_id)

    def certain_until(self, session_id: int) -> float:
        """Return until when that session is certain to live, on the clock of `uptime`.

        `-inf` if it is another one, or if the client is being closed: the server may have ended the session already.
        """
        if self.id != session_id or self.server_is_read_only or internals.is_stopped(self._client):
            return -math.inf
        return self._observed.certain_until(session_id)

    def start_proofs(self, user: object, session_id: int) -> None:
        """Prove the session periodically, until `user` is garbage collected or passed to `stop_proofs`."""
        self._proofs.start(user, session_id)

    def stop_proofs(self, user: object) -> None:
        """Stop proving the session for `user`."""
        self._proofs.stop(user)

    def prove(self, session_id: int, *, deadline: Deadline) -> None:
        """Wait until that session is certain to live, if it is not already.

        The deadline limits the time without answers. After a pause of this process, answers prove little until the
        leader must have heard from the session again. That wait is limited by the session timeout in addition.
        """
        self._proofs.wait_proved(self, session_id, deadline)

    def get(self, path: str, *, deadline: Deadline) -> Node | None:
        """Return the node, or None if it does not exist."""
        found = self.call(lambda: self._client.get_async(path), path, deadline)
        return None if found is None else Node.of(path, *found)

    def get_all(self, paths: Sequence[str], *, deadline: Deadline) -> list[Node | None]:
        """Return many nodes, with many requests in flight together."""
        nodes: list[Node | None] = []
        for path, found in zip(paths, self.call_all(self._client.get_async, paths, lambda: deadline), strict=True):
            if isinstance(found, NoPermissionError):
                raise found
            nodes.append(None if found is None else Node.of(path, *found))
        return nodes

    def children(self, path: str, *, deadline: Deadline) -> list[str] | None:
        """Return the names of the node's children, or None if it does not exist."""
        found: list[str] | None = self.call(lambda: self._client.get_children_async(path), path, deadline)
        return found

    def exists(self, path: str, *, deadline: Deadline) -> bool:
        """Return True if the node exists. ZooKeeper (since 3.9) denies access only to a node that exists."""
        try:
            return self.call(lambda: self._client.exists_async(path), path, deadline) is not None
        except NoPermissionError:
            return True

    def acl(self, path: str, *, deadline: Deadline) -> tuple[Any, ...]:
        """Return the node's access control list. Empty if the node does not exist."""
        found = self.call(lambda: self._client.get_acls_async(path), path, deadline)
        return () if found is None else tuple(found[0])

    def call(self, send: Callable[[], Any], path: str, deadline: Deadline) -> Any:
        """Send a read and return its result. Repeat it after every lost connection. None if the node does not exist."""
        while True:
            try:
                return internals.wait(send().get, deadline)
            except NoNodeError:
                return None
            except ConnectionClosedError as error:
                raise self.closed_error() from error
            except DamagedAnswer as error:
                raise translate_of_read(error, path) from error
            except (*LOSSES, SessionExpiredError) as error:
                if not self.wait_connected(deadline):
                    raise NotConnectedError(
                        f"could not connect to {self.servers} within {deadline.seconds:g} s while reading {path}"
                    ) from error
            except (KazooException, KazooTimeoutError) as error:
                raise translate_of_read(error, path) from error

    def call_pending(self, answer: Any, send: Callable[[], Any], path: str, deadline: Deadline) -> Any:
        """Return the result of a read that was already sent. Send it again after a lost connection."""
        answers = iter([answer])
        return self.call(lambda: next(answers, None) or send(), path, deadline)

    def call_all(
        self, send: Callable[[str], Any], paths: Sequence[str], deadline: Callable[[], Deadline]
    ) -> Iterator[Any | NoPermissionError | None]:
        """Yield the results of reads, with many requests in flight. A forbidden node yields its error."""
        for start in range(0, len(paths), PIPELINE):
            window = paths[start : start + PIPELINE]
            for path, answer in [(path, send(path)) for path in window]:
                try:
                    yield self.call_pending(answer, partial(send, path), path, deadline())
                except NoPermissionError as error:
                    yield error

    def sync(self, *, deadline: Deadline) -> None:
        """Wait until the server knows all changes that were made before this call."""
        with translated("/"):
            self.call(lambda: self._client.sync_async("/"), "/", deadline)

    def catch_up(self, *, deadline: Deadline) -> None:
        """Wait until the server knows all changes that a majority knew before this call.

        A server to which the session has moved may not know yet what was carried out on the one before. `sync` is not
        enough: a leader that is cut off answers it by itself, and another one may have carried out more.
        """
        self.call(self._proofs.send_proof, "/", deadline)

    def wait_connected(self, deadline: Deadline) -> bool:
        """Wait for a connection. Return False at the deadline."""
        with self._state_changed:
            self._state_changed.wait_for(lambda: self.connected or self._given_up, deadline.remaining)
        if self._given_up:
            raise self.closed_error()
        return self.connected

    @property
    def connected(self) -> bool:
        """True while the client is connected."""
        return bool(self._client.connected)

    @property
    def _given_up(self) -> bool:
        """True if kazoo will not connect any more. Before the first connection, its state is CLOSED, too."""
        state = self._client.client_state
        return state == KeeperState.AUTH_FAILED or (state == KeeperState.CLOSED and self._observed.was_connected)

    def closed_error(self) -> NotConnectedError | AuthenticationError:
        """Return the reason why the client will not connect any more.

        If no call stopped it, kazoo has given up by itself, as it does when a login is refused.
        """
        if not internals.is_stopped(self._client):
            return AuthenticationError(f"the server {REJECTED}")
        return NotConnectedError(CLOSED)

    def wait_deleted(self, path: str, *, deadline: Deadline, timeout: float) -> bool:
        """Wait until the node is deleted once. Return False if it still exists at the deadline.

        `timeout` limits each request, in seconds.
        """

        def exists(watch: Callable[[Any], None]) -> bool:
            stat = self.call(lambda: self._client.exists_async(path, watch=watch), path, Deadline(timeout))
            return stat is not None

        return self._deletions.wait(path, exists, deadline)

    def _on_state(self, _state: str) -> None:
        """Called on kazoo's thread: wake all waiting threads. kazoo calls no watcher while it closes."""
        self._deletions.wake_all()
        with self._state_changed:
            self._state_changed.notify_all()
        self._proofs.on_state()

    def transact(
        self, operations: Sequence[Operation], *, session_id: int | None = None, deadline: Deadline
    ) -> list[Any]:
        """Carry out all of the operations or none, and return their results. Empty if the reply was lost.

        With `session_id`, only in that session: raise `SessionLostError` if the client has another one. Without, in the
        client's current session. `TransactionFailed` contains the operation that the server refused.
        """
        from ..requests.run_transaction import run_transaction

        self.require_writable()
        return run_transaction(self, operations, session_id=session_id, deadline=deadline)

    def require_writable(self) -> None:
        """Raise `ReadOnlyError` if the connection was opened for reading only."""
        if self.read_only:
            raise ReadOnlyError("the connection was opened for reading only: connect without `read_only` to write")

    def ensure_path(
        self, path: str, *, acl: tuple[Any, ...], session_id: int | None = None, deadline: Deadline
    ) -> None:
        """Create a directory and its parents if they are missing. The chroot itself is never created."""
        from ..requests.transaction import Create, TransactionFailed

        names = path.split("/")[1:]
        depth = len(names)
        while depth and not self.exists("/" + "/".join(names[:depth]), deadline=deadline):
            depth -= 1
        while depth < len(names):
            directory = "/" + "/".join(names[: depth + 1])
            try:
                self.transact([Create(directory, acl=acl)], session_id=session_id, deadline=deadline)
            except TransactionFailed as failure:
                if isinstance(failure.error, NoNodeError):  # another client has deleted the parent
                    if depth == 0:
                        raise NotFoundError(f"the chroot {self.chroot} does not exist: check the address") from failure
                    depth -= 1
                    continue
                if not isinstance(failure.error, NodeExistsError):
                    raise translate(failure.error, directory) from failure.error
            depth += 1


_ALL: Final[WeakSet[Session]] = WeakSet()


def _after_fork() -> None:
    global _FIRST_USE
    _FIRST_USE = threading.RLock()
    for session in list(_ALL):
        session.after_fork()


os.register_at_fork(after_in_child=_after_fork)


# The session, access control lists and timeout that all objects of one registry share.


TopicSource: TypeAlias = Callable[[Collection[str] | None], Mapping[str, Iterable[int] | None] | None]
"""Returns the partitions of these topics, or with None of all. Topics that do not exist are left out. A topic that may
exist, but is not described, has None as its partitions. Without a mapping, Kafka's nodes in ZooKeeper are read."""

_OPEN: Final = tuple(OPEN_ACL_UNSAFE)

RECONNECT_TIME: Final = 0.75
"""A fraction of the session timeout: how long a call through a claim waits at least for a new connection."""


class KazooAcls(NamedTuple):
    """The access control lists of an `AclPolicy` in the form that kazoo accepts. By default, all are open."""

    directories: tuple[Any, ...] = _OPEN
    ephemerals: tuple[Any, ...] = _OPEN
    offsets: tuple[Any, ...] = _OPEN


class RegistryContext(NamedTuple):
    """The session, the access control lists and the timeout with which an object of a registry sends requests."""

    session: Session
    acls: KazooAcls
    timeout: float
    claim_session: int | None = None
    """If set, calls end early when the claims of this session end: see `within`."""
    topics: TopicSource | None = None
    """The function to ask for topics; None if they are registered in ZooKeeper."""

    def within(self, session_id: int) -> Self:
        """Return the context for a call through a claim: without a connection, it ends with the claim."""
        return self._replace(claim_session=session_id)

    def deadline(self) -> Deadline:
        """Start the timeout of one call."""
        if self.claim_session is None:
            return Deadline(self.timeout)
        return _ClaimDeadline(self.timeout, self.session, self.claim_session)


class _ClaimDeadline(Deadline):
    """Also passes without a connection, as soon as the session is not certain to live (rule 7).

    But there is always time to reconnect: a process that stood still, or a slow server, need not cost the claim.
    """

    __slots__ = ("_lost_at", "_session", "_session_id")

    def __init__(self, seconds: float, session: Session, session_id: int) -> None:
        super().__init__(seconds)
        self._session, self._session_id = session, session_id
        self._lost_at: float | None = None

    @property
    def remaining(self) -> float:
        session, left, now = self._session, super().remaining, uptime()
        if not left or session.connected or session.id != self._session_id:  # the next session will show the outcome
            self._lost_at = None
            return left
        self._lost_at = now if self._lost_at is None else self._lost_at
        reconnect_until = self._lost_at + RECONNECT_TIME * internals.requested_timeout(session.client)
        left = min(left, max(0.0, max(session.certain_until(self._session_id), reconnect_until) - now))
        if not left:
            self.seconds = round(self.elapsed, 1)  # for the error message
            self.expire()
        return left


class _HasContext(Protocol):
    _context: RegistryContext


def context_of(owner: _HasContext) -> RegistryContext:
    """Return the context of a `Registry` or `Consumergroup`. For use inside zkgroups only."""
    return owner._context
