"""One kazoo client and what is known of its ZooKeeper session: reads that wait for a reconnect within a time limit, and
transactions that happen in one session or not at all.

Three things are done here and nowhere else:

- An unknown outcome is resolved by looking (rule 3). When a connection is lost after a transaction was sent, this waits
  for the next one, asks for a `sync`, looks at the node the transaction would have changed last, and only then says
  what happened, or sends again. A server that takes a session over refuses what may still come over the old connection,
  so that nothing is under way any more when it has answered.
- kazoo's errors become ours (`errors.py`).
- A session counts as alive only while it is proved (`core/session_proof.py`). kazoo reports a lost session only when
a server
  answers again; `alive` also becomes false by our own clock (rule 7).
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, KazooException, NodeExistsError, NoNodeError, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KeeperState

from ...core.znodes.session_ids import session_hex
from ...deadline import Deadline, uptime
from ...exceptions import (
    AuthenticationError,
    InvalidOptionError,
    NoPermissionError,
    NotConnectedError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    SessionLostError,
    TooLargeError,
)
from ..kazoo_compat.corrections import hand_over_safely
from ..requests.node import Node
from ..requests.safe_decoding import DamagedAnswer, read_safely
from ..requests.transaction import (
    SMALLEST_LIMIT,
    Create,
    Operation,
    PinnedRequest,
    RequestLimit,
    TransactionFailed,
    Verdict,
    changed,
    culprit,
    is_divisible,
    telling,
    verdict_on_all,
)
from .errors import LOSSES, translate, translate_of_read, translated
from .liveness import Pulse
from .prover import Prover

_GLANCE: Final = 0.05
"""How often to check whether another request has proved the session, in seconds."""

_SOON: Final = 2.0
"""In seconds. A server drops the connection as soon as it has read the length of a request that is too large."""

PIPELINE: Final = 64
"""Requests under way together, where each is one of its own."""

Peer: TypeAlias = tuple[Any, ...]
"""The address of a server, as a socket has it."""

_FIRST_USE = threading.RLock()


class Session:
    """The state of one client; all objects made over the same kazoo client share one."""

    def __init__(self, client: Any) -> None:
        self._client = client
        read_safely(client)
        self._pulse = Pulse(client)
        self._prover = Prover(client, self._pulse)
        self._changed = threading.Condition()
        self._deletions: dict[str, list[_Waiter]] = {}
        self.refuses_writes = False
        self.outlives_us = False
        """Whether it is kept in a file, for a process that comes after this one."""
        self.resumed: int | None = None
        """The id of the session, if it was resumed from a file."""
        self.reads_many: dict[Peer, bool] = {}
        """Whether the server is known to answer many reads in one request (`requests/multiread_support.py`)."""
        self.limit = RequestLimit()
        hand_over_safely(client)
        client.add_listener(self._on_state)
        _ALL.add(self)

    @classmethod
    def of(cls, client: Any) -> Session:
        """The session of a client, made on first use and kept on it."""
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
        """In a fork: the threads that hold the locks do not run here, and the session belongs to the parent."""
        self._changed = threading.Condition()
        self._prover.forget()

    @property
    def client(self) -> Any:
        """The kazoo client."""
        return self._client

    @property
    def id(self) -> int | None:
        """The id of the session, None before there is one and after it has ended."""
        found: int | None = self._client._session_id
        return found or None

    def require_id(self, deadline: Deadline) -> int:
        """The id of the session, waited for if there is none at the moment."""
        while (session_id := self.id) is None:
            if not self.wait_connected(deadline):
                raise NotConnectedError(f"no connection to {self.servers} within {deadline.seconds:g} s")
        return session_id

    @property
    def servers(self) -> str:
        """The servers, as `Registry.connect` takes them."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._client.hosts)

    @property
    def chroot(self) -> str:
        """What stands before every path; empty if nothing."""
        return str(self._client.chroot)

    @property
    def granted_timeout(self) -> float | None:
        """The smallest timeout that the session was granted. None if the client was connected before this was made."""
        return self._pulse.granted

    def granted_to(self, session_id: int) -> float | None:
        """The smallest timeout that this session was granted. None if it is not the current one."""
        return self._pulse.granted_to(session_id)

    def resume(self, session_id: int, password: bytes, *, timeout: float) -> None:
        """Before the client is started: continue that session, which was granted this timeout at its creation."""
        self._client._session_id, self._client._session_passwd = session_id, password
        self._pulse.resume(session_id, timeout)

    @property
    def request_limit(self) -> int:
        """The largest request worth sending, in bytes, as far as this session has learned."""
        return self.limit.bytes(self.id)

    @property
    def server_is_read_only(self) -> bool:
        """Whether we talk to a server without a quorum."""
        return bool(self._client.client_state == KeeperState.CONNECTED_RO)

    @property
    def peer(self) -> Peer | None:
        """The address of the server we are with; on kazoo's own thread it is that of what is sent next."""
        try:
            return tuple(self._client._connection._socket.getpeername())
        except (AttributeError, OSError):
            return None

    def alive(self, session_id: int) -> bool:
        """Whether that session is certain to live: it is the current one, and was proved recently enough."""
        return uptime() < self.certain_until(session_id)

    def certain_until(self, session_id: int) -> float:
        """Until when, by `uptime`, that session is certain to live; long ago if it is not the current one."""
        if self.id != session_id or self.server_is_read_only:
            return -math.inf
        return self._pulse.certain_until(session_id)

    def rely(self, who: object, session_id: int) -> None:
        """Prove the session periodically from now on, until `who` is garbage collected or withdraws."""
        self._prover.rely(who, session_id)

    def rely_no_more(self, who: object) -> None:
        """Stop proving the session for `who`."""
        self._prover.rely_no_more(who)

    def prove(self, session_id: int, *, deadline: Deadline) -> None:
        """Wait until that session is certain to live, if it is not already.

        The deadline applies to the answers. After a pause of this process they prove little, until the leader must have
        heard of the session again. That is waited for without the deadline, but not for longer than the session lasts.
        """
        asked, patience = -math.inf, Deadline(deadline.seconds + self._pulse.timeout)
        while not self.alive(session_id):
            if self.id not in (session_id, None):
                raise SessionLostError(f"session {session_hex(session_id)} has ended")
            if deadline.passed or patience.passed:
                raise self._not_proved(session_id, deadline, patience)
            if (due := self._pulse.due(asked) - uptime()) > 0:
                time.sleep(min(due, _GLANCE))  # meanwhile other requests may prove the session
                deadline = Deadline(deadline.seconds)
                continue
            asked = uptime()
            self.call(self._prover.ask, "/", deadline)

    def _not_proved(self, session_id: int, deadline: Deadline, patience: Deadline) -> NotConnectedError:
        if patience.passed:
            return NotConnectedError(
                f"the server has answered for {patience.seconds:g} s, but the answers do not prove that session "
                f"{session_hex(session_id)} lives: this process may have been suspended again and again"
            )
        return NotConnectedError(
            f"no server has proved within {deadline.seconds:g} s that session {session_hex(session_id)} lives: "
            "the server may be cut off from its leader"
        )

    # Reading

    def get(self, path: str, *, deadline: Deadline) -> Node | None:
        """The node, None if there is none."""
        found = self.call(lambda: self._client.get_async(path), path, deadline)
        return None if found is None else Node.of(path, *found)

    def children(self, path: str, *, deadline: Deadline) -> list[str] | None:
        """The names below the node, None if there is none."""
        found: list[str] | None = self.call(lambda: self._client.get_children_async(path), path, deadline)
        return found

    def exists(self, path: str, *, deadline: Deadline) -> bool:
        """Whether the node is there; one that we may not read is, or ZooKeeper (since 3.9) would not say so."""
        try:
            return self.call(lambda: self._client.exists_async(path), path, deadline) is not None
        except NoPermissionError:
            return True

    def acl(self, path: str, *, deadline: Deadline) -> tuple[Any, ...]:
        """The node's access control list; nothing if there is no node."""
        found = self.call(lambda: self._client.get_acls_async(path), path, deadline)
        return () if found is None else tuple(found[0])

    def call(self, ask: Callable[[], Any], path: str, deadline: Deadline) -> Any:
        """What a read returns, asked again after every loss of the connection while there is time; None for no node."""
        while True:
            try:
                return ask().get(timeout=deadline.remaining)
            except NoNodeError:
                return None
            except ConnectionClosedError as error:
                raise self._closed() from error
            except DamagedAnswer as error:
                raise translate_of_read(error, path) from error
            except (*LOSSES, SessionExpiredError) as error:
                if not self.wait_connected(deadline):
                    raise NotConnectedError(
                        f"no connection to {self.servers} within {deadline.seconds:g} s while reading {path}"
                    ) from error
            except (KazooException, KazooTimeoutError) as error:
                raise translate_of_read(error, path) from error

    # Waiting

    def wait_connected(self, deadline: Deadline) -> bool:
        """Wait until there is a connection; False if the time is over first."""
        with self._changed:
            self._changed.wait_for(lambda: self.connected or self._given_up, deadline.remaining)
        if self._given_up:
            raise self._closed()
        return self.connected

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return bool(self._client.connected)

    @property
    def _given_up(self) -> bool:
        """Whether kazoo will not connect any more; before it has connected for the first time it is closed, too."""
        state = self._client.client_state
        return state == KeeperState.AUTH_FAILED or (state == KeeperState.CLOSED and self._pulse.has_beaten)

    def wait_deleted(self, path: str, *, deadline: Deadline, timeout: float) -> bool:
        """Wait until the node has been deleted, once; False if it is still there when the time is over.

        `timeout` is for each request; `deadline` for the whole wait, which may be over before an answer is due.

        One callable watches for everybody: kazoo keeps watchers in a set and cannot take one back, so a new one for
        every wait that times out would stay for ever.
        """
        waiter = _Waiter()
        with self._changed:
            self._deletions.setdefault(path, []).append(waiter)
        try:
            while True:
                waiter.woken.clear()
                stat = self.call(lambda: self._client.exists_async(path, watch=self._on_watch), path, Deadline(timeout))
                if stat is None or waiter.deleted:
                    return True
                if not waiter.woken.wait(deadline.remaining):
                    return False
        finally:
            self._forget(path, waiter)

    def _forget(self, path: str, waiter: _Waiter) -> None:
        with self._changed:
            self._deletions[path].remove(waiter)
            if not self._deletions[path]:
                del self._deletions[path]

    def _on_watch(self, event: Any) -> None:
        """On kazoo's watch thread: only wakes, never calls. A path of None means that the connection was lost."""
        with self._changed:
            paths = list(self._deletions) if event.path is None else [event.path]
            for waiter in [waiter for path in paths for waiter in self._deletions.get(path, ())]:
                waiter.deleted = waiter.deleted or event.type == EventType.DELETED
                waiter.woken.set()

    def _on_state(self, _state: str) -> None:
        """On kazoo's thread: wake everybody who waits. kazoo tells no watcher what happens while it closes."""
        with self._changed:
            for waiter in itertools.chain(*self._deletions.values()):
                waiter.woken.set()
            self._changed.notify_all()
        self._prover.on_state()

    # Writing

    def transact(
        self, operations: Sequence[Operation], *, session_id: int | None = None, deadline: Deadline
    ) -> list[Any]:
        """Carry out all of the operations or none, and return their results.

        With `session_id`, only in that session: `SessionLostError` if it is no longer the client's. Without, in
        whichever session the client has. `TransactionFailed` names the operation that the server refused.
        """
        if self.refuses_writes:
            raise ReadOnlyError("the connection was opened for reading only")
        losses = 0
        while True:
            pinned = self.require_id(deadline) if session_id is None else session_id
            request = PinnedRequest(self._client, pinned, operations)
            results = self._send(request, operations, deadline)
            lost_soon = request.sent and (deadline.passed or uptime() - request.sent_at < _SOON)
            if results is not None:
                self.limit.accepted(request.size, session_id=pinned)
                return self._checked(operations, results)
            if request.sent and self._was_carried_out(request, operations, pinned, deadline):
                return []
            if session_id is not None and self.id != session_id:
                raise SessionLostError(f"session {session_hex(session_id)} has ended, nothing was changed")
            losses += lost_soon
            if losses >= (2 if is_divisible(operations) else 3) and request.size > SMALLEST_LIMIT:
                self.limit.lost_twice(request.size, session_id=pinned)
                raise TooLargeError(
                    f"the connection was lost {losses} times during a request of {request.size} bytes about "
                    f"{telling(operations).path}: the server's jute.maxbuffer is probably smaller, and must be raised",
                    size=request.size,
                )
            if not self.wait_connected(deadline):
                raise self._not_changed(operations, deadline)

    def _send(self, request: PinnedRequest, operations: Sequence[Operation], deadline: Deadline) -> list[Any] | None:
        """The server's answer, or None when it was lost or the session is another by now."""
        answer = self._client.handler.async_result()
        path = telling(operations).path
        try:
            self._client._call(request, answer)
            results: list[Any] = answer.get(timeout=deadline.remaining)
        except KazooTimeoutError as error:
            if request.withdraw():
                raise self._not_changed(operations, deadline) from error
            raise OutcomeUnknownError(f"no answer within {deadline.seconds:g} s about {path}") from error
        except ConnectionClosedError as error:
            if not request.withdraw():
                raise OutcomeUnknownError(f"the connection was closed before the answer about {path}") from error
            raise self._closed() from error
        except (*LOSSES, SessionExpiredError):
            return None
        except KazooException as error:
            raise translate(error, path) from error
        except BaseException:  # Ctrl-C: what was not sent must not be sent later
            request.withdraw()
            raise
        return None if request.refused else results

    def _not_changed(self, operations: Sequence[Operation], deadline: Deadline) -> NotConnectedError:
        path = telling(operations).path
        return NotConnectedError(
            f"no connection to {self.servers} within {deadline.seconds:g} s, {path} was not changed"
        )

    def _checked(self, operations: Sequence[Operation], results: list[Any]) -> list[Any]:
        failure = culprit(operations, results)
        if failure is not None:
            raise failure
        return results

    def _was_carried_out(
        self, request: PinnedRequest, operations: Sequence[Operation], session_id: int, deadline: Deadline
    ) -> bool:
        """Look (rule 3). `sync` first: the server we are with now may lag behind the one that did the work."""
        operation = telling(operations)
        try:
            self.call(lambda: self._client.sync_async("/"), "/", deadline)
            operations = list(changed(operations).values())
            nodes = self._get_all([each.path for each in operations], deadline)
        except NoPermissionError as error:
            raise OutcomeUnknownError(f"the answer about {operation.path} was lost, and it may not be read") from error
        except NotConnectedError as error:
            raise OutcomeUnknownError(
                f"the connection was lost before the answer about {operation.path}, and none came back in time"
            ) from error
        seen = verdict_on_all(operations, nodes, session_id=session_id, zxid_before=request.zxid_before)
        if seen is Verdict.UNCLEAR:
            raise OutcomeUnknownError(f"the answer about {operation.path} was lost, and it was changed again since")
        return seen is Verdict.CARRIED_OUT

    def _get_all(self, paths: Sequence[str], deadline: Deadline) -> list[Node | None]:
        """Many nodes, hundreds of requests under way together."""
        found: list[Node | None] = []
        for start in range(0, len(paths), PIPELINE):
            window = paths[start : start + PIPELINE]
            asked = [self._client.get_async(path) for path in window]
            found += [self._get_asked(path, answer, deadline) for path, answer in zip(window, asked, strict=True)]
        return found

    def _get_asked(self, path: str, asked: Any, deadline: Deadline) -> Node | None:
        """The answer to a question that is under way; after a loss of the connection it is asked anew."""
        answers = iter([asked])
        found = self.call(lambda: next(answers, None) or self._client.get_async(path), path, deadline)
        return None if found is None else Node.of(path, *found)

    def ensure(self, path: str, *, acl: tuple[Any, ...], session_id: int | None = None, deadline: Deadline) -> None:
        """Make a directory and those above it, as far as they are missing; the chroot itself is never made."""
        names = path.split("/")[1:]
        depth = len(names)
        while depth and not self.exists("/" + "/".join(names[:depth]), deadline=deadline):
            depth -= 1
        while depth < len(names):
            directory = "/" + "/".join(names[: depth + 1])
            try:
                self.transact([Create(directory, acl=acl)], session_id=session_id, deadline=deadline)
            except TransactionFailed as failure:
                if isinstance(failure.error, NoNodeError):
                    depth = self._deeper_by_none(depth)
                    continue
                if not isinstance(failure.error, NodeExistsError):
                    raise translate(failure.error, directory) from failure.error
            depth += 1

    def _deeper_by_none(self, depth: int) -> int:
        """The directory above went away while we were at it: begin one higher, unless it is the chroot."""
        if depth == 0:
            raise NotFoundError(f"there is no {self.chroot} in this ZooKeeper")
        return depth - 1

    # Ending

    def _closed(self) -> NotConnectedError | AuthenticationError:
        """Why there is no connection any more: nobody stopped kazoo, so it gave up by itself, as it does for SASL."""
        if not self._client._stopped.is_set():
            return AuthenticationError("the server did not accept the credentials, or insists on some")
        return NotConnectedError("the connection is closed")

    def sync(self, *, deadline: Deadline) -> None:
        """Wait until our server knows everything that was decided before this call."""
        with translated("/"):
            self.call(lambda: self._client.sync_async("/"), "/", deadline)


_ALL: Final[WeakSet[Session]] = WeakSet()


def _after_fork() -> None:
    global _FIRST_USE
    _FIRST_USE = threading.RLock()
    for session in list(_ALL):
        session.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class _Waiter:
    """Somebody who waits for a node to be deleted."""

    __slots__ = ("deleted", "woken")

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.deleted = False
